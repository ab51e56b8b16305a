"""Copies of the working tree in which tests run the kit, and what such a run decides."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

DECIDED = (
    "policy.json", "scores.safetensors", "pairs.jsonl", "records.jsonl", "table1.json", "table1.md", "figure3.json",
)  # fmt: skip


def copy_of(root: Path, target: Path) -> Path:
    """The tree's own files, those not yet committed too, at `target`."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines():
        source = root / name
        if source.is_symlink() or source.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name, follow_symlinks=False)
    return target


def heed_ctrl_c() -> None:
    """For `preexec_fn`: what a shell starts in the background ignores SIGINT, and so would its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def environment(repo: Path) -> dict[str, str]:
    """Variables with which a copy runs its own code, under this interpreter, and keeps bytecode for the next job."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {"PATH": path, "PYTHONPATH": str(repo), "HOME": str(repo), "PYTHONDONTWRITEBYTECODE": ""}
    return os.environ | variables


class Copy:
    """A copy of the kit, and what runs in it; `packages` is a folder with packages that are installed for it."""

    def __init__(self, folder):
        self.folder, self.packages = folder, None

    def write(self, name, text):
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(text)

    def edit(self, name, old, new):
        before = (self.folder / name).read_text()
        assert before.count(old) == 1, f"{name}: {old!r} stands there {before.count(old)} times"
        self.write(name, before.replace(old, new))

    @property
    def variables(self):
        own = environment(self.folder)
        if self.packages:
            own["PYTHONPATH"] += f"{os.pathsep}{self.packages}"
        return own

    def ask(self, *command):
        own = self.variables
        return subprocess.run(command, cwd=self.folder, env=own, capture_output=True, text=True, check=False)

    def run(self, *command):
        done = self.ask(*command)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def shell(self, line):
        return self.run("bash", "-ec", line)

    def python(self, code):
        return self.run("python", "-c", code)


def decided(home: Path) -> dict[str, object]:
    """Everything a run decides: hashes of policies, episodes without their timings, pairs, tables."""
    found: dict[str, object] = {}
    for path in sorted(home.rglob("*")):
        name = str(path.relative_to(home))
        if name.startswith("."):  # what was planned
            continue
        if path.name in DECIDED:
            found[name] = path.read_bytes()
        if path.name == "episodes.jsonl":
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            found[name] = [{k: v for k, v in line.items() if k not in ("seconds", "attempts")} for line in lines]
    return found
