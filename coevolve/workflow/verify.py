"""Did it reproduce? The verdict on every claim of the paper, from what lies in a suite's results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coevolve.report import claim_tests, verdicts
from coevolve.report import claims as paper
from coevolve.report.verdicts import Verdict
from coevolve.storage import files
from coevolve.workflow.explorations import explorations
from coevolve.workflow.job import write_json
from coevolve.workflow.measurements import measurements
from coevolve.workflow.plan import Plan

AS_IF = "As if: orders are judged on results that are not about the paper's setting. They show what verdicts look like."


def results(plan: Plan, methods: Sequence[str]) -> claim_tests.Results:
    """All that `methods` left to be judged by."""
    return claim_tests.Results(tuple(measurements(plan, methods)), tuple(explorations(plan, methods)))


def verify(plan: Plan, claims: paper.Claims, methods: Sequence[str], as_if: bool = False) -> list[Verdict]:
    """A verdict on every claim from the results of `methods`; `as_if` judges orders on what is not about them too."""
    return judge(plan, claims, results(plan, methods), as_if)


def judge(plan: Plan, claims: paper.Claims, results: claim_tests.Results, as_if: bool = False) -> list[Verdict]:
    """The same from results that are at hand."""
    report = plan.suite.report
    asked = claim_tests.questions(claims, results, resamples=resamples(report.bootstrap, claims), seed=0, as_if=as_if)
    return verdicts.judge(asked, report.confidence)


def finished(plan: Plan, claims: paper.Claims) -> list[str]:
    """The methods the paper claims something of whose results all lie there, of the suite or of its ablations."""
    return [
        method
        for method in plan.suite.recipes
        if method in claims.methods()
        and all(
            Path(path).exists() for path in [*plan.evaluations(method).values(), *plan.explorations([method]).values()]
        )
    ]


def resamples(asked: int, claims: paper.Claims) -> int:
    """As many draws as a correction for the number of claims needs to be finer than the level, `asked` at least."""
    return max(asked, 200 * (len(claims.cells()) + len(claims.statements)))


def write(found: Sequence[Verdict], out: Path, as_if: bool = False) -> dict[str, Any]:
    """Leave the verdicts as JSON and Markdown; returns their counts."""
    write_json(out / "verdicts.json", [verdict.model_dump(mode="json") for verdict in found])
    files.write_bytes(out / "verdicts.md", verdicts.markdown(found, AS_IF * as_if).encode())
    return {outcome: sum(verdict.verdict == outcome for verdict in found) for outcome in verdicts.OUTCOMES}
