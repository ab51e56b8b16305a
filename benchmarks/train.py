"""Tokens per second of the kit's DPO and SFT against TRL's, on the same examples, weights and order.

Every row trains one epoch, in a process of its own. `TRL's defaults` recomputes activations, and in DPO runs the
reference model in every step; the kit's reference is scored once, and its seconds are divided over `--epochs`. The
kit's rows keep freed memory, as its stages do. All rows of DPO but the last score every token after the prompt, as TRL
does: their losses must agree. The last one scores actions alone, as the kit's trainings do. In SFT all rows learn the
action tokens of the chosen sides. `CPU ratio` is the ratio of CPU time, which is steadier on a busy machine.

Without `--length` the pairs are ScienceWorld's gold trajectories, each against itself with another's end. The policy is
a random Llama of `--shape`, or with `--model` the one in a folder in transformers' format, such as the pretrained model
that the stage `convert` writes. `--quick` has few pairs and rows.

    python benchmarks/train.py
    python benchmarks/train.py --model data/mirror/converted/smollm2-135m --quick
    python benchmarks/train.py --shape 2048,16,32,5632,32000 --length 4096 --alike 0.3 --batch 2 --peak 989e12
"""

from __future__ import annotations

import argparse
import copy
import multiprocessing
import resource
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from clocks import Seconds, now
from datasets import Dataset
from tabulate import tabulate
from transformers import LlamaConfig, LlamaForCausalLM, PrinterCallback, TrainerCallback
from trl import DPOConfig as TrlConfig
from trl import DPOTrainer, SFTTrainer
from trl import SFTConfig as TrlSftConfig

from coevolve.chat.chat_template import Renderer, TokenizedTrajectory
from coevolve.pipeline.stages.parts.training import keep_freed_memory
from coevolve.policies import loading
from coevolve.records.episodes import Trajectory
from coevolve.records.pairs import PairKind
from coevolve.storage import jsonl
from coevolve.train import dpo, policy_io, reference_logps, sft, tiny_model
from coevolve.train.dataset import TokenizedPair
from coevolve.train.settings import DpoConfig, LoraConfig, SftConfig

GOLD = Path(__file__).parents[1] / "data" / "sciworld" / "gold.jsonl"
#: Tokens of a random Llama's tokenizer.
VOCABULARY = 900
HEADERS = [
    "training",
    "epoch, s",
    "scoring, s",
    "tokens/s",
    "ratio",
    "CPU ratio",
    "first loss",
    "last loss",
    "memory, GB",
    "MFU, %",
]
ROWS = ("TRL's defaults", "TRL, nothing recomputed", "padded", "flat", "shared", "shared, actions alone")
SFT_ROWS = ("SFT, TRL's defaults", "SFT, TRL, nothing recomputed", "SFT, padded", "SFT, flat")
#: The rows of `--quick`.
QUICK = (ROWS[0], ROWS[1], ROWS[-2], ROWS[-1], SFT_ROWS[0], SFT_ROWS[1], SFT_ROWS[-1])


@dataclass(frozen=True)
class Setting:
    """What all rows have in common. `alike`: the share of a pair's tokens that both sides begin with.

    `model`: a folder with a model; None: a random one of `shape`. `dtype`: that of the passes; None: float32 on a CPU.
    `lora`: adapters that the kit trains instead of all weights.
    """

    shape: tuple[int, ...]
    pairs: int
    length: int | None
    alike: float
    batch: int
    epochs: int
    threads: int
    peak: float | None
    model: Path | None = None
    dtype: str | None = None
    quick: bool = False
    lora: LoraConfig | None = None

    @property
    def bfloat16(self) -> bool:
        """Whether TRL's passes are in bfloat16."""
        return self.dtype == "bfloat16" or (self.dtype is None and torch.cuda.is_available())


@dataclass(frozen=True)
class Measured:
    """One row: seconds (wall, CPU) of an epoch after its first step, and of scoring the same pairs; memory in bytes."""

    name: str
    seconds: Seconds
    scoring: Seconds
    tokens: int
    losses: tuple[float, ...]
    memory: float
    parameters: int


class Clock(TrainerCallback):  # type: ignore[misc]
    """When each step ended."""

    def __init__(self) -> None:
        self.ends: list[Seconds] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Wait for the device, then look at the time."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.ends.append(now())


class Tokenised(DPOTrainer):  # type: ignore[misc]
    """TRL's trainer on pairs that are token ids already; `scoring`: seconds that the reference took before training."""

    scoring = np.zeros(2)

    def _precompute_ref_logps(self, *given: Any) -> Dataset:
        began = now()
        scored = super()._precompute_ref_logps(*given)
        self.scoring = now() - began
        return scored

    def _prepare_dataset(self, dataset: Dataset, *_: Any) -> Dataset:
        return dataset

    def _send_telemetry(self) -> None:
        pass


