"""The archives of `results/evidence`: whole, and of the runs of the committed results, where there are any yet."""

import hashlib
import re
import tarfile
from collections import defaultdict
from pathlib import PurePath

import pytest

from coevolve.dag.layout import MIRROR
from coevolve.export import suite_evidence
from coevolve.export.suite_export import JOBS
from coevolve.records.provenance import Provenance
from coevolve.storage import provenance
from tools import front_page

#: The files in the archives of each committed folder; an archive's name ends with its seeds.
FOLDERS: dict[str, dict[PurePath, bytes]] = defaultdict(dict)
for archive in (front_page.ROOT / "results/evidence").iterdir():
    with tarfile.open(archive) as tar:
        for entry in tar:
            path = PurePath(entry.name)
            FOLDERS[re.sub(r"(_\d+)+$", "", archive.name.partition(".")[0])][path] = tar.extractfile(entry).read()


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_archives_of_a_folder_have_the_files_of_its_committed_jobs(folder):
    contents = FOLDERS[folder]
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
