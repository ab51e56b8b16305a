"""Episodes that open with given turns, and pairs of steps along an expert's trajectory, in a small real environment."""

import functools

import pytest
from builders import turn
from rollout.keydoor import ROOMS, KeyDoor, gold, recorded, task
from rollout.playing import content, play
from rollout.runs import SAMPLES, TASKS, run
from templates.models import tokenizer

from coevolve.chat.chat_template import Renderer
from coevolve.chat.prompts import write_action
from coevolve.errors import UserError
from coevolve.methods.settings import PairingConfig, PairWeights, StepsConfig
from coevolve.methods.step_pairs import pair_steps, with_phases
from coevolve.policies.base import ScriptedPolicy
from coevolve.records.episodes import StopReason
from coevolve.records.pairs import DropReason, PairKind
from coevolve.storage import jsonl

SETTINGS = StepsConfig(samples=4, temperature=1.0, margin=0.01, every=1)
RULES = PairingConfig(expert_beaten="drop", max_extra_turns=None, within=False, hard_negative=None)
WEIGHTS = PairWeights(dpo=1.0, sft=0.5)


def resume(folder, policy, tasks, prefixes=None, *, envs=3, **settings):
    """Episodes that go on from `prefixes`, journal named after the policy."""
    path = folder / f"{policy.name}.jsonl"
    return play(path, [KeyDoor() for _ in range(envs)], tasks, policy, prefixes=prefixes, **settings)


def expert(folder, number=2, texts=None):
    """What the recorded texts, else the gold ones, bring in task `number`, as an expert's trajectory."""
    policy = recorded({f"door{number}": texts or gold(number)}, name=f"expert{number}")
    (episode,) = resume(folder, policy, [task(number)], agent="expert")
    return episode.model_copy(update={"policy": None, "sampling": None})


def test_an_episode_goes_on_from_the_turns_it_is_given(tmp_path):
    whole, turns_seen = expert(tmp_path), []

    def script(conversation):
        turns_seen.append(len(conversation.turns))
        return gold(2)[len(conversation.turns)]

    starts = [0, 1, 3, 5]
    played = resume(tmp_path, ScriptedPolicy(script), [task(2)] * 4, [whole.turns[:t] for t in starts])
    assert [t.turns for t in played] == [whole.turns] * 4
    assert [(t.sample, t.reward, t.stop) for t in played] == [(n, 1.0, StopReason.DONE) for n in range(4)]
    assert sorted(turns_seen) == sorted(turn for t in starts for turn in range(t, 5))


def test_given_turns_count_towards_the_step_limit_and_keep_their_token_ids(tmp_path):
    waits = [turn("wait", "old", token_ids=(n, 2)) for n in range(ROOMS + 3)]
    never = ScriptedPolicy(lambda conversation: pytest.fail("no turn is left"))
    (played,) = resume(tmp_path, never, [task(0)], [waits])
    assert (played.stop, played.reward) == (StopReason.STEP_LIMIT, 0.0)
    assert [turn.token_ids for turn in played.turns] == [turn.token_ids for turn in waits]
    assert {turn.observation for turn in played.turns} == {"That does not work here."}


def test_an_environment_that_breaks_on_the_given_turns_is_started_again(tmp_path):
    broken = task(1).model_copy(update={"data": {"key": 1, "broken": 1}})
    prefix = expert(tmp_path, 1).turns[:4]
    rest = recorded({"door1": gold(1)})
    (failed,) = resume(tmp_path, rest, [broken], [prefix], envs=1)
    assert (failed.stop, len(failed.turns)) == (StopReason.ENV_ERROR, 2)
    assert resume(tmp_path, rest, [broken], [prefix], envs=1) == [failed]
    (tmp_path / "recorded.jsonl").unlink()
    (again,) = resume(tmp_path, rest, [broken], [prefix], envs=1, retries=1)
    assert (again.reward, again.attempts) == (1.0, 2)


@pytest.fixture(scope="module")
def prefixes(tmp_path_factory):
    return [expert(tmp_path_factory.mktemp("gold"), number).turns[: 1 + number % 3] for number in range(len(TASKS))]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, prefixes):
    return run(tmp_path_factory.mktemp("run") / "episodes.jsonl", prefixes=prefixes)


