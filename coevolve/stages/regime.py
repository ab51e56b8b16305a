"""Whether the suite could decide between the methods: checks of its regime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coevolve.report import regime
from coevolve.report.labels import ReportLabels
from coevolve.workflow import regime_evidence
from coevolve.workflow.job import Job


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write `regime.json` and `regime.md` for the first model."""
    suite = job.suite
    judged = regime_evidence.checks(suite, regime_evidence.of_job(job))
    regime.write(judged, ReportLabels.of(suite, suite.labels), out)
    return {"checks": len(judged), "passed": sum(check.passed is True for check in judged)}
