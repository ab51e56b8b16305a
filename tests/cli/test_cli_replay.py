"""`coevolve replay` tells by its exit status whether an environment answers as it was recorded."""

import json
import shutil
import subprocess
import sys

import pytest


@pytest.fixture
def replay(root):
    def run(*arguments):
        command = [sys.executable, "-m", "coevolve", "replay", *map(str, arguments)]
        return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)

    return run


@pytest.fixture
def recorded(root):
    return root / "tests/envs/webshop/recorded"


def test_the_order_of_human_goals_is_checked_against_upstreams_list(replay, recorded, tmp_path):
    meta = json.loads((recorded / "human.jsonl").read_text(encoding="utf-8").splitlines()[0])
    texts = [goal["instruction_text"].split(", and price lower than")[0] for goal in meta["goals"]]
    published = tmp_path / "human_goals.json"
    for order, status in ((texts, 0), (texts[::-1], 1)):
        published.write_text(json.dumps(order), encoding="utf-8")
        done = replay("webshop", "--catalogue", recorded, "--goals", published)
        assert done.returncode == status, done.stdout + done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("webshop", "--catalogue", "nowhere", "--goals", "README.md"),
        ("webshop", "--catalogue", "tests/envs/webshop/recorded", "--goals", "README.md"),
        ("sciworld", "README.md"),
    ],
)
def test_bad_input_is_one_sentence(replay, arguments):
    done = replay(*arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("coevolve: ")


def test_a_folder_without_the_product_files_is_named(replay, recorded, tmp_path):
    shutil.copy(recorded / "items_shuffle_1000.json", tmp_path)
    done = replay("webshop", "--catalogue", tmp_path, "--goals", "README.md")
    assert done.returncode == 2
    assert str(tmp_path) in done.stderr