def test_a_real_policy_goes_on_from_prefixes_alone_and_side_by_side_alike(uninterrupted, prefixes, tmp_path):
    for episode, prefix in zip(uninterrupted, [p for p in prefixes for _ in range(SAMPLES)], strict=True):
        assert episode.turns[: len(prefix)] == prefix
        assert len(episode.turns) > len(prefix) and all(turn.token_ids for turn in episode.turns[len(prefix) :])
    assert content(run(tmp_path / "one.jsonl", envs=1, prefixes=prefixes)) == content(uninterrupted)


def test_a_killed_run_of_prefixes_is_taken_up_again_and_one_of_other_prefixes_refused(
    uninterrupted, prefixes, tmp_path
):
    path = tmp_path / "episodes.jsonl"
    jsonl.write(path, uninterrupted[:7])
    with path.open("ab") as file:
        file.write(uninterrupted[7].to_json().encode()[:100])
    resumed = run(path, prefixes=prefixes)
    assert content(resumed) == content(uninterrupted) and resumed[:7] == uninterrupted[:7]
    with pytest.raises(UserError, match=r"episode .* is of another"):
        run(path, prefixes=[*prefixes[:-1], [turn("wait")]])


def paired(folder, agent, scorer, experts, *, tasks=None, settings=SETTINGS, rules=RULES, kind=PairKind.EXPERT_STEP):
    """`pair_steps` with scripted players."""
    explore = functools.partial(resume, folder, ScriptedPolicy(agent, "agent"))
    score = functools.partial(resume, folder, ScriptedPolicy(scorer, "scorer"), samples=settings.samples)
    tasks = tasks or [episode.task for episode in experts]
    return pair_steps(settings, rules, WEIGHTS, tasks, experts, explore, score, kind)


def idle(conversation):
    return write_action("wait", "nothing to do")


def sometimes(conversation):
    """Opens the door of task 2 in one of four samples, if the key was taken."""
    actions = [turn.action for turn in conversation.turns]
    lucky = int(conversation.key.rpartition("#")[2]) % 4 == 0
    onwards = "open door" if actions.count("go right") == ROOMS - 1 else "go right"
    return write_action(onwards if lucky else "wait")


def reasons(result):
    return [drop.reason for drop in result.drops]


def test_a_step_is_paired_where_it_is_worth_less_than_the_experts(tmp_path):
    """Key in room 2: right, right, take key, right, open door; the agent walks right once, then waits."""

    def agent(conversation):
        return gold(2)[1] if len(conversation.turns) == 1 else idle(conversation)

    demonstration = expert(tmp_path)
    result = paired(tmp_path, agent, sometimes, [demonstration])
    assert [(v.turn, v.expert, v.explored) for v in result.step_values] == [
        (2, (1.0 + 3 * 0.5) / 4, 0.0),  # with the key, one of four opens the door; without it none earns anything
        (3, (1.0 + 3 * 0.5) / 4, (1.0 + 3 * 0.5) / 4),  # one step later in the corridor makes no difference
        (4, 1.0, (1.0 + 3 * 0.5) / 4),  # the last step is values what it earns
    ]
    assert reasons(result) == [DropReason.IDENTICAL, DropReason.MARGIN]
    assert [pair.prompt[-1].content for pair in result.pairs] == [demonstration.turns[t].observation for t in (1, 3)]
    assert (result.count.candidates, result.count.pairs, result.count.swapped, result.count.cut) == (4, 2, 0, 0)
    assert result.count.other_prompt == 0
    assert result.count.drops == {"identical": 1, "margin": 1}


def test_a_pair_of_steps_is_what_both_did_after_the_same_beginning(tmp_path):
    demonstration = expert(tmp_path)
    first, _ = (result := paired(tmp_path, idle, sometimes, [demonstration])).pairs
    explored = result.explored[1]
    assert first.kind is PairKind.EXPERT_STEP and first.task_id == "door2"
    assert [m.role for m in first.prompt] == ["user", "assistant", "user", "assistant", "user"]
    assert [m.content for m in first.prompt[1::2]] == gold(2)[:2]
    assert [m.content for m in first.chosen[::2]] == gold(2)[2:]
    assert [m.content for m in first.rejected[::2]] == [idle(None)] * (ROOMS + 3 - 2)
    assert (first.chosen_id, first.rejected_id) == (demonstration.digest(), explored.digest())
    assert (first.chosen_reward, first.rejected_reward) == (1.0, 0.0)
    assert (first.lambda_dpo, first.lambda_sft) == (1.0, 0.5)


