"""Installs upstream's tagger, spaCy and its model, before the first job of a run that needs it."""

import subprocess
import sys
from pathlib import Path

from coevolve.assets import images
from coevolve.envs.webshop.config import WebShopConfig
from coevolve.envs.webshop.tagger import MODEL, load_tagger

LOCK = Path("envs_setup/tagger.lock")
_MISSING = f"import importlib.util, sys; sys.exit(importlib.util.find_spec('{MODEL}') is None)"


def install(config: WebShopConfig) -> None:
    """Installs `LOCK` into this environment and that of vLLM; raises `UserError` if the tagger is missing then."""
    sample = images.environment("sample") / "bin/python"
    locks = {Path(sys.executable): images.packages_lock("train"), sample: images.packages_lock("sample")}
    for python, others in locks.items() if config.tagger == "spacy" and LOCK.is_file() else ():
        if python.exists() and subprocess.run([python, "-c", _MISSING], check=False).returncode:
            words = ["--quiet", "--constraint", str(others), "--requirement", str(LOCK)]
            subprocess.run([str(python), "-m", "pip", "install", *words], check=False)  # it prints why it fails
    load_tagger(config.tagger)
