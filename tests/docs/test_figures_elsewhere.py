"""Committed figures are readable in programs that know neither CSS variables nor dark pages, as in LaTeX and slides."""

import io
import re
import shutil
import subprocess

import numpy as np
import pytest
from matplotlib import get_data_path, image

from tools import front_page

FIGURES = [
    front_page.ROOT / "docs/results.svg",
    *(front_page.REFERENCE / "science" / f"{name}.svg" for name in ("figure2", "figure3", "costs", "mechanism")),
]


def rendered(path):
    """The pixels of a figure, in [0, 1]."""
    if program := shutil.which("rsvg-convert"):
        picture = subprocess.check_output([program, path])
    else:
        fonts = {"font_dirs": [f"{get_data_path()}/fonts/ttf"], "sans_serif_family": "DejaVu Sans"}
        picture = pytest.importorskip("resvg_py").svg_to_bytes(svg_path=str(path), dpi=96.0, **fonts)
    return image.imread(io.BytesIO(picture))


def test_every_committed_figure_has_its_colours_in_itself():
    for path in [*front_page.REFERENCE.glob("*/*.svg"), *(front_page.ROOT / "docs").glob("*.svg")]:
        text = path.read_text()
        assert "var(--" not in text and not re.search(r"(fill|stroke): #000000", text), path


@pytest.mark.parametrize("path", FIGURES, ids=lambda path: path.stem)
def test_the_background_is_light_and_texts_are_dark(path):
    pixels = rendered(path)[:-2, :-2]  # the last row and column may be cut by rounding
    light = pixels[..., :3].min(axis=-1)
    assert (light > 0.98).mean() > 0.5, "mostly white"
    corners = light[[2, 2, -3, -3], [2, -3, 2, -3]]
    assert corners.min() > 0.98 and pixels[..., 3].min() > 0.98
    dark = pixels[..., :3].max(axis=-1) < 0.25
    assert 0.002 < dark.mean() < 0.2
    coloured = np.ptp(pixels[..., :3], axis=-1) > 0.3
    assert coloured.mean() > 0.0005
