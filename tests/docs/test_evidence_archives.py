"""The archives of `results/evidence`: whole, and of the runs of the committed results, where there are any yet."""

import hashlib
import json
import re
import subprocess
import sys
import tarfile
from collections import Counter, defaultdict
from pathlib import Path, PurePath

import pytest

from coevolve.export import suite_evidence
from coevolve.export.suite_export import JOBS
from coevolve.pipeline.stage import MIRROR
from coevolve.records.provenance import Provenance
from coevolve.storage import provenance
from tools import front_page

#: The archives of each committed folder; an archive's name ends with its seeds.
FOLDERS: dict[str, list[Path]] = defaultdict(list)
for archive in sorted((front_page.ROOT / "results/evidence").iterdir()):
    FOLDERS[re.sub(r"(_\d+)+$", "", archive.name.partition(".")[0])].append(archive)

#: What `coevolve reverify` printed of archives before the plan became a loop (commit 4dd4960): files as they were made,
#: files that differ, files that cannot be checked, episodes that were executed.
COUNTS = {
    "real_tuned_0": (16, 0, 5, 240),
    "real_tuned_1": (16, 0, 5, 240),
    "real_tuned_2": (16, 0, 5, 240),
    "science_when_matched_0": (6, 0, 16, 3360),
    "science_dose_8": (26, 0, 10, 4620),
}


def unpacked(archives: list[Path]) -> dict[PurePath, bytes]:
    """The files in some archives."""
    contents = {}
    for archive in archives:
        with tarfile.open(archive) as tar:
            contents |= {PurePath(entry.name): tar.extractfile(entry).read() for entry in tar}
    return contents


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_archives_of_a_folder_have_the_files_of_its_committed_jobs(folder):
    contents = unpacked(FOLDERS[folder])
    jobs = {path.parent: Provenance.from_json(text) for path, text in contents.items() if path.name == provenance.NAME}
    committed = {job.result: job.outputs for job in jobs.values()}  # of a suite that still runs
    if (front_page.REFERENCE / folder).exists():
        committed = {job["result"]: job["outputs"] for job in front_page.read_lines(folder, JOBS)}
    shared = {job.result for path, job in jobs.items() if path.is_relative_to(MIRROR)}
    assert {job.result for job in jobs.values()} - shared == committed.keys() - shared
    assert all(made / suite_evidence.MARKER in contents for made in jobs), "the marks of unpacked results"
    others = (provenance.NAME, suite_evidence.MARKER)
    files = {path: content for path, content in contents.items() if path.parent in jobs and path.name not in others}
    assert {path.name for path in files} >= {"episodes.jsonl", "pairs.jsonl", "records.jsonl"}
    for path, content in files.items():
        sha256 = hashlib.sha256(content).hexdigest()
        assert jobs[path.parent].outputs[path.name] == committed[jobs[path.parent].result][path.name] == sha256, path


@pytest.mark.slow
@pytest.mark.parametrize("archive", COUNTS)
def test_an_archive_is_read_as_before(archive, root, tmp_path):
    """Old records stay readable: every file that could be made or executed again still can, with the same outcome."""
    path, cache = root / f"results/evidence/{archive}.tar.xz", ["--cache", str(tmp_path)]
    words = [sys.executable, "-m", "coevolve", "reverify", str(path), *cache, "--json"]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, check=False)
    files = json.loads(done.stdout)["files"]
    outcomes = Counter(file["status"] for file in files)
    executed = sum(file.get("episodes", 0) for file in files)
    assert (outcomes["same"], outcomes["differs"], outcomes["unchecked"], executed) == COUNTS[archive]