class TokenisedSft(SFTTrainer):  # type: ignore[misc]
    """TRL's trainer on token ids with labels."""

    def _send_telemetry(self) -> None:
        pass


def main() -> None:
    setting = parse()
    for rows in (ROWS, SFT_ROWS):
        chosen = [row for row in rows if not setting.quick or row in QUICK]
        print(tabulate(table(measure(setting, chosen), setting), headers=HEADERS), end="\n\n")


def parse() -> Setting:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shape = "hidden, layers, heads, intermediate and vocabulary of a random Llama"
    parser.add_argument("--model", type=Path, help="folder of a model in transformers' format, instead of a random one")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], help="of the passes (default: float32 on a CPU)")
    parser.add_argument("--quick", action="store_true", help="8 pairs in batches of 2, and fewer rows")
    parser.add_argument("--shape", default="384,6,6,1024,8000", help=f"{shape} (default: 17 million parameters)")
    parser.add_argument("--pairs", type=int, default=64)
    parser.add_argument("--length", type=int, help="tokens of each side, random ones (default: gold trajectories)")
    parser.add_argument("--alike", type=float, default=0.3, help="with --length: share that both sides begin with")
    parser.add_argument("--batch", type=int, default=8, help="pairs of a step and of a micro-batch; 8 is TRL's default")
    parser.add_argument("--epochs", type=int, default=3, help="epochs that one scoring of the reference serves")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peak", type=float, help="floating-point operations per second of the device, for the MFU")
    given = vars(parser.parse_args())
    if given["quick"]:
        given |= {"pairs": 8, "batch": 2}
    return Setting(**given | {"shape": tuple(int(size) for size in given["shape"].split(","))})


