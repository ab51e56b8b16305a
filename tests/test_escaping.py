"""Model text where a person reads it: terminals, logs and Markdown."""

import json
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from coevolve import cli, escaping
from coevolve.report import examples

HOSTILE = (
    "\x1b[2J\x1b]0;title\x07\x9b31m\r\u202eevil\u2066 \ud83d <script>alert(1)</script> [a](https://b) ![i](x) | @c `d`"
)
RAW = "\x1b\x07\x9b\r\u202e\u2066\ud83d"


def test_a_terminal_gets_no_control_characters():
    shown = escaping.terminal(f"{HOSTILE}\n\tnext")
    assert not set(RAW) & set(shown)
    assert shown.startswith("\\u001b[2J") and shown.endswith("\n\tnext")
    assert json.loads(f'"{escaping.terminal(chr(0x9B))}"') == "\x9b"


def test_a_line_stays_one_line():
    assert escaping.line("buy\nvalidated reward 1\r\n\u2028\x0b\x85all as they were").splitlines() == [
        "buy validated reward 1\\u000d \\u2028\\u000b\\u0085all as they were"
    ]


class Page(HTMLParser):
    def __init__(self, html):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)

    def handle_data(self, data):
        self.text += data


@given(
    st.lists(
        st.sampled_from(
            [
                *"\\|*_`[]<>&~$#@!()-+=.: 1a",
                HOSTILE,
                "https://x.y",
                "www.x.y",
                "1. ",
                "123456789. ",
                "1234567890) ",
                "&lt;",
                "<b>",
            ]
        )
    )
)
def test_markdown_shows_the_text_and_nothing_else(parts):
    """CommonMark with HTML, tables, links and strikethrough switched on, which is more than any reader has."""
    text = "".join(parts)
    page = Page(MarkdownIt("gfm-like", {"html": True, "linkify": False}).render(escaping.markdown(text)))
    assert set(page.tags) <= {"p"}
    assert page.text.strip() == escaping.terminal(" ".join(text.split()))


def test_the_examples_show_hostile_episodes_as_text():
    assert "\x1b" not in examples._inline(HOSTILE)
    page = Page(MarkdownIt("gfm-like", {"html": True, "linkify": False}).render(f"> {examples._inline(HOSTILE)}"))
    assert set(page.tags) == {"blockquote", "p"}


def test_errors_and_logs_of_the_command_line(tmp_path, capsys):
    with pytest.raises(SystemExit):
        cli.main(["config", "--suite", f"{tmp_path}/\x1b[2Jsuite.yaml"])
    err = capsys.readouterr().err
    assert "\x1b" not in err and "\\u001b[2Jsuite.yaml" in err
    script = (
        "import logging; from coevolve import cli\ntry: cli.main(['--help'])\nfinally: logging.warning('a\\x1b[2Jb')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "\x1b" not in done.stderr and "a\\u001b[2Jb" in done.stderr
