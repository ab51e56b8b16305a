"""An environment of another package: what its digest covers, and what becomes of a package that cannot be used."""

import os
import subprocess
import sys

SECTION = "from coevolve.envs.section import EnvSection\n\n\nclass Guess(EnvSection):\n    size: int\n"
#: Prints the digest of the code of `game.domain`, and whether anything of `game` was imported for it.
DIGEST = """
import sys
from coevolve.storage import code_digest
print(code_digest.code_digest("game.domain"), any(name.startswith("game") for name in sys.modules))
print(*sorted(name for name in code_digest.reachable("game.domain") if name.startswith("game")))
"""
USE = """
from coevolve.envs.section import known_kinds, section_class
from coevolve.envs.registry import optional
from coevolve.errors import UserError
for kind in known_kinds():
    try:
        print(kind, section_class(kind).__module__)
    except UserError as error:
        print(kind, error)
optional("sciworld", "installation")
"""
MODULES = {
    "__init__.py": "",
    "domain.py": "from game.rules import LIMIT\nfrom .parts import board, WORD\nA, B, C = LIMIT, board.X, WORD\n",
    "rules.py": "raise RuntimeError('imported')\nLIMIT = 3\n",
    "parts/__init__.py": "from .words import WORD\n",
    "parts/board.py": "from .. import names\nfrom ..colours import RED\nX, Y = RED, names\n",
    "parts/words.py": "WORD = 1\n",
    "names.py": "NAME = 1\n",
    "colours.py": "RED, BLUE = 1, 2\nGREEN = 3\n",
    "unused.py": "",
}
#: What is reached of them: of a module that is named as a whole, everything.
REACHED = {
    "domain.A", "domain.B", "domain.C", "rules.LIMIT", "rules.(body)", "parts.board.X", "parts.words.WORD",
    "names.NAME", "parts.board.Y", "colours.RED", "colours.BLUE",
}  # fmt: skip


def write(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def install(folder, distribution, points):
    """What pip leaves of a distribution beside its modules."""
    lines = "".join(f"{kind} = {package}\n" for kind, package in points.items())
    metadata = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n"
    entry_points = f"[coevolve.envs]\n{lines}"
    write(folder / f"{distribution}-1.0.dist-info", {"METADATA": metadata, "entry_points.txt": entry_points})


def python(root, folder, code):
    path = os.pathsep.join([str(root), str(folder)])
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_the_digest_covers_what_the_package_imports_of_itself_without_importing_it(root, tmp_path):
    write(tmp_path / "game", MODULES)
    first, names = python(root, tmp_path, DIGEST)
    before, imported = first.split()
    assert imported == "False"
    assert set(names.split()) == {f"game.{name}" for name in REACHED}
    for name, text, same in (
        ("names.py", "NAME = 1\nOTHER = 1\n", False),
        ("names.py", "NAME = 1\n# a comment\n", True),
        ("colours.py", "RED, BLUE = 1, 2\nGREEN = 4\n", True),
        ("unused.py", "OTHER = 1\n", True),
    ):
        write(tmp_path / "game", {name: text})
        assert (python(root, tmp_path, DIGEST)[0].split()[0] == before) == same


#: The names in the entry points of a distribution, and the text of the package's `config.py`, if it has one.
PACKAGES = {
    "usable": ("guess", SECTION),
    "moduleless": ("chess", None),
    "sectionless": ("go", "SECTION = None\n"),
    "first": ("twice", SECTION),
    "second": ("twice", SECTION),
    "shop": ("webshop", SECTION),
}
FAULTS = {
    "chess": ("cannot import `moduleless.config` (No module named 'moduleless.config')", "moduleless"),
    "go": ("0 subclasses of `EnvSection` in the module `sectionless.config`, it must have one", "sectionless"),
    "twice": ("several packages have it (first, second)", "first, second"),
    "webshop": ("several packages have it (coevolve.envs.webshop, shop)", "shop"),
}


def test_packages_that_cannot_be_used_are_named_and_hinder_no_other(root, tmp_path):
    for package, (kind, config) in PACKAGES.items():
        install(tmp_path, package, {kind: package})
        write(tmp_path / package, {"__init__.py": ""} | ({"config.py": config} if config else {}))
    usable = {kind: f"coevolve.envs.{kind}.config" for kind in ("bfcl", "intercode_sql", "sciworld")}
    faults = {
        kind: f"environment `{kind}`: {fault}; correct the package or remove it (`pip uninstall {names}`)."
        for kind, (fault, names) in FAULTS.items()
    }
    used = dict(line.split(" ", 1) for line in python(root, tmp_path, USE))
    assert used == usable | {"guess": "usable.config"} | faults
    assert list(used) == sorted(used)


GAME = """
import contextlib, os, sys, time
from coevolve.envs.base import StepResult

class Game:
    identity = "Game 1"
    def parse(self, text): return text
    def start(self, task): return str(os.getpid())
    def step_limit(self, task): return 3
    def close(self): pass
    def step(self, action):
        if action == "exit":
            os._exit(0)
        if action == "sleep":
            time.sleep(3600)
        return StepResult("", reward=int("one"), score=0.0, done=True)

@contextlib.contextmanager
def pool(setup, n):
    yield [Game() for _ in range(n)]
"""
PLAY = """
import os, sys
from coevolve.envs.section import section_class
from coevolve.envs.base import EnvError, Setup
from coevolve.envs.workers import environments
from coevolve.errors import UserError
from coevolve.records.episodes import Task
keys = {"kind": "guess", "label": "Guess", "splits": ["test"], "workers": 1, "size": 1, "step_seconds": 1.0}
setup = Setup(section_class("guess").model_validate(keys), "envs.guess", "fixed", None)
with environments(setup, 1) as (env,):
    for action in ("exit", "sleep", "look"):
        print(env.start(Task(env="guess", task_id="guess/1", split="test")) != str(os.getpid()))
        try:
            env.step(action)
        except (EnvError, UserError) as error:
            print(type(error).__name__, error)
"""


def test_what_a_package_does_ends_no_job_without_a_sentence(root, tmp_path):
    install(tmp_path, "first", {"guess": "game"})
    write(tmp_path / "game", {"__init__.py": "", "config.py": SECTION, "domain.py": GAME})
    there, ended, *others, failed = python(root, tmp_path, PLAY)
    assert there == "True" and ended.startswith("EnvError process") and ended.endswith("has ended")
    assert others == ["True", "EnvError `step` took longer than `step_seconds: 1`; its process was killed", "True"]
    (number,) = (number for number, line in enumerate(GAME.splitlines(), 1) if 'int("one")' in line)
    place = f"{tmp_path}/game/domain.py:{number}"
    assert failed == (
        "UserError environment `guess`, task `guess/1`: `step` failed with ValueError: invalid literal for int() with "
        f"base 10: 'one' ({place}); correct the environment."
    )
