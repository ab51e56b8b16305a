"""IPR's and HPL's pairs: of whole trajectories by the method's recipe, and of the experts' steps and groups of them."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from coevolve.config.derived.protocol import exploration_temperature
from coevolve.config.names import STEP_KINDS, PairKind
from coevolve.methods import pairing, step_pairs
from coevolve.methods.step_pairs import StepPairing
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
