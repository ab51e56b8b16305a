"""Commands that write results elsewhere."""

import argparse
from pathlib import Path

from coevolve.cli.command import (
    CLAIMS,
    OPTIONAL_MACHINE,
    OPTIONAL_SUITE,
    SUITE,
    Group,
    ablation_of,
    argument,
    command,
    run_plan,
    show,
)
from coevolve.errors import UserError
from coevolve.export import checkpoint, dataset, inspect_log, model_card, suite_evidence, suite_export, trl
from coevolve.report import claims
from coevolve.shipped import shipped_file

REFERENCE = Path("results/reference")
UNSENT = "Nothing was uploaded."
OUT = argument("--out", type=Path, required=True, metavar="DIR", help="output folder; replaced as a whole")


@command(
    *OPTIONAL_SUITE,
    OPTIONAL_MACHINE,
    argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder of the export (default: results/reference/SUITE); without --suite only its page is written again",
    ),
    argument("--ablation", metavar="NAME", help="export this ablation's table instead of the suite's products"),
)
def export_reference(options: argparse.Namespace) -> int:
    """Write a finished suite's tables, figures, provenance and page to one folder, as a reference result."""
    paper = claims.load(shipped_file(CLAIMS))
    if options.suite is None:
        if options.out is None:
            raise UserError("give --suite, or --out with the folder of an export whose page is written again.")
        suite_export.write_page(options.out, paper)
        show(options.out / suite_export.PAGE)
        return 0
    plan = run_plan(options)
    if options.ablation:
        ablation_of(plan.suite, options.ablation)
    name = plan.suite.suite
    out = options.out or REFERENCE / (f"{name}_{options.ablation}" if options.ablation else name)
    names = suite_export.export(plan, out, paper, options.ablation)
    show(f"{len(names)} files: {out / suite_export.PAGE}")
    return 0


@command(
    *SUITE,
    OPTIONAL_MACHINE,
    argument("--out", type=Path, metavar="FILE", help="default: results/SUITE.evidence.tar.xz"),
    argument("--evaluations", action="store_true", help="also the episodes of evaluations, for `coevolve reverify`"),
)
def export_evidence(options: argparse.Namespace) -> int:
    """Write a finished suite's episodes, pairs, records and provenance, without weights, to one archive."""
    plan = run_plan(options)
    out = options.out or Path(plan.home).with_suffix(".evidence.tar.xz")
    paths = suite_evidence.write(plan, out, options.evaluations)
    show(f"{out}: {len(paths)} files, {out.stat().st_size / 1e6:.1f} MB, to be unpacked with `tar -xJf`.")
    rules = " ".join(dict.fromkeys(job.stage.name for job in suite_evidence.made_from_evidence(plan)))
    show(f"Their products: add `--allowed-rules all {rules}` to the suite's command.")
    return 0


@command(
    argument("evaluation", type=Path, metavar="FOLDER", help="folder of an evaluation (.../eval)"),
    argument("--out", type=Path, required=True, metavar="DIR", help="folder of Inspect logs"),
)
def export_inspect_log(options: argparse.Namespace) -> int:
    """Write an evaluation as an Inspect log."""
    path = inspect_log.write(options.evaluation, options.out)
    show(f"{path}; `inspect view start --log-dir {options.out}` shows it. {UNSENT}")
    return 0


@command(
    argument("folders", type=Path, nargs="+", metavar="FOLDER", help="folders of pairs, rollouts and evaluations"), OUT
)
def export_dataset(options: argparse.Namespace) -> int:
    """Write pairs and trajectories as a Hugging Face data set with a card."""
    names = dataset.write(options.folders, options.out)
    show(f"{', '.join(names)}: load with `datasets.load_dataset('{options.out}', '{names[0]}')`. {UNSENT}")
    return 0


@command(
    argument("folders", type=Path, nargs="+", metavar="FOLDER", help="folders of pairs (.../pairs/target)"),
    argument("--tokenizer", type=Path, metavar="POLICY", help="write token ids of this policy's tokenizer"),
    OUT,
)
def export_trl(options: argparse.Namespace) -> int:
    """Write pairs for TRL, as conversations or pre-tokenised."""
    names = trl.write(options.folders, options.out, options.tokenizer)
    show(f"{', '.join(names)} in {options.out}; README.md says how to train on them. {UNSENT}")
    return 0


@command(
    argument("policy", type=Path, metavar="FOLDER", help="folder of a policy in a suite's results"),
    argument("--out", type=Path, required=True, metavar="FILE", help="the card, README.md of a model folder"),
)
def export_model_card(options: argparse.Namespace) -> int:
    """Write a policy's model card."""
    show(f"{model_card.write(options.policy, options.out)}. {UNSENT}")
    return 0


@command(
    argument("policy", type=Path, metavar="FOLDER", help="folder of a policy in a suite's results"),
    argument("--out", type=Path, required=True, metavar="DIR", help="a new folder"),
)
def export_checkpoint(options: argparse.Namespace) -> int:
    """Write a policy's float32 weights, adapters merged, as one checkpoint for other programs."""
    checkpoint.write(options.policy, options.out)
    show(f"{options.out}: transformers' `from_pretrained` and `coevolve evaluate-model` read it. {UNSENT}")
    return 0


EXPORTS = {
    "reference": export_reference,
    "evidence": export_evidence,
    "inspect": export_inspect_log,
    "dataset": export_dataset,
    "trl": export_trl,
    "model": export_model_card,
    "checkpoint": export_checkpoint,
}
COMMANDS = {"export": Group("Export results to one folder, or in the formats of other tools.", lambda: EXPORTS)}
