import subprocess
import sys
import time

import pytest

from coevolve.errors import UserError
from coevolve.storage import policy_dir, pruned

FILES = 5_000
PROGRAM = """
import sys
from pathlib import Path
from coevolve.storage import pruned
pruned.prune(Path(sys.argv[1]), "*.safetensors", "make policy")
"""


def test_a_killed_deletion_leaves_a_marked_folder_that_the_next_one_finishes(tmp_path):
    """Nothing but weights is deleted, and from the first deletion on no job reads the rest of them."""
    (tmp_path / "policy.json").write_text("{}")
    names = [f"model-{number:05}.safetensors" for number in range(FILES)]
    for name in names:
        (tmp_path / name).touch()
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path)])
    while not (tmp_path / pruned.MARK).exists():
        assert process.poll() is None
        time.sleep(0.001)
    process.kill()
    process.wait()
    left = len(list(tmp_path.glob("*.safetensors")))
    assert left > 0
    with pytest.raises(UserError, match=r"its weights were deleted after their last use; `make policy` makes them"):
        policy_dir.digest(tmp_path)
    assert pruned.prune(tmp_path, "*.safetensors", "make policy") == 0
    assert pruned.deleted(tmp_path) == tuple(names)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["policy.json", pruned.MARK]
