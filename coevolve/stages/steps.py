"""IPR's pairs: of whole trajectories by the method's recipe, and of steps along the experts' trajectories."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from coevolve.config.derived.protocol import exploration_temperature
from coevolve.config.names import PairKind
from coevolve.methods import pairing, step_pairs
from coevolve.records.episodes import Agent, Task, Trajectory, Turn
from coevolve.records.pairs import PairingSummary
from coevolve.run.job import Job
from coevolve.stages import pairs
from coevolve.stages.parts.playing import play
from coevolve.stages.parts.prompting import few_shot_example
from coevolve.storage import jsonl

log = logging.getLogger(__name__)


def run(job: Job, out: Path) -> PairingSummary:
    """Write `pairs.jsonl`, `drops.jsonl` and `summary.json` as `pairs` does, `explored.jsonl` and `step_values.jsonl`.

    The inputs are those of `pairs` and of `rollout`, and the policy `scorer`. Every candidate is a pair or a
    drop (asserted in `pairing`).
    """
    recipe, rules = job.recipe.agents[job.agent], job.suite.pairing
    tasks, experts = job.records("tasks", Task), job.records("experts", Trajectory)
    whole_kinds = {kind: weights for kind, weights in recipe.trains_on.items() if kind is not PairKind.EXPERT_STEP}
    rollouts: dict[Agent, list[Trajectory]] = {job.agent: job.records(job.agent, Trajectory)}
    whole_recipe = recipe.model_copy(update={"trains_on": whole_kinds})
    whole = pairing.pair(whole_recipe, rules, tasks, experts, rollouts, few_shot_example(job, "excluded_example"))
    config = job.suite.steps
    agent = _Player(job, "policy", exploration_temperature(job.suite), samples=1)
    scorer = _Player(job, "scorer", config.temperature, config.samples)
    weights = recipe.trains_on[PairKind.EXPERT_STEP]
    stepped = step_pairs.pair_steps(config, rules, weights, tasks, experts, agent, scorer)
    both = replace(
        whole,
        pairs=whole.pairs + stepped.pairs,
        drops=whole.drops + stepped.drops,
        kinds={**whole.kinds, PairKind.EXPERT_STEP: stepped.count},
    )
    jsonl.write(out / "explored.jsonl", stepped.explored)
    jsonl.write(out / "step_values.jsonl", stepped.step_values)
    played = {player.name: player.cost for player in (agent, scorer)}
    summary = pairs.write(both, out, played=played)
    return summary.model_copy(update={"sampled_tokens": agent.cost["tokens"] + scorer.cost["tokens"]})


class _Player:
    """The policy in the input `name` that continues prefixes; `cost` counts its episodes and its sampled tokens."""

    def __init__(self, job: Job, name: str, temperature: float, samples: int) -> None:
        self.name, self.cost = name, {"episodes": 0, "tokens": 0}
        self._job, self._temperature, self._samples = job, temperature, samples

    def __call__(self, tasks: Sequence[Task], prefixes: Sequence[Sequence[Turn]]) -> list[Trajectory]:
        """`samples` episodes of each task, next to each other."""
        if not tasks:
            return []
        log.info("%s: %d episodes to play.", self.name, len(tasks) * self._samples)
        episodes = play(
            self._job,
            tasks,
            self._job.file(self.name).parent,
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
