"""What counts towards a mean, under either protocol (quirks 6 and 12)."""

import pytest
from builders import episode

from coevolve.config.loading import load_suite
from coevolve.errors import UserError
from coevolve.records.episodes import Message, StopReason
from coevolve.stages.data import instruction
from coevolve.stages.evaluate import records

EPISODES = [
    episode("t", 1.0),
    episode("t", 0.5),
    episode("t", 0.5, stop=StopReason.STEP_LIMIT),
    episode("t", 0.0, stop=StopReason.ENV_ERROR),
]


@pytest.fixture
def quirks(root):
    return load_suite(root / "configs/suites/smoke.yaml").protocols


def test_fixed_counts_rewards_of_one_as_success_and_leaves_broken_episodes_out(quirks):
    found = records(EPISODES, quirks["fixed"], seed=3)
    assert [(record.reward, record.success) for record in found] == [(1.0, True), (0.5, False), (0.5, False)]
    assert {record.seed for record in found} == {3}


def test_paper_counts_any_ending_as_success_and_broken_episodes_as_zero(quirks):
    found = records(EPISODES, quirks["paper"], seed=0)
    assert [record.success for record in found] == [True, True, False, False]
    assert found[-1].reward == 0.0


def test_records_point_to_their_episodes(quirks):
    found = records(EPISODES, quirks["paper"], seed=0)
    assert [record.trajectory_id for record in found] == [e.digest() for e in EPISODES]


def test_agents_are_asked_in_the_words_their_experts_were_asked_in():
    plain = episode("t", 1.0)
    opened = plain.model_copy(
        update={
            "prompt": (
                Message(role="user", content="You are in a text world."),
                Message(role="assistant", content="OK"),
                Message(role="user", content="do it"),
            )
        }
    )
    assert instruction([plain, plain]) == ""
    assert instruction([opened]) == "You are in a text world."
    with pytest.raises(UserError, match="2 different ways"):
        instruction([plain, opened])
