"""Commands about results: view, why, verify, regime, compare, evaluate-model, reverify."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from pathlib import Path
from typing import get_args

from coevolve import escaping
from coevolve.arguments import positive
from coevolve.cli.command import CLAIMS, JSON, OFFLINE, SET, SUITE, argument, command, show, suite_of
from coevolve.config.recorded import given_values
from coevolve.config.suite import labels, with_model
from coevolve.export.site_documents import site_documents
from coevolve.pipeline.plan import Plan
from coevolve.pipeline.required_files import required_files
from coevolve.pipeline.stages.parts import regime_evidence
from coevolve.pipeline.suite_files import SuiteFiles
from coevolve.records.base import Record
from coevolve.report import (
    claims,
    comparison,
    evaluation_result,
    looks,
    regime,
    second_paper,
    verdicts,
    view,
    why,
    why_task,
    why_text,
)
from coevolve.report.claim_tests import Results
from coevolve.report.claims import Claims
from coevolve.report.labels import ReportLabels
from coevolve.report.verdicts import Verdict
from coevolve.settings.protocol import Protocol
from coevolve.shipped import shipped_file
from coevolve.watch import on_disk
from coevolve.watch.reverify import reverify

EVALUATIONS = Path("results/evaluate_model")
CACHE = Path(".cache")

MODEL = argument("--model", help="the model whose results are judged (default: the suite's first)")


def json_list(records: Iterable[Record]) -> str:
    """Records as a JSON list."""
    return f"[{', '.join(record.to_json() for record in records)}]"


@command(*SUITE, argument("--out", type=Path, metavar="DIR", help="default: `view` in the suite's results"))
def write_view(options: argparse.Namespace) -> int:
    """Write HTML pages of all episodes, pairs and products; they need no server."""
    suite = suite_of(options)
    plan = Plan(suite)
    out = options.out or Path(plan.home) / "view"
    named = ReportLabels.of(suite, labels(suite))
    episodes, pairs = view.build(Path(plan.home), out, f"Suite {suite.suite}", named, list(site_documents(plan)))
    show(f"{episodes:,} episodes and {pairs:,} pairs, report, tables and figures: {out / 'index.html'}")
    return 0


@command(
    *SUITE,
    argument(
        "cell",
        nargs="*",
        metavar="CELL",
        help="words of a cell's name, or the id of a synthetic task (default: list all cells)",
    ),
    JSON,
)
def trace(options: argparse.Namespace) -> int:
    """Trace a printed number, or a synthetic task, back to episodes, policies, pairs and code."""
    plan = Plan(suite_of(options))
    home, declared = plan.home, [file.path for file in required_files(plan.suite)]
    if pool := why_task.find(Path(home), options.cell):
        task = why_task.trace(pool, options.cell[0], plan.leaves_provenance, declared)
        show(task.to_json() if options.json else why_task.text(task))
        return 1 if task.broken else 0
    cells = why.cells(Path(home))
    if not options.cell:
        show("\n".join(escaping.line(cell.name) for cell in cells))
        return 0
    cell = why.find(cells, " ".join(options.cell))
    answer = why.ask(cell, claims.load(shipped_file(CLAIMS)), plan.leaves_provenance, plan.changed_since, declared)
    show(answer.to_json() if options.json else why_text.text(answer, home))
    return 1 if answer.broken else 0


def judged_claims(options: argparse.Namespace) -> tuple[SuiteFiles, Claims, Results, list[Verdict]]:
    """The suite and model of the options, the paper's claims, the results on disk, and a verdict on each claim."""
    made, paper = SuiteFiles(with_model(suite_of(options), options.model)), claims.load(shipped_file(CLAIMS))
    measured, small = on_disk.results(made, paper), verdicts.is_miniature(made.suite)
    return made, paper, measured, verdicts.verify(paper, measured, looks.report_of(made.suite), small)


