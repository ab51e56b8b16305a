"""IPR's and HPL's pairs: of whole trajectories by the method's recipe, and of the experts' steps and groups of them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from coevolve.config.suite import engine, exploration_temperature
from coevolve.pipeline import work
from coevolve.pipeline.job import Job
from coevolve.pipeline.stage import SAMPLED, Stage
from coevolve.pipeline.stages import pairs
from coevolve.pipeline.stages.pairs import PAIRS
from coevolve.records.episodes import Agent, Task, Trajectory, Turn
from coevolve.records.pairs import STEP_KINDS, PairingSummary, PairKind
from coevolve.storage import jsonl

if TYPE_CHECKING:
    from coevolve.config.suite import Suite
    from coevolve.pipeline.stage import Inputs, PlannedJob
    from coevolve.records.provenance import Workload

log = logging.getLogger(__name__)


def run(job: Job, out: Path) -> PairingSummary:
    """Write `pairs.jsonl`, `drops.jsonl` and `summary.json` as `pairs` does, `explored.jsonl` and `step_values.jsonl`.

    The inputs are those of `pairs` and of `rollout`, and the policy `scorer`. Every candidate is a pair or a
    drop (asserted in `pairing`).
    """
    from coevolve.methods import pairing, step_pairs
    from coevolve.methods.step_pairs import StepPairing
    from coevolve.pipeline.stages.parts.prompting import few_shot_example

    recipe, rules = job.recipe.agents[job.agent], job.suite.pairing
    tasks, experts = job.records("tasks", Task), job.records("experts", Trajectory)
    whole_kinds = {kind: weights for kind, weights in recipe.trains_on.items() if kind not in STEP_KINDS}
    rollouts: dict[Agent, list[Trajectory]] = {job.agent: job.records(job.agent, Trajectory)}
    whole_recipe = recipe.model_copy(update={"trains_on": whole_kinds})
    whole = pairing.pair(whole_recipe, rules, tasks, experts, rollouts, few_shot_example(job, "excluded_example"))
    config, stepped, players = job.suite.steps, list[StepPairing](), list[_Player]()
    for kind in (kind for kind in STEP_KINDS if kind in recipe.trains_on):
        suffix = "" if kind is PairKind.EXPERT_STEP else f"_{kind}"
        agent = _Player(job, "policy", suffix, exploration_temperature(job.suite), samples=1)
        scorer = _Player(job, "scorer", suffix, config.temperature, config.samples)
        weights = recipe.trains_on[kind]
        stepped.append(step_pairs.pair_steps(config, rules, weights, tasks, experts, agent, scorer, kind))
        players += [agent, scorer]
        whole = replace(
            whole,
            pairs=whole.pairs + stepped[-1].pairs,
            drops=whole.drops + stepped[-1].drops,
            kinds={**whole.kinds, kind: stepped[-1].count},
        )
    jsonl.write(out / "explored.jsonl", [episode for each in stepped for episode in each.explored])
    jsonl.write(out / "step_values.jsonl", [values for each in stepped for values in each.step_values])
    summary = pairs.write(whole, out, played={player.name: player.cost for player in players})
    return summary.model_copy(update={"sampled_tokens": sum(player.cost["tokens"] for player in players)})


class _Player:
    """The policy in an input that continues prefixes, for a pair kind; `cost` counts episodes and sampled tokens."""

    def __init__(self, job: Job, policy: str, kind: str, temperature: float, samples: int) -> None:
        self.name, self.cost = f"{policy}{kind}", {"episodes": 0, "tokens": 0}
        self._job, self._policy, self._temperature, self._samples = job, policy, temperature, samples

    def __call__(self, tasks: Sequence[Task], prefixes: Sequence[Sequence[Turn]]) -> list[Trajectory]:
        """`samples` episodes of each task, next to each other."""
        from coevolve.pipeline.stages.parts.playing import play

        if not tasks:
            return []
        log.info("%s: %d episodes to play.", self.name, len(tasks) * self._samples)
        episodes = play(
            self._job,
            tasks,
            self._job.file(self._policy).parent,
            temperature=self._temperature,
            samples=self._samples,
            prefixes=prefixes,
            name=self.name,
        )
        lengths = [len(prefix) for prefix in prefixes for _ in range(self._samples)]
        sampled = [turn for episode, length in zip(episodes, lengths, strict=True) for turn in episode.turns[length:]]
        self.cost["episodes"] += len(episodes)
        self.cost["tokens"] += sum(len(turn.token_ids) for turn in sampled)
        return episodes


def inputs(
    playing: Inputs, experts: PlannedJob, agent: str, rollout: PlannedJob, scorer: PlannedJob, excluded: Inputs
) -> Inputs:
    """The inputs of a rollout and of `pairs`, and the policy whose continuations value the steps."""
    left_out = ("example",) if excluded else ()
    return {
        **{name: files for name, files in playing.items() if name not in left_out},
        "experts": experts["experts.jsonl"],
        agent: rollout["episodes.jsonl"],
        "scorer": scorer["policy.json"],
        **excluded,
    }


def cost(suite: Suite, job: PlannedJob) -> Workload:
    """Continuations from steps of the experts' trajectories; on average half a trajectory is left."""
    configured, expected = work.setting(suite, job)
    kinds, config = suite.recipes[job.subject.branch.method].agents["target"].trains_on, configured.steps
    points = {PairKind.EXPERT_STEP: expected.turns / config.every, PairKind.EXPERT_GROUP: config.groups}
    starts = expected.experts * sum(number for kind, number in points.items() if kind in kinds)
    return work.playing_work(expected, starts * (1 + 2 * config.samples) / 2)


STAGE = Stage(
    help="Build IPR's and HPL's preference pairs of steps from the rewards of sampled continuations.",
    run=run,
    reads=(*SAMPLED, "recipes", "pairing", "steps"),
    files=(*PAIRS, "explored.jsonl", "step_values.jsonl"),
    modules=("domain",),
    plays=engine,
    cost=cost,
    image="sample",
)
