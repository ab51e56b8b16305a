"""The pairs of a preference training as token ids, with the reference log-probs of both sides if a file has them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from coevolve.chat.chat_template import Renderer
from coevolve.pipeline.job import Job
from coevolve.policies import loading
from coevolve.records.pairs import PairKind, PreferencePair
from coevolve.train import reference_logps
from coevolve.train.dataset import TokenizedPair

#: Pair kinds with an expert's whole trajectory.
GOLD_KINDS = (PairKind.EXPERT_TARGET, PairKind.EXPERT_FAILURE)


def job_pairs(job: Job, start: Path) -> list[TokenizedPair]:
    """The input `pairs`, tokenized for the policy in `start`; with the log-probs in the input `scores`, if given."""
    scores = job.file("scores") if "scores" in job.inputs else None
    return tokenized_pairs(job.records("pairs", PreferencePair), start, scores, job.model.context)


def tokenized_pairs(
    pairs: Sequence[PreferencePair], start: Path, scores: Path | None, context: int
) -> list[TokenizedPair]:
    """The pairs, tokenized for the policy in `start`; with their log-probs, up to the context, in `scores`.

    Raises `RuntimeError` if `scores` has no log-probs of a side.
    """
    renderer = Renderer(loading.load_tokenizer(start))
    tokenized = [_tokenize(pair, renderer) for pair in pairs]
    return tokenized if scores is None else _with_reference_logps(pairs, tokenized, scores, context)


def _with_reference_logps(
    pairs: Sequence[PreferencePair], tokenized: Sequence[TokenizedPair], path: Path, context: int
) -> list[TokenizedPair]:
    scores, scored = reference_logps.read(path), []
    for pair, tokens in zip(pairs, tokenized, strict=True):
        chosen, rejected = (scores.lookup(side.input_ids[:context]) for side in (tokens.chosen, tokens.rejected))
        if chosen is None or rejected is None:
            trajectory_id = pair.chosen_id if chosen is None else pair.rejected_id
            raise RuntimeError(f"{path}: no sequence starts with the tokens of {trajectory_id}")
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
        phase=pair.phase,
    )
