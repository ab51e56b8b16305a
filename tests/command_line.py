"""The command line, run in this process, and the command of a job."""

import pytest

from coevolve import cli


def exit_status(*arguments):
    """How a command ends."""
    with pytest.raises(SystemExit) as ended:
        cli.main(list(map(str, arguments)))
    return ended.value.code


def stage_command(job, suite, out, inputs=(), options=()):
    """The command of a job, as the DAG gives it; of `inputs`, a value is a path or several."""
    stage, wildcards = job
    about = [word for name, value in wildcards.items() for word in ("--on", f"{name}={value}")]
    paths = {name: [path] if isinstance(path, str) else path for name, path in dict(inputs).items()}
    files = [f"{name}={path}" for name, given in paths.items() for path in given]
    return ["stage", stage, "--suite", str(suite), "--out", str(out), *options, *about, *files]
