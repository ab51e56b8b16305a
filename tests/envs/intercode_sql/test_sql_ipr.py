"""IPR's archives: found wherever they lie inside, refused where they do not fit the lists."""

import json
import zipfile
from pathlib import Path

import pytest

from coevolve.envs.intercode_sql.ipr_archives import EXPERTS, TEST, TRAIN, unpack
from coevolve.envs.intercode_sql.tasks import indices
from coevolve.errors import UserError
from coevolve.storage import files

ITEM = {"db": "a", "gold": "SELECT 1", "query": "?"}
GOOD = {
    TRAIN: [ITEM] * 4555,
    TEST: [ITEM] * 1015,
    EXPERTS: [{"id": number, "conversations": []} for number in indices("ipr/train_indices.json")],
}


def archives(folder: Path, **changes) -> list[Path]:
    files = GOOD | changes
    data, trajectories = folder / "data.zip", folder / "trajectories.zip"
    with zipfile.ZipFile(data, "w") as archive:
        for name in (TRAIN, TEST):
            archive.writestr(f"inner/{name}", json.dumps(files[name]))
        archive.writestr("docker/all.sql", "SELECT 1;")
        archive.writestr("docker/Dockerfile", "FROM mysql")
    with zipfile.ZipFile(trajectories, "w") as archive:
        archive.writestr(f"data/{EXPERTS}", json.dumps(files[EXPERTS]))
    return [data, trajectories]


def test_the_files_are_found_and_their_hashes_given(tmp_path: Path) -> None:
    found = unpack(archives(tmp_path), tmp_path / "out")
    assert sorted(found) == ["all.sql", TEST, TRAIN, EXPERTS]
    assert {path.name: files.sha256(path) for path in (tmp_path / "out").iterdir()} == found
    assert json.loads((tmp_path / "out" / TRAIN).read_text()) == GOOD[TRAIN]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({TRAIN: [ITEM] * 4539}, f"{TRAIN}: it has no item 4539"),
        ({TEST: [ITEM] * 1034}, f"{TEST}: it does not have 1015 items"),
        ({EXPERTS: GOOD[EXPERTS][1:]}, f"{EXPERTS}: it lacks 1 of 1500 training items"),
        ({TEST: {"items": []}}, f"{TEST}: it is not a list of items"),
    ],
)
def test_what_is_not_iprs_is_refused_and_nothing_written(tmp_path: Path, changes: dict, words: str) -> None:
    with pytest.raises(UserError, match=words):
        unpack(archives(tmp_path, **changes), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_archive_alone_and_a_broken_one_are_named(tmp_path: Path) -> None:
    data, trajectories = archives(tmp_path)
    with pytest.raises(UserError, match=rf"data\.zip: no {EXPERTS} inside"):
        unpack([data], tmp_path / "out")
    trajectories.write_bytes(trajectories.read_bytes()[:1000])
    with pytest.raises(UserError, match=r"trajectories\.zip: not readable as a zip file"):
        unpack([data, trajectories], tmp_path / "out")