def measure(setting: Setting, rows: Sequence[str] = ROWS) -> list[Measured]:
    """The rows, one after the other, each in a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        return [pool.apply(measure_row, (name, setting)) for name in rows]


def table(found: Sequence[Measured], setting: Setting) -> list[list[object]]:
    """Lines of the table; the ratios are those of tokens per second of wall and of CPU time, the first row 1."""
    lines: list[list[object]] = []
    speeds = [setting.epochs * row.tokens / (setting.epochs * row.seconds + row.scoring) for row in found]
    for row, speed in zip(found, speeds, strict=True):
        # The floor: 6 N operations for each token of either side, though what both begin with may be computed once.
        used = f"{100 * 6 * row.parameters * speed[0] / setting.peak:.1f}" if setting.peak else ""
        ratio, cpu_ratio = speed / speeds[0]
        numbers = (
            f"{row.seconds[0]:.1f}",
            f"{row.scoring[0]:.1f}",
            f"{speed[0]:.0f}",
            f"{ratio:.2f}",
            f"{cpu_ratio:.2f}",
        )
        losses = (f"{row.losses[0]:.5f}", f"{row.losses[-1]:.5f}")
        lines.append([row.name, *numbers, *losses, f"{row.memory / 1e9:.2f}", used])
    return lines


def measure_row(name: str, setting: Setting) -> Measured:
    """Train one epoch as the row `name` says."""
    torch.set_num_threads(setting.threads)
    if "TRL" not in name:
        keep_freed_memory()
    golden = jsonl.read(GOLD, Trajectory)
    tokenizer = tokenizer_of(setting, golden)
    pairs = random_pairs(setting) if setting.length else gold_pairs(golden, tokenizer, setting.pairs)
    model = model_of(setting, max(len(side.input_ids) for pair in pairs for side in (pair.chosen, pair.rejected)))
    parameters, clock = model.num_parameters(), Clock()
    with tempfile.TemporaryDirectory() as folder:
        train = sft_of_either if name in SFT_ROWS else of_trl if name.startswith("TRL") else of_kit
        scoring, losses = train(name, setting, model, tokenizer, pairs, clock, Path(folder))
    if len(clock.ends) < 2:
        raise SystemExit("benchmarks/train.py: --pairs: give more than one batch.")
    lengths = [len(pair.chosen if name in SFT_ROWS else pair) for pair in pairs]
    tokens = sum(lengths[setting.batch :])  # the first step warms up
    share = tokens / sum(lengths)
    on_gpu = torch.cuda.is_available()
    memory = torch.cuda.max_memory_allocated() if on_gpu else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Measured(name, clock.ends[-1] - clock.ends[0], scoring * share, tokens, losses, memory, parameters)


def tokenizer_of(setting: Setting, golden: Sequence[Trajectory]) -> Any:
    """The tokenizer of the model in the folder, else one trained on the gold trajectories."""
    if setting.model:
        return loading.load_tokenizer(setting.model)
    texts = [message.content for each in golden for message in (*each.prompt, *each.completion)]
    return tiny_model.train_tokenizer(texts, VOCABULARY)


def model_of(setting: Setting, context: int) -> Any:
    """The model in the folder with float32 weights, else a random one."""
    if setting.model is None:
        return random_llama(setting, context)
    return policy_io.load(setting.model).to("cuda" if torch.cuda.is_available() else "cpu")


def sft_of_either(
    name: str, setting: Setting, model: Any, tokenizer: Any, pairs: Sequence[TokenizedPair], clock: Clock, work: Path
) -> tuple[Seconds, tuple[float, ...]]:
    """No seconds of scoring, and the losses of TRL's or the kit's SFT on the chosen sides."""
    rows = [pair.chosen for pair in pairs]
    if "TRL" not in name:
        layout = name.split(", ")[1]
        trainer: Any = sft.SupervisedTrainer(
            rows, list(range(len(rows))), model=model, config=kit_sft_config(layout, setting),
            run=policy_io.TrainingRun(setting.model or work, work / "out", work, 0, setting.lora, dtype=setting.dtype),
        )  # fmt: skip
        trainer.add_callback(clock)
        return np.zeros(2), losses_of(trainer)
    labels = [[i if own else -100 for i, own in zip(row.input_ids, row.action_mask, strict=True)] for row in rows]
    trainer = TokenisedSft(
        model=model,
        args=TrlSftConfig(
            **same(setting, work),
            per_device_train_batch_size=setting.batch,
            max_length=None,
            bf16=setting.bfloat16,
            dataset_kwargs={"skip_prepare_dataset": True},
            **({} if name == SFT_ROWS[0] else {"activation_checkpointing": False}),
        ),
        train_dataset=Dataset.from_dict({"input_ids": [list(row.input_ids) for row in rows], "labels": labels}),
        processing_class=tokenizer,
        callbacks=[clock],
    )
    return np.zeros(2), losses_of(trainer)


def of_trl(
    name: str, setting: Setting, model: Any, tokenizer: Any, pairs: Sequence[TokenizedPair], clock: Clock, work: Path
) -> tuple[Seconds, tuple[float, ...]]:
    """Seconds of scoring and losses of TRL's trainer."""
    defaults = name == ROWS[0]
    trainer = Tokenised(
        model=model,
        ref_model=copy.deepcopy(model),
        args=TrlConfig(
            **same(setting, work),
            per_device_train_batch_size=setting.batch,
            num_train_epochs=1,
            max_length=None,
            beta=0.1,
            precompute_ref_log_probs=not defaults,
            bf16=setting.bfloat16,
            **({} if defaults else {"activation_checkpointing": False}),
        ),
        train_dataset=Dataset.from_list([as_trl(pair) for pair in pairs]),
        processing_class=tokenizer,
        callbacks=[clock],
    )
    losses = losses_of(trainer)
    return trainer.scoring, losses


def of_kit(
    name: str, setting: Setting, model: Any, tokenizer: Any, pairs: Sequence[TokenizedPair], clock: Clock, work: Path
) -> tuple[Seconds, tuple[float, ...]]:
    """The same of the kit's."""
    if name != ROWS[-1]:
        pairs = [as_trl_scores(pair) for pair in pairs]
    began = now()
    rows = reference_logps.without_prefixes(side.input_ids for pair in pairs for side in (pair.chosen, pair.rejected))
    reference_logps.write(work / "scores", rows, reference_logps.score(model, rows, lambda *_: None, setting.dtype))
    scoring = now() - began
    trainer = dpo.PreferenceTrainer(
        knowing(pairs, reference_logps.read(work / "scores")),
        list(range(len(pairs))),
        model=model,
        reference=None,
        config=kit_config(name.split(",")[0], setting),
        iteration=1,
        run=policy_io.TrainingRun(setting.model or work, work / "out", work, 0, setting.lora, dtype=setting.dtype),
    )
    trainer.add_callback(clock)
    return scoring, losses_of(trainer)


