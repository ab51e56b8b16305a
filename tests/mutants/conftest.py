"""A tree on which mutants are judged."""

import pytest

#: A package of a line with a test that sees one of its two edges.
CODE = "def sign(x):\n    return 1 if x > 0 else -1\n"
TEST = "from coevolve.sign import sign\n\n\ndef test_signs():\n    assert (sign(2), sign(-2)) == (1, -1)\n"


@pytest.fixture
def tree(tmp_path):
    """A tree with one module and one test."""
    for name, content in (("coevolve/sign.py", CODE), ("tests/test_sign.py", TEST)):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(content)
    (tmp_path / "coevolve/__init__.py").touch()  # else the installed package would be imported
    (tmp_path / "configs").mkdir()
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["."]\n')
    return tmp_path
