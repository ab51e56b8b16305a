"""Upstream's recordings in `tests/data`: whole, listed, licensed, and all that a test needs from elsewhere."""

import hashlib
import json
import re
from pathlib import Path

import pytest

from coevolve.envs.intercode_sql import recorded_runs

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests/data"
CONTENTS = json.loads((DATA / "contents.json").read_text())


def test_every_recording_is_listed():
    packed = {path.relative_to(DATA).as_posix() for path in DATA.rglob("*.xz")}
    assert {f"{entry['file']}.xz" for entry in CONTENTS} == packed
    assert sum(path.stat().st_size for path in DATA.rglob("*.xz")) < 2e6


@pytest.mark.parametrize("entry", CONTENTS, ids=lambda entry: entry["file"])
def test_a_recording_is_as_upstream_has_it(entry, upstream):
    assert hashlib.sha256((upstream / entry["file"]).read_bytes()).hexdigest() == entry["sha256"]
    licence = (DATA / entry["file"]).with_name("LICENSE").read_text()
    assert {"MIT": "MIT License", "Apache-2.0": "Apache License"}[entry["licence"].split(";")[0]] in licence
    assert entry["source"].split()[0] in licence or entry["licence"] == "Apache-2.0"
    if "unit" in entry:
        assert count(entry["unit"], upstream / entry["file"]) == entry["records"]


def count(unit: str, file: Path) -> int:
    """The number of records in a recording."""
    if unit == "statements":  # a submission repeats one
        episodes = recorded_runs.read(file, file.with_name("ic_spider_dev.json"))
        return sum(turn.statement is not None for episode in episodes for turn in episode.turns)
    content = file.read_bytes()
    if unit == "observations":
        episodes = [line for line in map(json.loads, content.splitlines()) if line["kind"] == "episode"]
        return sum(1 + len(episode["steps"]) for episode in episodes)
    records = json.loads(content)
    return len(records) * (2 if records and "teleport_steps" in records[0] else 1)


def test_no_test_needs_a_file_from_outside_of_the_clone():
    """The README states it. What a test needs else is a program, such as MySQL or Chromium."""
    outside = re.compile(r"\b(ROOT|root)\.parent\b|[\"'/]shared/")
    texts = {path: path.read_text() for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)}
    assert [path.name for path, text in texts.items() if outside.search(text)] == []
