"""The audit of BFCL is true: the Python on the page runs, with its assertions."""

import re

import pytest


def test_every_number_of_the_audit_is_measured(root):
    pytest.importorskip("bfcl_eval", reason="the wheel of envs_setup/bfcl.lock is not installed; run `make setup`")
    blocks = re.findall(r"```python\n(.*?)```", (root / "docs/environments/bfcl_audit.md").read_text(), re.DOTALL)
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "docs/environments/bfcl_audit.md", "exec"), names)
    assert len(blocks) == 10
