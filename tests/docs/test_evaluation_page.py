"""The page about evaluating a model is true: its commands run, against a checkpoint and a server on this machine."""

import json
import logging

from policies.chatserver import serving
from policies.shopper import PLAYER


def test_the_commands_of_the_page_run(read, root, made, tmp_path, console, monkeypatch, caplog):
    page = read("evaluate_a_model")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(root / "configs")
    (tmp_path / "checkpoint").symlink_to(made / "results/glance/tiny/webshop/base/seed0/policy/target")
    (published,) = page.blocks("yaml")
    (tmp_path / "published.yaml").write_text(published)
    checkpoint, endpoint, compared, with_published = page.blocks("console")
    assert "| mine" in console(checkpoint)
    caplog.set_level(logging.INFO)  # as the command line sets it where pytest does not
    with serving(PLAYER, count=lambda messages: 10 * len(messages), key="any-word") as server:
        assert "| theirs" in console(endpoint.replace("http://127.0.0.1:8000/v1", server.url))
        assert server.bodies and server.url not in caplog.text  # no line for each request
    result = json.loads((tmp_path / "mine.json").read_text())
    assert result["splits"]["test"]["tasks"] == 10
    both = console(compared)
    assert "mine and theirs, test: comparable: every setting of the evaluation is the same" in both
    assert "smallest difference that could be seen" in both
    assert "NOT comparable (settings that differ: 4;" in console(with_published)
