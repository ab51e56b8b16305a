"""Jobs, durations and failures in words, for a person who follows a run."""

import re
from collections.abc import Iterator
from pathlib import Path

from coevolve import escaping
from coevolve.config.suite import Suite
from coevolve.pipeline.stage import PlannedJob

#: The end of a log that is searched for the error, in bytes.
TAIL_BYTES = 1 << 16
#: What a logged line begins with.
TIME = r"\d\d:\d\d:\d\d "


def job_label(suite: Suite, job: PlannedJob) -> str:
    """A job in words, such as `ScienceWorld · Co-evolving · seed 0 · iteration 2 · train target`."""
    return " · ".join([*_setting(suite, job), _work(suite, job)])


def _setting(suite: Suite, job: PlannedJob) -> Iterator[str]:
    """Model, environment, method, seed and iteration, as far as the job has them; the model only among several."""
    wildcards, branch = job.wildcards, job.branch
    if "model" in wildcards and (len(suite.models) > 1 or "env" not in wildcards):
        yield suite.models[wildcards["model"]].label
    if "env" in wildcards:
        yield suite.envs[wildcards["env"]].label
    if branch is None:
        return
    if "/" in branch.method:
        if not branch.method.endswith((job.stage.name, f"{job.stage.name}ed")):
            yield branch.method.removeprefix("base/")
        return
    if branch.method in suite.recipes:
        yield suite.recipes[branch.method].label
    yield f"seed {branch.seed}"
    if branch.iteration:
        yield f"iteration {branch.iteration}"


def _work(suite: Suite, job: PlannedJob) -> str:
    """The stage, and what it works on."""
    words, wildcards = [job.stage.name.replace("_", " ")], job.wildcards
    if "whole" in wildcards:
        part, _, parts = wildcards["part"].partition("of")
        words = [wildcards["whole"].replace("/", " "), f"part {part} of {parts}"]
    words += [wildcards[name] for name in ("agent", "source", "file") if name in wildcards]
    if "of" in wildcards:
        words.append(f"({wildcards['of'].replace('_', ', ')})")
    if "ablation" in wildcards:
        words.append(suite.ablations[wildcards["ablation"]].label)
    return " ".join(words)


def clock(seconds: float) -> str:
    """A duration as `0:23`, or as `1:02:03` from an hour on."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def about(seconds: float) -> str:
    """An estimated duration: `about 40 s`, `about 3 min`, `about 2 h 10 min`."""
    if seconds < 55:
        return f"about {max(10 * round(seconds / 10), 5)} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"about {minutes} min"
    return f"about {minutes // 60} h {10 * (minutes % 60 // 10)} min"


def failure(log: Path) -> str | None:
    """The error at the end of a job's log in one line: the kit's sentence, else an exception; None without either."""
    lines = _last_lines(log)
    sentences = [line.removeprefix("coevolve: ") for line in lines if line.startswith("coevolve: ")]
    if not sentences and "Traceback (most recent call last):" in lines:
        sentences = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Interrupt|Exit|Warning)\b", line)]
        sentences = sentences or lines
    return escaping.terminal(sentences[-1]) if sentences else None


def progress(log: Path) -> str:
    """What a running job logged last, such as `episodes 64/108, reward 0.087, 0:05:21 left`; empty if nothing yet."""
    lines = [line for line in _last_lines(log) if re.match(TIME, line)]
    return escaping.terminal(re.sub(f"^{TIME}", "", lines[-1])) if lines else ""


def _last_lines(log: Path) -> list[str]:
    """The lines with text at the end of a log; none if it cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(log.stat().st_size - TAIL_BYTES, 0))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return [line.rstrip() for line in text.splitlines() if line.strip()]
