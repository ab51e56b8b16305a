"""Commands that write results elsewhere."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from coevolve.cli.command import CLAIMS, Command, ablation_of, machine_argument, run_plan, show, suite_arguments
from coevolve.errors import UserError
from coevolve.shipped import shipped_file

REFERENCE = Path("results/reference")


def export_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `coevolve export reference`."""
    suite_arguments(parser, required=False)
    machine_argument(parser, required=False)
    text = "folder of the export (default: results/reference/SUITE); without --suite only its page is written again"
    parser.add_argument("--out", type=Path, metavar="DIR", help=text)
    parser.add_argument(
        "--ablation", metavar="NAME", help="export this ablation's table instead of the suite's products"
    )


def export_reference(options: argparse.Namespace) -> int:
    """Write a suite's products to one folder, or only an export's page."""
    from coevolve.export import suite_export
    from coevolve.report import claims

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


def evidence_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `coevolve export evidence`."""
    suite_arguments(parser)
    machine_argument(parser, required=False)
    parser.add_argument("--out", type=Path, metavar="FILE", help="default: results/SUITE.evidence.tar.xz")


def export_evidence(options: argparse.Namespace) -> int:
    """Write what a suite's products are made of to one archive."""
    from coevolve.dag.rules.page import exported
    from coevolve.export import suite_evidence

    plan = run_plan(options)
    out = options.out or Path(plan.home).with_suffix(".evidence.tar.xz")
    paths = suite_evidence.write(plan, out)
    show(f"{out}: {len(paths)} files, {out.stat().st_size / 1e6:.1f} MB, to be unpacked with `tar -xJf`.")
    show(f"Their products: add `--allowed-rules all {' '.join(exported(plan.suite))}` to the suite's command.")
    return 0


def exports() -> dict[str, dict[str, Command]]:
    """The commands below `coevolve export`."""
    from coevolve.export import commands

    exports = {
        "reference": Command(
            "Write a finished suite's tables, figures, provenance and page to one folder, as a reference result.",
            export_arguments,
            export_reference,
        ),
        "evidence": Command(
            "Write a finished suite's episodes, pairs, records and provenance, without weights, to one archive.",
            evidence_arguments,
            export_evidence,
        ),
        "inspect": Command(
            "Write an evaluation as an Inspect log.",
            commands.inspect_arguments,
            partial(commands.inspect_log, write=show),
        ),
        "dataset": Command(
            "Write pairs and trajectories as a Hugging Face data set with a card.",
            commands.dataset_arguments,
            partial(commands.dataset, write=show),
        ),
        "traces": Command(
            "Write episodes as sessions for the trace viewer of the Hugging Face hub.",
            commands.traces_arguments,
            partial(commands.traces, write=show),
        ),
        "trl": Command(
            "Write pairs for TRL, as conversations or pre-tokenised.",
            commands.trl_arguments,
            partial(commands.trl, write=show),
        ),
        "model": Command(
            "Write a policy's model card.", commands.model_arguments, partial(commands.model_card, write=show)
        ),
    }
    return {"targets": exports}
