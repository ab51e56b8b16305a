"""Recorded tokens scored again with the policy that sampled them: a sample of turns, counted and never a failure.

A batch of another size or another processor changes the last bits of logits, so a greedy token can differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pydantic import Field

from coevolve.chat.chat_template import Ids
from coevolve.errors import UserError
from coevolve.follow import reexecution
from coevolve.progress import Progress
from coevolve.records.base import Record, is_none
from coevolve.records.episodes import Trajectory, Turn
from coevolve.records.provenance import Provenance
from coevolve.storage import jsonl, policy_dir, provenance

if TYPE_CHECKING:
    from coevolve.follow.reexecution import ReadIds


class Rescoring(Record):
    """What a policy gives to the tokens of a sample of `turns` of the `of_turns` that it sampled.

    `logp`: the mean log-prob of a token in nats. `greedy` counts tokens that were sampled at temperature 0, `agree`
    those of them that are the policy's most probable ones; `gap` is the largest distance in nats of another one from
    it. `logp_difference` is the largest from a recorded log-prob in nats; None if none was recorded.
    """

    policy: str
    sha256: str
    turns: int
    of_turns: int
    tokens: int
    logp: float
    greedy: int
    agree: int
    gap: float
    logp_difference: float | None = Field(default=None, exclude_if=is_none)

    def __str__(self) -> str:
        recorded = self.logp_difference
        end = "" if recorded is None else f", at most {recorded:.2g} from the recorded ones"
        return (
            f"{self.tokens:,} tokens of {self.turns:,} of {self.of_turns:,} turns were scored with {self.policy}: "
            f"their mean log-prob is {self.logp:.4f} nats{end}. {self.agree:,} of {self.greedy:,} greedy tokens are "
            f"the policy's; the farthest other one is {self.gap:.2g} nats below it."
        )


@dataclass(frozen=True)
class SampledTurn:
    """A turn of an episode, which the policy sampled in a job with this provenance; `read`: what it read there."""

    record: Provenance
    read: ReadIds
    episode: Trajectory
    number: int

    @property
    def turn(self) -> Turn:
        """The turn."""
        return self.episode.turns[self.number]

    @property
    def greedy(self) -> bool:
        """Whether it was sampled at temperature 0."""
        return self.episode.sampling is not None and self.episode.sampling.temperature == 0

    def token_ids(self) -> tuple[Ids, Ids]:
        """The token ids of the conversation before the turn, as its policy read it, and those that it sampled."""
        return self.read(self.episode, self.number) or (), self.turn.token_ids


def rescore(folders: Sequence[Path], policy: Path, limit: int, given: Mapping[str, Any]) -> Rescoring:
    """Score up to `limit` turns of the policy in a directory, evenly spaced in the results' order.

    `given`: this machine's own settings. Raises `UserError` if no episode in the folders is of the policy.
    """
    from coevolve.policies.sampling import token_scores  # imports torch

    sha256 = policy_dir.digest(policy)
    played = [turn for folder in folders for turn in _turns(folder, policy, sha256, given)]
    if not played:
        raise UserError(
            f"--policy {policy}: no recorded token is of this policy (sha256 {sha256[:12]}); name the folder of "
            "the policy that played these episodes."
        )
    chosen, progress = played[:: math.ceil(len(played) / limit)], Progress("turns")
    logps, gaps, apart = list[float](), list[float](), list[float]()
    dtype = chosen[0].record.config["sampler"].get("dtype")
    scores = token_scores(policy, dtype, (turn.token_ids() for turn in chosen))
    for done, (turn, scored) in enumerate(zip(chosen, scores, strict=True), start=1):
        logps += scored.logps
        gaps += scored.gaps if turn.greedy else []
        apart += [abs(a - b) for a, b in zip(scored.logps, turn.turn.logps, strict=False)]
        progress.report(done, len(chosen))
    return Rescoring(
        policy=policy.as_posix(),
        sha256=sha256,
        turns=len(chosen),
        of_turns=len(played),
        tokens=len(logps),
        logp=fmean(logps),
        greedy=len(gaps),
        agree=gaps.count(0.0),
        gap=max(gaps, default=0.0),
        logp_difference=max(apart, default=None),
    )


def _turns(folder: Path, policy: Path, sha256: str, given: Mapping[str, Any]) -> Iterator[SampledTurn]:
    """The sampled turns of a policy in the folder of a result, in its order."""
    record, episodes = provenance.read(folder / provenance.NAME), jsonl.read(folder / "episodes.jsonl", Trajectory)
    if played := [each for each in episodes if each.policy and each.policy.sha256 == sha256]:
        record = reexecution.record_here(record, given)
        _, read = reexecution.token_reader(record, policy)
        for episode in played:
            for number, turn in enumerate(episode.turns):
                if turn.token_ids:
                    yield SampledTurn(record, read, episode, number)
