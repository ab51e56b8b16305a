"""The origin of a file of episodes or pairs (method, seed, iteration, ...), parsed from its path, and links to it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlencode

from coevolve.records.base import Record

_BRANCH = r"(?:base/(?P<state>(?!seed\d)\w+)|(?P<method>\w+)/seed(?P<seed>\d+)(?:/iter(?P<iteration>\d+))?)"
_RESULT = re.compile(
    rf"(?:^|/)(?P<env>[\w.-]+)/{_BRANCH}/(?P<part>rollout|eval|pairs|policy)(?:/(?P<agent>\w+))?/[^/]+$"
)
_DATA = re.compile(r"(?:^|/)data/(?P<env>[\w.-]+)/[^/]+$")


class FileOrigin(Record):
    """The job that made a file.

    `method` is `base` for jobs that all methods share after fine-tuning, `experts` for expert trajectories. `iteration`
    is 0 for files without iterations. `part` is `rollout`, `eval`, `pairs`, `policy` (an online training) or `experts`;
    `agent` is the agent that explored, or that is trained.
    """

    env: str
    method: str
    seed: int
    iteration: int
    part: str
    agent: str

    @classmethod
    def of(cls, path: str | Path) -> FileOrigin:
        """The origin of a file of results; for any other path, `method` is the path."""
        text = Path(path).as_posix()
        if match := _RESULT.search(text):
            return cls(
                env=match["env"],
                method=match["method"] or match["state"],
                seed=int(match["seed"] or 0),
                iteration=int(match["iteration"] or 0),
                part=match["part"],
                agent=match["agent"] or "target",
            )
        env = match["env"] if (match := _DATA.search(text)) else ""
        method = "experts" if env else text
        return cls(env=env, method=method, seed=0, iteration=0, part="experts", agent="expert")


def record_files(home: Path) -> tuple[list[Path], list[Path]]:
    """The finished files of episodes under a suite's results, experts first and without shards; and those of pairs."""
    experts = sorted(home.glob("data/*/experts.jsonl"))
    episodes, pairs = (
        sorted(
            path
            for path in home.rglob(name)
            if not any(folder == "parts" or folder.startswith(".") for folder in path.relative_to(home).parts)
        )
        for name in ("episodes.jsonl", "pairs.jsonl")
    )
    return experts + episodes, pairs


def link(page: str, sources: Iterable[str], split: str = "") -> str:
    """The address of the site's list of episodes, filtered to those of the evaluation records `sources`."""
    origins = [FileOrigin.of(source) for source in sources]
    filters = {
        name: " ".join(sorted({str(getattr(origin, name)) for origin in origins}))
        for name in ("method", "env", "iteration", "part")
    }
    single = {name: values for name, values in filters.items() if " " not in values}
    return f"{page}#/episodes?{urlencode(single | ({'split': split} if split else {}))}"
