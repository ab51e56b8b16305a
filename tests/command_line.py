"""The command line, run in this process, and the command of a job."""

import pytest

from coevolve import cli
from coevolve.records.evaluation import ResultFile


def exit_status(*arguments):
    """How a command ends."""
    with pytest.raises(SystemExit) as ended:
        cli.main(list(map(str, arguments)))
    return ended.value.code


def of_results(paths):
    """Whether files are given with what they are results of."""
    return isinstance(paths, list) and bool(paths) and isinstance(paths[0], ResultFile)


def stage_command(job, suite, out, inputs=(), options=()):
    """The command of a job; `inputs` by name are a path or several. Those by key are found by the command itself."""
    stage, wildcards = job
    about = [word for name, value in wildcards.items() for word in ("--on", f"{name}={value}")]
    named = {name: paths for name, paths in dict(inputs).items() if not of_results(paths)}
    files = [
        f"{name}={path}" for name, paths in named.items() for path in ([paths] if isinstance(paths, str) else paths)
    ]
    return ["stage", stage, "--suite", str(suite), "--out", str(out), *options, *about, *files]
