"""IPR's archives: the files are found wherever they lie inside."""

import zipfile
from pathlib import Path

import pytest

from coevolve.envs.intercode_sql.ipr_archives import EXPERTS, TEST, TRAIN, unpack
from coevolve.errors import UserError
from coevolve.storage import files


def archives(folder: Path) -> list[Path]:
    data, trajectories = folder / "data.zip", folder / "trajectories.zip"
    with zipfile.ZipFile(data, "w") as archive:
        for name in (TRAIN, TEST):
            archive.writestr(f"inner/{name}", name)
        archive.writestr("docker/all.sql", "SELECT 1;")
        archive.writestr("docker/Dockerfile", "FROM mysql")
    with zipfile.ZipFile(trajectories, "w") as archive:
        archive.writestr(f"data/{EXPERTS}", "[]")
    return [data, trajectories]


def test_the_files_are_found_and_their_hashes_given(tmp_path):
    found = unpack(archives(tmp_path), tmp_path / "out")
    assert sorted(found) == ["all.sql", TEST, TRAIN, EXPERTS]
    assert {path.name: files.sha256(path) for path in (tmp_path / "out").iterdir()} == found
    assert (tmp_path / "out" / TRAIN).read_text() == TRAIN


def test_an_archive_alone_and_a_broken_one_are_named(tmp_path):
    data, trajectories = archives(tmp_path)
    with pytest.raises(UserError, match=rf"data\.zip: no {EXPERTS} inside"):
        unpack([data], tmp_path / "out")
    trajectories.write_bytes(trajectories.read_bytes()[:50])
    with pytest.raises(UserError, match=r"trajectories\.zip: not readable as a zip file"):
        unpack([data, trajectories], tmp_path / "out")
    assert not (tmp_path / "out").exists()