@command(
    *SUITE,
    argument("--out", type=Path, metavar="DIR", help="also write verdicts.json and verdicts.md to this folder"),
    MODEL,
    JSON,
)
def judge(options: argparse.Namespace) -> int:
    """Judge the paper's claims; exit status 1: one differs; else 0: one agrees; 3: none can be told."""
    made, paper, measured, judged = judged_claims(options)
    tables = second_paper.tables(paper, made.suite, measured.measurements)
    if measured.unfinished:
        tables = [verdicts.unfinished_markdown(measured.unfinished.values()), *tables]
    text = [looks.remark(made.suite), verdicts.markdown(judged), *tables]
    show(json_list(judged) if options.json else "\n".join(filter(None, text)).rstrip())
    if options.out:
        verdicts.write(judged, options.out, tables)
    return verdicts.exit_status(judged)


@command(*SUITE, argument("--model", help="the model whose results are checked (default: the suite's first)"), JSON)
def check_regime(options: argparse.Namespace) -> int:
    """Check whether finished results can decide between methods; exit status 0: yes, 1: no, 3: not all measured."""
    suite = with_model(suite_of(options), options.model)
    judged = regime_evidence.checks(suite, on_disk.evidence_of_regime(SuiteFiles(suite)))
    text = regime.markdown(judged, ReportLabels.of(suite, labels(suite)))
    show(json_list(judged) if options.json else text)
    passed = {check.passed for check in judged}
    return 1 if False in passed else 3 if None in passed else 0


@command(
    argument(
        "results",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="a result file (JSON or YAML), or the folder of an evaluation (.../eval)",
    ),
    JSON,
)
def compare_results(options: argparse.Namespace) -> int:
    """Compare result files, and check whether they are comparable."""
    results = evaluation_result.read_all(options.results)
    comparison.require_same_protocol(results)
    show(json_list(comparison.comparisons(results)) if options.json else "\n".join(comparison.compare(results)))
    return 0


@command(
    argument("model", metavar="PATH|URL", help="a checkpoint folder, or an OpenAI-compatible endpoint"),
    argument("--env", required=True, help="a name, such as webshop for configs/envs/webshop.yaml, or a path"),
    argument("--suite", help="take the environment `--env` and all settings from this suite"),
    argument("--name", help="name of the model at the endpoint"),
    argument("--label", default="", help="name in tables (default: the model's name)"),
    argument("--split", help="evaluation split (default: all)"),
    argument("--tasks", type=positive, metavar="N", help="the first N tasks of each split (default: all)"),
    argument(
        "--protocol", choices=get_args(Protocol), help="default: fixed, or as --suite; others than paper: of WebShop"
    ),
    argument("--examples", type=int, choices=[0, 1], help="few-shot examples (default: 0, or as --suite)"),
    argument("--context", type=positive, metavar="TOKENS", help="longest conversation (default: the model's)"),
    argument("--threads", type=positive, default=1, help="CPU threads (default: 1)"),
    argument("--seed", type=int, default=0, help="seed of sampling at a temperature above 0 (default: 0)"),
    SET,
    argument("--out", type=Path, metavar="FILE", help="also write the result file here"),
    argument(
        "--root", type=Path, default=EVALUATIONS, metavar="DIR", help="folder of the episodes (default: %(default)s)"
    ),
)
def evaluate(options: argparse.Namespace) -> int:
    """Evaluate a checkpoint or an endpoint on one environment, with intervals."""
    from coevolve.pipeline import evaluate_model

    os.environ |= OFFLINE | {"OMP_NUM_THREADS": str(options.threads)}
    return evaluate_model.run(options, show)


@command(
    argument("folder", type=Path, metavar="FOLDER", help="results, or an archive of results/evidence"),
    argument("--cache", type=Path, default=CACHE, metavar="DIR", help="what environments prepare (%(default)s)"),
    argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of this machine, such as envs.intercode_sql.server.binary; a record's own is not used",
    ),
    JSON,
)
def reverify_results(options: argparse.Namespace) -> int:
    """Execute recorded actions again, and make records and pairs again; exit status 1: something differs."""
    shown = (lambda check: None) if options.json else show
    outcome = reverify(options.folder, options.cache, shown, given_values(options.set))
    show(outcome.to_json() if options.json else outcome.summary())
    return outcome.exit_status


COMMANDS = {
    "view": write_view,
    "why": trace,
    "verify": judge,
    "regime": check_regime,
    "evaluate-model": evaluate,
    "compare": compare_results,
    "reverify": reverify_results,
}
