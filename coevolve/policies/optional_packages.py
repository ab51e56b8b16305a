"""Keeps transformers from importing optional packages for features that the kit does not use.

transformers imports them wherever they are installed: about a second of CPU in each training job. It checks once per
process whether a package is installed and caches the answer. Importing this module first runs those checks while the
packages are hidden. Other code can still import them, TRL `datasets` for example.
"""

import sys

#: `datasets`: of a Trainer, for data sets of that type. `scipy`: losses of object detection. `sklearn`: assisted
#: generation.
UNUSED = ("datasets", "scipy", "sklearn")

_hidden = [package for package in UNUSED if package not in sys.modules]
sys.modules.update(dict.fromkeys(_hidden))  # type: ignore[arg-type]

from transformers.utils import import_utils  # noqa: E402

for _package in _hidden:
    getattr(import_utils, f"is_{_package}_available")()
    del sys.modules[_package]
