"""The results of a suite that are on disk, also while others still run; a changed file is an error."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from coevolve.config.suite import Suite, iterations_of, models_of, supports
from coevolve.pipeline.stages.parts import regime_evidence
from coevolve.pipeline.suite_files import SuiteFiles
from coevolve.records.evaluation import ResultFile
from coevolve.report import exploration, measurement
from coevolve.report.claim_tests import Results
from coevolve.report.claims import Claims
from coevolve.report.regime import RegimeEvidence
from coevolve.storage import provenance


def results(made: SuiteFiles, claims: Claims) -> Results:
    """The results of all finished methods that have a claim, in a suite about one model; and what is unfinished.

    The methods are of the suite or of its ablations. Raises `UserError` for a file that was changed.
    """
    suite = made.suite
    ended = {
        method: _finished_seeds(made, method)
        for method in suite.recipes
        if method in claims.methods() and supports(suite, method)
    }
    methods = [method for method, seeds in ended.items() if seeds == suite.seeds]
    return Results(
        measurements=tuple(measurement.read(suite, _present(made.records(methods)))),
        explorations=tuple(exploration.read(suite, _present(made.explorations(methods)))),
        unfinished={
            (method, env): _unfinished(method, seeds, suite)
            for method, seeds in ended.items()
            if method not in methods and _is_begun(made, method)
            for env in suite.envs
        },
    )


def evidence_of_regime(made: SuiteFiles) -> RegimeEvidence:
    """The results of a suite about one model that its regime checks read; raises `UserError` for a changed file."""
    suite = made.suite
    evaluated = [file for file in made.records(suite.methods) if file.iteration == _last(made, file)]
    trained = Path(made.home, *models_of(suite)).glob("*/*/seed*/iter*/policy/*/provenance.json")
    files = {
        "records": _present(evaluated),
        "explorations": _present(made.explorations(suite.methods)),
        "summaries": _present(made.summaries(suite.methods)),
        "practice": _present(made.practice()),
    }
    return regime_evidence.read(suite, files, map(provenance.read, trained))


def _last(made: SuiteFiles, of: ResultFile) -> int:
    """The last iteration of a row; while it runs, no earlier one stands for it."""
    return iterations_of(made.suite, of.env, of.method)


def _present(files: Iterable[ResultFile]) -> list[ResultFile]:
    """The files that exist; raises `UserError` for one that was changed."""
    present = [file for file in files if Path(file.path).exists()]
    for path in {file.path for file in present}:
        provenance.checked(Path(path))
    return present


def _finished_seeds(made: SuiteFiles, method: str) -> list[int]:
    """The seeds for which all results of a method are on disk."""
    every = [*made.records([method]), *made.explorations([method])]
    missing = {file.seed for file in every if not Path(file.path).exists()}
    return [seed for seed in made.suite.seeds if seed not in missing]


def _is_begun(made: SuiteFiles, method: str) -> bool:
    """Whether an evaluation of the method is on disk; that of iteration 0 is also of methods that were never run."""
    return any(
        Path(file.path).exists() for file in made.records([method]) if file.iteration == min(1, _last(made, file))
    )


def _unfinished(method: str, finished: Sequence[int], suite: Suite) -> str:
    counted = f"{len(finished)} of {len(suite.seeds)} seeds have all results"
    others = f", or judge the finished seeds with `--set 'seeds={[*finished]}'`" if finished else ""
    return f"`{method}` is unfinished: {counted}; finish the run{others}."
