import pytest
from builders import episode, turn
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from coevolve.errors import UserError
from coevolve.records.episodes import Message, PolicyRef, Sampling, StopReason, Task, Trajectory, Turn
from coevolve.records.evaluation import EvalRecord
from coevolve.records.pairs import Drop, DropReason, PairKind, PreferencePair
from coevolve.storage import jsonl

text = st.text()
number = st.floats(allow_nan=False, allow_infinity=False)
unit = st.floats(0, 1)
ids = st.lists(st.integers(0, 2**31)).map(tuple)
messages = st.lists(st.builds(Message, role=st.sampled_from(["system", "user", "assistant"]), content=text)).map(tuple)
scalars = st.one_of(text, st.integers(-(2**53), 2**53), st.booleans(), st.none())
tasks = st.builds(Task, env=text, task_id=text, split=text, kind=text, data=st.dictionaries(text, scalars))
turns = st.builds(Turn, text=text, action=st.none() | text, observation=text, score=number, token_ids=ids)
policies = st.builds(PolicyRef, name=text, sha256=text, base=text, revision=text)
samplings = st.builds(Sampling, temperature=st.floats(0, 2), max_new_tokens=st.integers(1, 4096))
trajectories = st.builds(
    Trajectory,
    task=tasks,
    agent=st.sampled_from(["target", "failure", "expert"]),
    policy=st.none() | policies,
    sampling=st.none() | samplings,
    seed=st.integers(0, 2**63),
    protocol=st.sampled_from(["paper", "fixed"]),
    prompt=messages,
    turns=st.lists(turns).map(tuple),
    reward=unit,
    raw_score=number,
    stop=st.sampled_from(StopReason),
    error=text,
    seconds=st.floats(0, 1e6),
)
pairs = st.builds(
    PreferencePair,
    task_id=text,
    kind=st.sampled_from(PairKind),
    prompt=messages,
    chosen=messages,
    rejected=messages,
    chosen_token_ids=st.lists(ids).map(tuple),
    rejected_token_ids=st.lists(ids).map(tuple),
    chosen_reward=unit,
    rejected_reward=unit,
    lambda_dpo=unit,
    lambda_sft=unit,
)
evaluated = st.builds(
    EvalRecord, task_id=text, split=text, reward=unit, stop=st.sampled_from(StopReason), samples=st.integers(1, 9)
)
drops = st.builds(Drop, task_id=text, reason=st.sampled_from(DropReason), ids=st.lists(text).map(tuple), detail=text)


@settings(max_examples=60)
@given(st.lists(st.one_of(trajectories, pairs, drops, evaluated), min_size=1))
def test_records_survive_a_file_unchanged(tmp_path_factory, records):
    for kind in {type(record) for record in records}:
        path = tmp_path_factory.mktemp("records") / "records.jsonl"
        numbered = enumerate(record for record in records if type(record) is kind)
        unique = {record.unique_key() or number: record for number, record in numbered}  # as a file has them
        of_kind = [*unique.values()]
        jsonl.write(path, of_kind)
        assert jsonl.read(path, kind) == of_kind
        assert len(path.read_bytes().split(b"\n")) == len(of_kind) + 1, "one line a record, whatever the text holds"


def test_measured_fields_do_not_change_the_digest():
    episode = _episode()
    assert episode.model_copy(update={"seconds": 9.0, "attempts": 3}).digest() == episode.digest()
    assert episode.model_copy(update={"reward": 0.25}).digest() != episode.digest()


def test_records_are_frozen_and_closed():
    with pytest.raises(ValidationError):
        _episode().reward = 1.0
    with pytest.raises(ValidationError, match="surprise"):
        Message.model_validate({"role": "user", "content": "", "surprise": 1})


@pytest.mark.parametrize("reward", [-1.01, 1.01, float("nan")])
def test_a_reward_that_no_environment_gives_is_refused(reward):
    with pytest.raises(ValidationError):
        _episode(reward=reward)


def test_another_schema_version_is_refused():
    line = _episode().to_json().replace('"schema_version":1', '"schema_version":2')
    with pytest.raises(ValidationError, match="schema_version"):
        Trajectory.from_json(line)


def test_the_completion_ends_with_the_last_action():
    roles = [message.role for message in _episode().completion]
    assert roles == ["assistant", "user", "assistant"]


def _episode(reward: float = 0.5) -> Trajectory:
    return episode("t", reward, [turn("look", "a room")] * 2)


def test_an_episode_of_a_policy_stands_once_in_a_file_and_an_experts_may_be_listed_twice(tmp_path):
    played = episode(policy=PolicyRef(name="tiny", sha256="1" * 64))
    path = tmp_path / "episodes.jsonl"
    for several in ([played, played.model_copy(update={"sample": 1})], [episode(agent="expert")] * 2):
        jsonl.write(path, several)
        assert jsonl.read(path, Trajectory) == several
    jsonl.write(path, [played, played])
    with pytest.raises(UserError, match=r"episodes\.jsonl: line 2 repeats the Trajectory of line 1"):
        jsonl.read(path, Trajectory)
