"""`coevolve config` prints a suite that loads back to the same config, and names the line that set each key."""

import re
from pathlib import Path

import pytest
import yaml

from coevolve.config.loading import load_suite, merged
from coevolve.errors import UserError
from coevolve.settings.yaml_files import read_yaml

CONFIGS = Path(__file__).parents[2] / "configs"
SUITES = [path for path in sorted(CONFIGS.rglob("*.yaml")) if "\nsuite:" in path.read_text()]
COMMENTED = re.compile(r"^( *)([\w.-]+|'\d+'):.*  # (.+)$")


@pytest.fixture
def here(root, monkeypatch):
    monkeypatch.chdir(root)


def keys(text):
    """(path of the key, origin) of every line."""
    path = []
    for line in text.splitlines():
        indent, key, origin = COMMENTED.match(line).groups()
        path = [*path[: len(indent) // 2], key.strip("'")]
        yield tuple(path), origin


@pytest.mark.parametrize("path", SUITES, ids=lambda path: path.stem)
def test_a_printed_suite_loads_back_and_every_key_names_a_line_that_has_it(here, path, tmp_path):
    """An inherited recipe's keys too: their origin is the row that they come from."""
    printed = tmp_path / "printed.yaml"
    printed.write_text(merged(path.stem).commented())
    assert load_suite(printed) == load_suite(path.stem)
    found = list(keys(printed.read_text()))
    assert len(found) > 300
    for names, origin in found:
        file, _, number = origin.rpartition(":")
        assert re.search(rf"\b{re.escape(names[-1])}\b", Path(file).read_text().splitlines()[int(number) - 1]), origin


def test_the_last_file_that_sets_a_key_is_its_origin(here):
    found = dict(keys(merged("smoke").commented()))
    smoke, small = (Path(f"configs/{name}.yaml").read_text().splitlines() for name in ("suites/smoke", "parts/small"))
    assert found["suite",] == f"configs/suites/smoke.yaml:{smoke.index('suite: smoke') + 1}"
    assert found["sft", "batch_size"] == f"configs/suites/smoke.yaml:{smoke.index('sft: {batch_size: 4}') + 1}"
    assert found["sft", "epochs"].startswith("configs/parts/small.yaml:")
    assert found["protocol",] == f"configs/parts/small.yaml:{[line[:9] for line in small].index('protocol:') + 1}"
    assert found["dpo", "warmup"].startswith("configs/parts/hyperparameters.yaml:")


def test_the_command_shows_an_override_as_its_origin(here, coevolve):
    settings = ["dpo.nll=sum", "recipes.many={extends: coevolve, label: Many}"]
    status, printed, _ = coevolve("config", "--suite", "smoke", *(w for each in settings for w in ("--set", each)))
    found = dict(keys(printed))
    assert status == 0 and found["dpo", "nll"] == "--set dpo.nll=sum"
    assert found["recipes", "many", "label"] == f"--set {settings[1]}"
    assert found["recipes", "many", "agents"].startswith("configs/parts/methods.yaml:")
    assert yaml.safe_load(printed)["recipes"]["many"]["label"] == "Many"


def test_a_value_of_several_lines_and_odd_keys_come_back(tmp_path):
    values = {"a": {"text": "two\nlines # no comment", "1": [None, True, {"x": "y: z"}], "empty": {}}, "yes": "no"}
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    section = read_yaml(tmp_path / "values.yaml")
    assert section.plain() == values
    assert yaml.safe_load(section.commented()) == values
    assert len(section.commented().splitlines()) == 5


def test_keys_merged_by_yaml_itself_have_the_line_of_the_anchor(tmp_path):
    (tmp_path / "anchors.yaml").write_text("base: &base\n  a: 1\n  b: 2\nother:\n  <<: *base\n  b: 3\n")
    section = read_yaml(tmp_path / "anchors.yaml")
    assert section.plain()["other"] == {"a": 1, "b": 3}
    assert [section.origin(["other", key]).rpartition(":")[2] for key in "ab"] == ["2", "6"]


def test_a_value_out_of_range_is_traced_to_its_line(root, tmp_path):
    (tmp_path / "mine.yaml").write_text(f"extends: {root}/configs/suites/smoke.yaml\n\nsft:\n  epochs: -1\n")
    (tmp_path / "child.yaml").write_text("extends: mine.yaml\n")
    with pytest.raises(
        UserError, match=rf"child\.yaml: key `sft\.epochs`: .* \(got -1, set by {tmp_path}/mine\.yaml:4\)\.$"
    ):
        load_suite(tmp_path / "child.yaml")