def same(setting: Setting, work: Path) -> dict[str, Any]:
    """What decides the numbers, for TRL."""
    return {
        "output_dir": str(work),
        "learning_rate": 1e-4,
        "use_cpu": not torch.cuda.is_available(),
        "train_sampling_strategy": "sequential",
        "max_steps": setting.pairs // setting.batch,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }


def kit_optimiser(layout: str, setting: Setting) -> dict[str, Any]:
    """The same for the kit, and how its batches lie."""
    return {
        "epochs": 1,
        "batch_size": setting.batch,
        "micro_batch": setting.batch,
        "warmup": 0.0,
        "schedule": "linear",
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "save_steps": 1_000_000,
        "layout": layout,
    }


def kit_sft_config(layout: str, setting: Setting) -> SftConfig:
    """The kit's settings of SFT."""
    return SftConfig(**kit_optimiser(layout, setting), learning_rate=1e-4)


def kit_config(layout: str, setting: Setting) -> DpoConfig:
    """The kit's settings of DPO."""
    return DpoConfig(
        **kit_optimiser(layout, setting),
        learning_rate=[1e-4],
        beta=[0.1],
        reference="previous",
        nll="mean",
        objective={"name": "dpo"},
        precompute_reference=True,
    )


def losses_of(trainer: Any) -> tuple[float, ...]:
    """Train; returns the loss of each step."""
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return tuple(entry["loss"] for entry in trainer.state.log_history if "loss" in entry)


def knowing(pairs: Sequence[TokenizedPair], scores: reference_logps.Scores) -> list[TokenizedPair]:
    """The pairs with what the reference says of them."""
    found = []
    for pair in pairs:
        chosen, rejected = scores.lookup(pair.chosen.input_ids), scores.lookup(pair.rejected.input_ids)
        assert chosen is not None and rejected is not None
        found.append(TokenizedPair(pair.kind, pair.chosen, pair.rejected, 1.0, 0.0, (chosen, rejected)))
    return found


def as_trl(pair: TokenizedPair) -> dict[str, list[int]]:
    """The pair as TRL's collator wants it: what is not the prompt is the completion."""
    prompt = prompt_length(pair)
    ids = {"chosen": pair.chosen.input_ids, "rejected": pair.rejected.input_ids}
    sides = {f"{name}_ids": list(own[prompt:]) for name, own in ids.items()}
    return {"prompt_ids": list(pair.chosen.input_ids[:prompt]), **sides}


def as_trl_scores(pair: TokenizedPair) -> TokenizedPair:
    """The pair with every token after the prompt taken for an action."""
    prompt = prompt_length(pair)
    chosen, rejected = (
        TokenizedTrajectory(tuple(side.input_ids), (0,) * prompt + (1,) * (len(side.input_ids) - prompt))
        for side in (pair.chosen, pair.rejected)
    )
    return TokenizedPair(pair.kind, chosen, rejected, 1.0, 0.0)


def prompt_length(pair: TokenizedPair) -> int:
    """Tokens before the first action."""
    return list(pair.chosen.action_mask).index(1)


def gold_pairs(golden: Sequence[Trajectory], tokenizer: Any, count: int) -> list[TokenizedPair]:
    """Gold trajectories, and rejected beside each the same with another one's end."""
    renderer, rng = Renderer(tokenizer), np.random.default_rng(0)
    picked = rng.permutation(len(golden))[: 2 * count]
    pairs = []
    for one, other in zip((golden[i] for i in picked[::2]), (golden[i] for i in picked[1::2]), strict=True):
        turns = 2 * int(rng.integers(1, max(2, min(len(one.turns), len(other.turns)))))
        failed = (*one.completion[:turns], *other.completion[turns:])
        chosen, rejected = (renderer.render(one.prompt, completion) for completion in (one.completion, failed))
        pairs.append(TokenizedPair(PairKind.EXPERT_TARGET, chosen, rejected, 1.0, 0.0))
    return pairs


def random_pairs(setting: Setting) -> list[TokenizedPair]:
    """Random tokens: half of what both sides begin with is the prompt, a quarter of the rest are actions."""
    rng, length = np.random.default_rng(0), setting.length or 0
    alike, vocabulary = int(setting.alike * length), setting.shape[-1]
    mask = tuple(int(k >= max(1, alike // 2) and (k - alike // 2) % 64 < 16) for k in range(length))
    pairs = []
    for _ in range(setting.pairs):
        begin, *ends = (rng.integers(5, vocabulary, n).tolist() for n in (alike, length - alike, length - alike))
        chosen, rejected = (TokenizedTrajectory((*begin, *end), mask) for end in ends)
        pairs.append(TokenizedPair(PairKind.EXPERT_TARGET, chosen, rejected, 1.0, 0.0))
    return pairs


def random_llama(setting: Setting, context: int, device: str | None = None) -> Any:
    """A Llama of the shape with random float32 weights, made where it will be trained."""
    hidden, layers, heads, intermediate, vocabulary = setting.shape
    config = LlamaConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=intermediate,
        vocab_size=vocabulary,
        max_position_embeddings=context,
    )
    torch.manual_seed(0)
    with torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu")):
        return LlamaForCausalLM(config)


if __name__ == "__main__":
    main()
