"""Pairs for TRL: as conversations, or pre-tokenised with labels on the action tokens alone (TRL 1.16).

An expert is chosen in pairs with several failures and is an SFT target once; an episode of an agent is none.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from coevolve.chat.chat_template import Renderer, TokenizedTrajectory
from coevolve.export import cards
from coevolve.export.result_folder import ResultFolder
from coevolve.records.pairs import PreferencePair
from coevolve.storage import policy_dir

#: PyTorch's label of a token without a loss.
IGNORED = -100
#: What a card says of each file that an export may write.
USES = {
    "conversational.jsonl": (
        "`conversational.jsonl` has the columns of TRL's DPO and SFT trainers. For fine-tuning leave out the `kind` "
        "`failure_failure`, whose chosen side is a failure.\n\n" + cards.WARNING
    ),
    "sft.jsonl": (
        "`sft.jsonl` has the experts of the pairs, each once, as `input_ids` and `labels`, which TRL's `SFTTrainer` "
        "trains on as they are: only action tokens have a loss. Chosen sides that an agent played are not in it. "
    ),
    "pairs.jsonl": (
        "`pairs.jsonl` has both sides of all pairs as ids with `*_mask`, 1 on action tokens. TRL's `DPOTrainer` "
        "tokenizes text itself and takes neither ids nor masks; they are for a training script of your own. "
        "The ids are those of the policy with sha256 {sha256}; with another tokenizer they are wrong."
    ),
}


def write(paths: Sequence[Path], out: Path, policy: Path | None) -> list[str]:
    """Write the pairs of folders of the stage `pairs`: as conversations, or as ids under the tokenizer of `policy`.

    Returns the names of the files; one that would be empty is not written. Raises `UserError` if there is no pair, or
    no policy in the folder `policy`.
    """
    sha256 = policy_dir.digest(policy) if policy else ""
    folders = ResultFolder.open_all(paths, "pairs.jsonl")
    pairs = [pair for folder in folders for pair in folder.pairs]
    rows = _tokenized(pairs, policy) if policy else {"conversational.jsonl": [_conversational(pair) for pair in pairs]}
    sections = {
        "Training on it": "".join(USES[name] for name, of_file in rows.items() if of_file).format(sha256=sha256),
        "Origin": cards.origin(folders),
        "Pairs and drops": cards.drops(folders),
    }
    return cards.write_data_set(out, folders, rows, [*USES], "Preference pairs for TRL", sections)


def _conversational(pair: PreferencePair) -> dict[str, Any]:
    sides = {name: [m.model_dump() for m in getattr(pair, name)] for name in ("prompt", "chosen", "rejected")}
    return sides | {"lambda_dpo": pair.lambda_dpo, "lambda_sft": pair.lambda_sft, "kind": pair.kind.value}


def _tokenized(pairs: Iterable[PreferencePair], policy: Path) -> Mapping[str, list[dict[str, Any]]]:
    from coevolve.policies import loading  # imports torch

    renderer = Renderer(loading.load_tokenizer(policy))
    experts, both = dict[Any, dict[str, Any]](), []
    for pair in pairs:
        chosen = renderer.render(pair.prompt, pair.chosen, pair.chosen_token_ids)
        rejected = renderer.render(pair.prompt, pair.rejected, pair.rejected_token_ids)
        if not any(pair.chosen_token_ids):  # no policy sampled it
            experts[pair.prompt, pair.chosen] = {"input_ids": chosen.input_ids, "labels": _labels(chosen)}
        sides = {"chosen": chosen, "rejected": rejected}
        ids = {f"{name}_input_ids": side.input_ids for name, side in sides.items()}
        both.append(
            ids
            | {f"{name}_mask": side.action_mask for name, side in sides.items()}
            | {"kind": pair.kind.value, "lambda_dpo": pair.lambda_dpo, "lambda_sft": pair.lambda_sft}
        )
    return {"sft.jsonl": [*experts.values()], "pairs.jsonl": both}


def _labels(side: TokenizedTrajectory) -> list[int]:
    return [token if mask else IGNORED for token, mask in zip(side.input_ids, side.action_mask, strict=True)]
