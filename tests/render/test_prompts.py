"""Text to actions and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coevolve.prompts import parse_action, prompt_messages, write_action

LINES = st.text(st.characters(exclude_characters="\n"), min_size=1).map(str.strip).filter(bool)


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("Thought: it is closed.\nAction: open door", "open door"),
        ("Action: open door  \nAction: take key", "open door"),
        ("Thought: now Action: look around\nthen rest", "look around"),
        ("Action:\nopen door", None),
        ("Action:   ", None),
        ("open door", None),
        ("", None),
    ],
)
def test_the_first_action_line_counts(text, action):
    assert parse_action(text) == action


@given(action=LINES, thought=st.one_of(st.just(""), LINES.filter(lambda line: "Action:" not in line)))
def test_a_written_action_is_read_back(action, thought):
    assert parse_action(write_action(action, thought)) == action


def test_a_prompt_holds_what_was_asked_for():
    bare = prompt_messages("the task")
    full = prompt_messages("the task", system="be brief", instruction="how to play")
    assert [message.role for message in bare] == ["user"]
    assert [message.role for message in full] == ["system", "user", "assistant", "user"]
    assert full[-1] == bare[-1]
