"""The page about publishing is true: its commands run on a finished suite."""

import contextlib
import json

from datasets import load_dataset


def test_the_commands_of_the_page_run(read, made, kit):
    page = read("publish")
    (kit.folder / "results/glance").symlink_to(made / "results/glance")
    for command in page.commands:
        assert "Nothing was uploaded." in kit.shell(command.replace("results/smoke", "results/glance"))
    with contextlib.chdir(kit.folder):
        assert len(load_dataset("dataset", "trajectories", cache_dir="cache")["test"]) == 6
    (log,) = (kit.folder / "logs").glob("*_webshop_*.json")
    assert json.loads(log.read_text())["status"] == "success"
    assert (kit.folder / "model_card/README.md").exists() and (kit.folder / "trl_tokens/sft.jsonl").exists()