def test_a_pair_of_groups_is_their_turns_alone_and_has_a_phase(tmp_path):
    """Groups of right; right, take key; right, open door. An agent that waits is worth what the scorer makes of it."""
    settings, demonstration = SETTINGS.model_copy(update={"curriculum": True}), expert(tmp_path)
    result = paired(tmp_path, idle, sometimes, [demonstration], settings=settings, kind=PairKind.EXPERT_GROUP)
    with_key = (1.0 + 3 * 0.5) / 4
    assert [(v.turn, v.length, v.expert, v.explored) for v in result.step_values] == [
        (0, 1, 0.0, 0.0),
        (1, 2, with_key, 0.0),
        (3, 2, 1.0, with_key),
    ]
    assert [(drop.reason, drop.kind) for drop in result.drops] == [(DropReason.MARGIN, PairKind.EXPERT_GROUP)]
    assert result.count.candidates == 3
    early, late = result.pairs
    for pair, begin in ((early, 1), (late, 3)):
        assert pair.kind is PairKind.EXPERT_GROUP and len(pair.prompt) == 1 + 2 * begin
        assert [m.content for m in pair.chosen[::2]] == gold(2)[begin : begin + 2]
        assert [m.content for m in pair.rejected[::2]] == [idle(None)] * 2 and len(pair.rejected) == 3
    assert (early.chosen_reward, early.rejected_reward) == (with_key, 0.0)
    assert (early.phase, late.phase) == (1, 3), "as long, and with less difference"
    values = ((0.5, 0.4), (1.0, 0.6), (1.0, 0.1))
    graded = [early.model_copy(update={"chosen_reward": high, "rejected_reward": low}) for high, low in values]
    assert [each.phase for each in with_phases(graded)] == [3, 2, 1]


def test_a_group_with_a_step_that_differs_is_compared_and_one_with_equal_steps_not(tmp_path):
    """Another last step: of the three groups only the last differs, and it begins with an equal step."""
    texts = [*gold(2)[:4], idle(None)]

    def agent(conversation):
        return texts[min(len(conversation.turns), 4)]

    result = paired(tmp_path, agent, sometimes, [expert(tmp_path)], kind=PairKind.EXPERT_GROUP)
    assert reasons(result) == [DropReason.IDENTICAL] * 2
    (pair,) = result.pairs
    assert pair.chosen[0] == pair.rejected[0] and pair.chosen[2] != pair.rejected[2]


def test_of_two_experts_of_a_task_the_first_is_followed(tmp_path):
    longer = expert(tmp_path / "longer", texts=[idle(None), *gold(2)])
    shorter = expert(tmp_path / "shorter")
    for experts in ([longer, shorter], [shorter, longer]):
        result = paired(tmp_path / f"{len(experts[0].turns)}", idle, idle, experts)
        assert {values.expert_id for values in result.step_values} == {experts[0].digest()}
        assert result.count.candidates == len(experts[0].turns) - 1


@pytest.mark.parametrize("margin", [0.49, 0.51])
def test_the_margin_is_that_between_the_steps(tmp_path, margin):
    result = paired(tmp_path, idle, idle, [expert(tmp_path)], settings=SETTINGS.model_copy(update={"margin": margin}))
    assert len(result.pairs) == (2 if margin < 0.5 else 0)
    assert result.count.drops[DropReason.MARGIN] == 4 - len(result.pairs)


@pytest.mark.parametrize("rule", ["drop", "swap"])
def test_an_agent_that_does_better_is_dropped_or_preferred_as_in_pairing(tmp_path, rule):
    """An expert that only takes the key, against an agent that then opens the door; the scorer tries the door."""
    poor = expert(tmp_path, texts=[*gold(2)[:3], *[write_action("wait")] * 4])

    def agent(conversation):
        return [*gold(2), *gold(2)][len(conversation.turns)]

    def door(conversation):
        return write_action("open door")

    result = paired(tmp_path, agent, door, [poor], rules=RULES.model_copy(update={"expert_beaten": rule}))
    assert poor.reward == 0.5 and {episode.reward for episode in result.explored[:3]} == {1.0}
    if rule == "drop":
        assert not result.pairs and DropReason.EXPERT_BEATEN in reasons(result)
        return
    (pair,) = result.pairs
    assert (pair.chosen_reward, pair.rejected_reward) == (1.0, 0.5)
    assert result.count.swapped == 1 and pair.rejected_id == poor.digest()


