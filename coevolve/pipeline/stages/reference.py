"""Reference log-probs, computed once for all trainings that share the reference policy and the trajectories."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coevolve.chat.prompts import without_example
from coevolve.pipeline import work
from coevolve.pipeline.branch import SOURCES
from coevolve.pipeline.job import Job
from coevolve.pipeline.stage import Stage
from coevolve.progress import Progress
from coevolve.records.episodes import Message, Trajectory
from coevolve.records.pairs import PreferencePair

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from coevolve.chat.chat_template import Renderer
    from coevolve.config.suite import Suite
    from coevolve.pipeline.branch import AgentName
    from coevolve.pipeline.stage import Inputs, PlannedJob
    from coevolve.records.pairs import PairKind
    from coevolve.records.provenance import Workload


def run(job: Job, out: Path) -> dict[str, Any]:
    """Score all trajectories that can be paired (or all pairs), cut to the context, and write `scores.safetensors`.

    One process on one device. It loads the weights as a training does, in float32, and computes in the
    model's `training_dtype` as the trainers do, so that the loss of the first step is ln 2 up to rounding. In bfloat16
    that is several hundredths of a nat a trajectory, because trainings pack their rows otherwise.
    """
    from coevolve.chat.chat_template import Renderer
    from coevolve.pipeline.stages.parts.training import prepare_process
    from coevolve.policies import loading
    from coevolve.train import policy_io, reference_logps

    prepare_process(job.threads)
    policy = job.file("policy").parent
    renderer = Renderer(loading.load_tokenizer(policy))
    sequences = reference_logps.without_prefixes(ids[: job.model.context] for ids in _sequences(job, renderer))
    model = policy_io.load_checked(policy)
    logps = reference_logps.score(model, sequences, Progress("rows").report, job.model.training_dtype)
    reference_logps.write(out / "scores.safetensors", sequences, logps)
    return {"rows": len(sequences), "tokens": sum(map(len, sequences))}


def _sequences(job: Job, renderer: Renderer) -> Iterator[Sequence[int]]:
    """Token ids of the trajectories that pairs are made of; prompts without the few-shot example, as in pairs."""
    from coevolve.pipeline.stages.parts.prompting import few_shot_example
    from coevolve.pipeline.stages.parts.training import tokenize

    if "pairs" in job.inputs:
        for pair in job.records("pairs", PreferencePair):
            yield renderer.render(pair.prompt, pair.chosen, pair.chosen_token_ids).input_ids
            yield renderer.render(pair.prompt, pair.rejected, pair.rejected_token_ids).input_ids
    excluded_example = few_shot_example(job, "excluded_example")
    sources = job.inputs.keys() & SOURCES.values()
    trajectories = _comparable([trajectory for name in sources for trajectory in job.records(name, Trajectory)])
    trimmed = [without_example(trajectory, excluded_example) for trajectory in trajectories]
    yield from (sequence.input_ids for sequence in tokenize(list(_as_in_pairs(trimmed)), renderer))


def _as_in_pairs(trajectories: Sequence[Trajectory]) -> Iterator[Trajectory]:
    """Each trajectory under its prompt, and under that of every trajectory of its task with a higher reward.

    A pair has the prompt of its chosen side. Prompts that differ before the task are not paired.
    """
    alike = defaultdict[tuple[str, tuple[Message, ...]], list[Trajectory]](list)
    for trajectory in trajectories:
        alike[trajectory.task.task_id, trajectory.prompt[:-1]].append(trajectory)
    for trajectory in trajectories:
        others = alike[trajectory.task.task_id, trajectory.prompt[:-1]]
        better = (other.prompt for other in others if other.reward > trajectory.reward)
        for prompt in dict.fromkeys([trajectory.prompt, *better]):
            yield trajectory.model_copy(update={"prompt": prompt})


def _comparable(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """The trajectories with an action, of tasks with more than one reward: no rule makes pairs of others."""
    acting = [trajectory for trajectory in trajectories if trajectory.turns]
    rewards = defaultdict[str, set[float]](set)
    for trajectory in acting:
        rewards[trajectory.task.task_id].add(trajectory.reward)
    return [trajectory for trajectory in acting if len(rewards[trajectory.task.task_id]) > 1]


def inputs(
    kinds: Iterable[PairKind], policy: PlannedJob, experts: PlannedJob, rollouts: Mapping[AgentName, PlannedJob]
) -> tuple[str, Inputs]:
    """What is scored, in one word, and the reference policy with the trajectories that pairs of these kinds have."""
    from coevolve.methods.pairing import KIND_AGENTS

    files = {agent: job["episodes.jsonl"] for agent, job in rollouts.items()} | {"experts": experts["experts.jsonl"]}
    used = {source for kind in kinds for source in KIND_AGENTS[kind]}
    names = [name for source, name in SOURCES.items() if source in used]
    # A recipe may name an agent that does not explore; the pairing reports it.
    inputs: Inputs = {name: files[name] for name in names if name in files}
    return "_".join(names), {"policy": policy["policy.json"], **inputs}


def cost(suite: Suite, job: PlannedJob) -> Workload:
    """One forward pass over what is scored: both sides of pairs, or all trajectories of a task with a failure."""
    from coevolve.config.models import FORWARD, TRAIN
    from coevolve.records.provenance import Workload

    configured, expected = work.setting(suite, job)
    if job.wildcards["of"] == "pairs":
        tokens = work.pair_tokens(configured, job.subject.branch, job.agent, expected)
    else:
        sources = job.wildcards["of"].split("_")
        experts = sources.count("experts")
        rollouts = (len(sources) - experts) * configured.rollout.k
        failed = 1 - (1 - expected.failures) ** rollouts
        explored = work.explored_tasks(configured, job.subject.branch, expected)
        tokens = explored * failed * (experts + rollouts) * expected.tokens
    return Workload(train=tokens * FORWARD / TRAIN, kept=tokens, starts=tokens > 0)


STAGE = Stage(
    help="Compute a reference policy's log-probs, once for all trainings that share them.",
    run=run,
    reads=("models",),
    files=("scores.safetensors",),
    cost=cost,
    image="train",
)
