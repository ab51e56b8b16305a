"""The page about evaluating a model is true: its commands run, against a checkpoint and a server on this machine."""

import json

from policies.chatserver import serving
from policies.shopper import PLAYER


def test_the_commands_of_the_page_run(read, kit, made):
    page = read("evaluate_a_model")
    (kit.folder / "checkpoint").symlink_to(made / "results/glance/tiny/webshop/base/seed0/policy/target")
    (published,) = page.blocks("yaml")
    kit.write("published.yaml", published)
    checkpoint, endpoint, compared, with_published = page.blocks("console")
    assert "| mine" in kit.shell(checkpoint)
    with serving(PLAYER, count=lambda messages: 10 * len(messages), key="any-word") as server:
        done = kit.ask("bash", "-ec", endpoint.replace("http://127.0.0.1:8000/v1", server.url))
        assert "| theirs" in done.stdout, done.stderr
        assert server.url not in done.stderr  # no line for each request
    result = json.loads((kit.folder / "mine.json").read_text())
    assert result["splits"]["test"]["tasks"] == 10
    both = kit.shell(compared)
    assert "mine and theirs, test: comparable: every setting of the evaluation is the same" in both
    assert "smallest difference that could be seen" in both
    assert "NOT comparable (settings that differ: 4;" in kit.shell(with_published)
