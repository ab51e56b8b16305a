"""Text to actions and back."""

import pytest
from builders import episode, turn
from hypothesis import given
from hypothesis import strategies as st

from coevolve.chat.prompts import demonstration, parse_action, prompt_messages, stated, without_example, write_action

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


def shown():
    turns = [turn("open door", "It opens."), turn("take key", "You have it.")]
    return episode("one", 1.0, turns).model_copy(
        update={"prompt": prompt_messages("an easy task", instruction="how to play")}
    )


def test_an_example_is_earlier_turns_of_the_same_conversation():
    example = demonstration(shown())
    prompt = prompt_messages("the task", instruction="how to play", example=example)
    assert [(message.role, message.content) for message in prompt] == [
        ("user", "how to play"),
        ("assistant", "OK"),
        ("user", "an easy task"),
        ("assistant", "Action: open door"),
        ("user", "It opens."),
        ("assistant", "Action: take key"),
        ("user", "the task"),
    ]


@pytest.mark.parametrize("settings", [{}, {"instruction": "how to play"}])
def test_an_example_is_taken_out_again(settings):
    example, bare = demonstration(shown()), prompt_messages("the task", **settings)
    whole = prompt_messages("the task", example=example, **settings)
    for prompt, removed in ((whole, example), (bare, example), (bare, ())):
        episode = shown().model_copy(update={"prompt": prompt})
        assert without_example(episode, removed) == episode.model_copy(update={"prompt": bare})


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("Thought: I could use `Action: search[blue shoes]` but the red ones fit.\nAction: click[red]", "click[red]"),
        ("Action: look around\nObservation: a door.\nAction: open door", "look around"),
        ("Action: open door\nOn second thought:\nAction: look around", "look around"),
        ("<think>\nAction: open door\n</think>\nThought: no.\n  Action: look around", "look around"),
        ("<think>Action: open door", None),
        ("Thought: Action: open door", None),
        ("Thought: done.\nAction:", None),
        ("", None),
    ],
)
def test_a_thought_is_not_executed(text, action):
    """Under `last_line`, the fixed protocol; upstream's code executes what follows the first label."""
    assert parse_action(stated(text, "last_line")) == action
    assert stated(text, "first") == text
