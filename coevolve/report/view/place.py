"""Where a file of episodes or pairs stands in the experiment, read from its path, and the site's link to it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlencode

from coevolve.types import Record

_BRANCH = r"(?:base/(?P<state>(?!seed\d)\w+)|(?P<method>\w+)/seed(?P<seed>\d+)(?:/iter(?P<iteration>\d+))?)"
_RESULT = re.compile(rf"(?:^|/)(?P<env>\w+)/{_BRANCH}/(?P<part>rollout|eval|pairs)(?:/(?P<agent>\w+))?/[^/]+$")
_DATA = re.compile(r"(?:^|/)data/(?P<env>\w+)/[^/]+$")


class Place(Record):
    """What made the contents of a file.

    `method` is `base` for what all methods share after fine-tuning, `experts` for expert trajectories. `iteration` is 0
    where there is none. `part` is `rollout`, `eval`, `pairs` or `experts`; `agent` is whom pairs are for.
    """

    env: str
    method: str
    seed: int
    iteration: int
    part: str
    agent: str

    @classmethod
    def of(cls, path: str | Path) -> Place:
        """The place of a file of results; a path of another form is its own method."""
        text = Path(path).as_posix()
        if found := _RESULT.search(text):
            return cls(
                env=found["env"],
                method=found["method"] or found["state"],
                seed=int(found["seed"] or 0),
                iteration=int(found["iteration"] or 0),
                part=found["part"],
                agent=found["agent"] or "target",
            )
        env = found["env"] if (found := _DATA.search(text)) else ""
        method = "experts" if env else text
        return cls(env=env, method=method, seed=0, iteration=0, part="experts", agent="expert")


def places(home: Path) -> tuple[list[Path], list[Path]]:
    """All files of episodes under a suite's results, experts first, and all files of pairs.

    Left out are unfinished ones, and the parts that a rollout was put together from.
    """
    experts = sorted(home.glob("data/*/experts.jsonl"))
    episodes, pairs = (
        sorted(path for path in home.rglob(name) if not _is_part(path.relative_to(home)))
        for name in ("episodes.jsonl", "pairs.jsonl")
    )
    return experts + episodes, pairs


def link(page: str, sources: Iterable[str], split: str = "") -> str:
    """The site's list of the episodes behind evaluation records: their method, iteration, environment and split."""
    found = [Place.of(source) for source in sources]
    asked = {
        name: " ".join(sorted({str(getattr(place, name)) for place in found}))
        for name in ("method", "env", "iteration", "part")
    }
    single = {name: values for name, values in asked.items() if " " not in values}
    return f"{page}#/episodes?{urlencode(single | ({'split': split} if split else {}))}"


def _is_part(relative: Path) -> bool:
    return any(folder == "parts" or folder.startswith(".") for folder in relative.parts)
