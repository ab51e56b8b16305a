"""The archives of `results/evidence`: whole, and of the runs that the committed results are made from."""

import hashlib
import tarfile
from pathlib import PurePath

import pytest

from coevolve.storage import provenance
from coevolve.types import Provenance
from coevolve.workflow import suite_evidence
from coevolve.workflow.suite_export import JOBS
from docs import front_page

ARCHIVES = sorted((front_page.ROOT / "results/evidence").glob("*.tar.xz"))


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name)
def test_an_archive_has_the_files_of_the_committed_jobs(archive):
    with tarfile.open(archive) as tar:
        contents = {PurePath(entry.name): tar.extractfile(entry).read() for entry in tar if entry.isfile()}
    (suite,) = {path.parts[1] for path in contents}
    committed = {job["result"]: job["outputs"] for job in front_page.read_lines(suite, JOBS)}
    jobs = {path.parent: Provenance.from_json(text) for path, text in contents.items() if path.name == provenance.NAME}
    assert {job.result for job in jobs.values()} == committed.keys()
    others = (provenance.NAME, suite_evidence.MARKER)
    files = {path: content for path, content in contents.items() if path.parent in jobs and path.name not in others}
    assert {path.name for path in files} >= {"episodes.jsonl", "pairs.jsonl", "records.jsonl"}
    for path, content in files.items():
        sha256 = hashlib.sha256(content).hexdigest()
        assert jobs[path.parent].outputs[path.name] == committed[jobs[path.parent].result][path.name] == sha256, path
