"""Text of models and files where a person reads it: it moves no cursor, hides no line and is no markup."""

import logging
import re

#: Control characters except tab and line break, marks that change the direction of text, and lone surrogates.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
#: What Markdown reads as markup anywhere, as a link, or as a list or heading at the start of a line.
#: The number of an item has up to nine digits.
_ITEM = "|".join(rf"(?<=^\d{{{digits}}})[.)]" for digits in range(1, 10))
_MARKUP = re.compile(rf"[\\|*_`\[\]<>&~$#@!]|(?<=www)\.|:(?=//)|^[-+=]|{_ITEM}")


def terminal(text: str) -> str:
    r"""The text with control characters as `\u001b`; line breaks and tabs stay."""
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def line(text: str) -> str:
    """The text on one line: each of its line breaks is a space."""
    return " ".join(terminal(text).splitlines())


def markdown(text: str) -> str:
    """The text on one line, as Markdown that shows it and nothing else: no markup, no HTML, no link."""
    return _MARKUP.sub(lambda match: f"\\{match[0]}", terminal(" ".join(text.split())))


class Formatter(logging.Formatter):
    """Formats log records without control characters."""

    def format(self, record: logging.LogRecord) -> str:
        """One record, with its traceback if it has one."""
        return terminal(super().format(record))
