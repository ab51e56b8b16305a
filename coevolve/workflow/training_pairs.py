"""The pairs of a preference training as token ids, with the reference log-probs of both sides if a file has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from coevolve.chat.chat_template import Renderer
from coevolve.policies import loading
from coevolve.train import reference_logps
from coevolve.train.dataset import TokenizedPair
from coevolve.types import PairKind, PreferencePair
from coevolve.workflow.job import Job

#: Pair kinds with an expert's whole trajectory.
GOLD_KINDS = (PairKind.EXPERT_TARGET, PairKind.EXPERT_FAILURE)


def tokenized_pairs(job: Job, start: Path) -> list[TokenizedPair]:
    """The input `pairs`, tokenized for the policy in `start`; with the log-probs in the input `scores`, if given."""
    renderer = Renderer(loading.load_tokenizer(start))
    pairs = job.records("pairs", PreferencePair)
    tokenized = [_tokenize(pair, renderer) for pair in pairs]
    return _with_reference_logps(job, pairs, tokenized) if "scores" in job.inputs else tokenized


def _with_reference_logps(
    job: Job, pairs: Sequence[PreferencePair], tokenized: Sequence[TokenizedPair]
) -> list[TokenizedPair]:
    """The tokenized pairs with the reference log-probs of both sides, up to the context."""
    scores, context = reference_logps.read(job.file("scores")), job.model.context
    scored = []
    for pair, tokens in zip(pairs, tokenized, strict=True):
        chosen, rejected = (scores.lookup(side.input_ids[:context]) for side in (tokens.chosen, tokens.rejected))
        if chosen is None or rejected is None:
            trajectory_id = pair.chosen_id if chosen is None else pair.rejected_id
            raise RuntimeError(f"{job.file('scores')}: no sequence starts with the tokens of {trajectory_id}")
        scored.append(replace(tokens, reference_logps=(chosen, rejected)))
    return scored


def _tokenize(pair: PreferencePair, renderer: Renderer) -> TokenizedPair:
    return TokenizedPair(
        chosen=renderer.render(pair.prompt, pair.chosen, pair.chosen_token_ids),
        rejected=renderer.render(pair.prompt, pair.rejected, pair.rejected_token_ids),
        kind=pair.kind,
        lambda_dpo=pair.lambda_dpo,
        lambda_sft=pair.lambda_sft,
        gold=pair.kind in GOLD_KINDS and not any(pair.chosen_token_ids),  # an expert's turns were not sampled
    )