@pytest.mark.parametrize(("extra", "turns"), [(None, 5), (1, 4), (0, 3)])
def test_the_rejected_side_is_cut_to_the_experts_length_as_in_pairing(tmp_path, extra, turns):
    rules = RULES.model_copy(update={"max_extra_turns": extra})
    result = paired(tmp_path, idle, sometimes, [expert(tmp_path)], rules=rules)
    assert len(result.pairs[0].rejected_token_ids) == turns and len(result.pairs[0].chosen_token_ids) == 3
    assert result.count.cut == (0 if extra is None else len(result.pairs))


def test_every_reason_why_a_place_gives_no_pair_is_counted(tmp_path):
    """Nine branch points of four experts and a task without one; what cannot give a pair is not scored."""
    changed, short, right = expert(tmp_path, 0), expert(tmp_path, 1), expert(tmp_path, 3)
    other = changed.turns[0].model_copy(update={"observation": "You see nothing."})
    changed = changed.model_copy(update={"turns": (other, *changed.turns[1:])})

    def agent(conversation):
        turn = len(conversation.turns)
        if conversation.key.startswith("door1"):
            return None
        return [*gold(3), write_action("wait")][max(0, turn - 1)]

    experts = [changed, short.model_copy(update={"turns": short.turns[:3]}), right, right]
    result = paired(tmp_path, agent, idle, experts, tasks=[task(n) for n in (0, 1, 2, 3)])
    assert result.count.candidates == 1 + 4 + 2 + 4 == result.count.pairs + sum(result.count.drops.values())
    assert [(drop.task_id, drop.reason) for drop in result.drops if drop.task_id != "door3"] == [
        ("door2", DropReason.MISSING_EXPERT),
        *[("door0", DropReason.REPLAY_DIFFERS)] * 4,
        *[("door1", DropReason.EMPTY)] * 2,
    ]
    assert {values.task_id for values in result.step_values} <= {"door3"}
    assert {drop.kind for drop in result.drops} == {PairKind.EXPERT_STEP}


def test_outcomes_alike_are_not_scored(tmp_path):
    """The agent turns back once and still opens the door."""

    def agent(conversation):
        actions = [turn.action for turn in conversation.turns]
        if "go left" not in actions:
            return write_action("go left")
        walked = actions.count("go right") - actions.count("go left")
        return write_action("open door" if walked == ROOMS - 1 else "go right")

    result = paired(tmp_path, agent, idle, [expert(tmp_path, 1)], settings=SETTINGS.model_copy(update={"every": 2}))
    assert len(result.explored) == 2 and not result.step_values
    assert reasons(result) == [DropReason.TIE] * 2
    assert not (tmp_path / "scorer.jsonl").read_text()


def test_continuations_that_broke_are_no_reward(tmp_path):
    """This environment breaks at the first action after the key is taken, however often it is started."""
    demonstration = expert(tmp_path)
    broken = demonstration.model_copy(update={"task": task(2).model_copy(update={"data": {"key": 2, "broken": 99}})})
    result = paired(tmp_path, idle, idle, [broken])
    assert [(v.turn, v.expert, v.explored) for v in result.step_values] == [
        (1, 0.0, 0.0),
        (2, None, 0.0),
    ]
    assert reasons(result) == [DropReason.ENV_ERROR] * 2 + [DropReason.MARGIN, DropReason.ENV_ERROR]


@pytest.mark.parametrize("name", ["tiny", "llama2", "qwen3"])
def test_the_expert_s_beginning_is_context_and_not_trained_on(tmp_path, name):
    """What is trained on are the ids that were played: the prefix as context, each action after it."""
    renderer = Renderer(tokenizer(name))
    result = paired(tmp_path, idle, sometimes, [expert(tmp_path)])
    explored = {episode.digest(): episode for episode in result.explored}
    assert result.pairs
    for pair in result.pairs:
        begin = len(pair.prompt) // 2
        episode = explored[pair.rejected_id]
        rendered = renderer.render(pair.prompt, pair.rejected, pair.rejected_token_ids)
        context = renderer.conversation_ids(episode.prompt, episode.turns[:begin])
        assert rendered.input_ids[: len(context)] == context and not any(rendered.action_mask[: len(context)])
        last = renderer.conversation_ids(episode.prompt, episode.turns[:-1])
        assert rendered.input_ids[: len(last)] == last and all(rendered.action_mask[len(last) :])
        trained = [token for token, acted in zip(rendered.input_ids, rendered.action_mask, strict=True) if acted]
        assert trained.count(renderer.end_of_turn) == len(episode.turns) - begin
