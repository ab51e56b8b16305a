"""What a job executes: a copy of the kit gets this module as `coevolve/executed.py`, and runs its stages through it."""

import cProfile
import json
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parent


def watched(run: Callable[[Any, Path], Any], job: Any, folder: Path) -> Any:
    """Run a stage, and write the places of the package's functions that its process called to `executed/`."""
    profiles: list[cProfile.Profile] = []

    def begin(*_: Any) -> None:
        profiles.append(cProfile.Profile(builtins=False))
        profiles[-1].enable()  # in place of this function, in this thread

    threading.setprofile(begin)
    begin()
    try:
        return run(job, folder)
    finally:
        profiles[0].disable()
        threading.setprofile(None)  # type: ignore[arg-type]
        codes = {entry.code for profile in profiles for entry in profile.getstats()}
        ours = {code for code in codes if not isinstance(code, str) and code.co_filename.startswith(f"{PACKAGE}/")}
        called = sorted({(code.co_filename.removeprefix(f"{PACKAGE}/"), code.co_firstlineno) for code in ours})
        written = Path("executed", f"{uuid.uuid4()}.json")
        written.parent.mkdir(exist_ok=True)
        written.write_text(json.dumps({"stage": job.stage, "wildcards": job.wildcards, "called": called}))
