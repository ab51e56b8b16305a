"""Files of the repository that an installed package contains too: `data/<environment>/` and `configs/`.

In a checkout this folder holds links to them; a wheel holds copies.
"""

from pathlib import Path

FOLDER = Path(__file__).parent
DATA = FOLDER / "data"
CONFIGS = FOLDER / "configs"


def shipped_file(path: Path) -> Path:
    """`path` if it exists, else the shipped file of that relative path if there is one, else `path`."""
    return path if path.exists() or not (FOLDER / path).is_file() else FOLDER / path
