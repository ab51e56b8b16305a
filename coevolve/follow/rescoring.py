"""Recorded tokens scored again with the policy that sampled them: a sample of turns, counted and never a failure.

A batch of another size or another processor changes the last bits of logits, so a greedy token can differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import Field

from coevolve.errors import UserError
from coevolve.follow import reexecution
from coevolve.policies.base import Conversation
from coevolve.progress import Progress
from coevolve.records.base import Record, is_none
from coevolve.records.episodes import Trajectory
from coevolve.records.provenance import Provenance
from coevolve.storage import jsonl, policy_dir, provenance


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
    """A turn of an episode, which the policy sampled in a job with this provenance."""

    record: Provenance
    episode: Trajectory
    number: int


@dataclass(frozen=True)
class ScoredTokens:
    """Log-probs of a turn's tokens in nats; distances of greedy ones from the most probable; the recorded log-probs."""

    logps: Sequence[float]
    gaps: Sequence[float]
    recorded: Sequence[float]


def rescore(folders: Sequence[Path], policy: Path, limit: int) -> Rescoring:
    """Score up to `limit` turns of the policy in a directory, evenly spaced in the results' order.

    Raises `UserError` if no episode in the folders is of the policy.
    """
    import torch

    from coevolve.policies import loading  # both are slow to import

    sha256 = policy_dir.digest(policy)
    played = [turn for folder in folders for turn in _turns(folder, sha256)]
    if not played:
        raise UserError(
            f"--policy {policy}: no recorded token is of this policy (sha256 {sha256[:12]}); name the folder of "
            "the policy that played these episodes."
        )
    chosen, progress = played[:: math.ceil(len(played) / limit)], Progress("turns")
    dtype = loading.compute_dtype(chosen[0].record.config["sampler"].get("dtype"))
    model = loading.load_model(policy, dtype).to("cuda" if torch.cuda.is_available() else "cpu")
    tokens = list[ScoredTokens]()
    for done, turn in enumerate(chosen, start=1):
        with torch.inference_mode():
            tokens.append(_score(model, policy, turn))
        progress.report(done, len(chosen))
    logps = [logp for each in tokens for logp in each.logps]
    gaps = [gap for each in tokens for gap in each.gaps]
    apart = [abs(a - b) for each in tokens for a, b in zip(each.logps, each.recorded, strict=False)]
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


def _turns(folder: Path, sha256: str) -> Iterator[SampledTurn]:
    """The sampled turns of a policy in the folder of a result, in its order."""
    record = provenance.read(folder / provenance.NAME)
    for episode in jsonl.read(folder / "episodes.jsonl", Trajectory):
        if episode.policy and episode.policy.sha256 == sha256:
            for number, turn in enumerate(episode.turns):
                if turn.token_ids:
                    yield SampledTurn(record, episode, number)


def _score(model: Any, policy: Path, sampled: SampledTurn) -> ScoredTokens:
    """The scores of a turn's tokens after its conversation, in one forward pass."""
    import torch

    episode, turn = sampled.episode, sampled.episode.turns[sampled.number]
    assert episode.sampling, "a sampled turn has sampling parameters"
    conversation = Conversation("", 0, episode.prompt, episode.turns[: sampled.number])
    _, window = reexecution.context_window(sampled.record, policy)
    prompt = window.prompt_ids(conversation, episode.sampling.max_new_tokens)
    ids = torch.tensor([[*(prompt or ()), *turn.token_ids]], device=model.device)
    logits = model(ids, logits_to_keep=len(turn.token_ids) + 1).logits[0, :-1].float()
    chosen = logits.gather(1, ids[0, -len(turn.token_ids) :, None])[:, 0]
    logps, gaps = (chosen - logits.logsumexp(-1)).tolist(), (logits.amax(-1) - chosen).tolist()
    return ScoredTokens(logps, gaps if episode.sampling.temperature == 0 else [], turn.logps)
