"""The page on file formats is true: every example is what the kit's own class writes, and every file is named."""

import dataclasses
import json
import re

import pytest
import yaml

from coevolve import cli
from coevolve.assets import images
from coevolve.assets.hub import Manifest
from coevolve.config.loading import load_suite
from coevolve.config.suite import quirks
from coevolve.methods import pairing
from coevolve.pipeline.registry import STAGES
from coevolve.pipeline.stages.evaluate import records
from coevolve.records.episodes import PolicyRef, Task, Trajectory, Turn
from coevolve.records.evaluation import EpisodeNotes, EvalRecord
from coevolve.records.gradients import GradientReport
from coevolve.records.pairs import Drop, PairingSummary, PairKind, PreferencePair
from coevolve.records.provenance import Provenance
from coevolve.records.training import TrainReport
from coevolve.report.comparison import Comparison
from coevolve.report.costs import Line
from coevolve.report.power import Expectations
from coevolve.report.regime import RegimeCheck
from coevolve.report.table import Table
from coevolve.report.verdicts import Verdict
from coevolve.train.trainer import KIND_METRICS, kind_means
from coevolve.watch.reverify import Reverification

RECORDS = [Task, Trajectory, EvalRecord, PreferencePair, Drop, PairingSummary, PolicyRef, Provenance, TrainReport,
           GradientReport, Table, Verdict, Manifest, RegimeCheck, Comparison, Reverification, Expectations]  # fmt: skip


@pytest.fixture(scope="module")
def page(read):
    return read("file_formats")


@pytest.fixture(scope="module")
def examples(page):
    """The page's examples by the name beside their fence."""
    return dict(re.findall(r"```(?:json|yaml) (\w+)\n(.*?)```", page.text, re.DOTALL))


@pytest.mark.parametrize("kind", RECORDS)
def test_an_example_is_a_whole_record(examples, kind):
    """Equal to the dump, so that it has every key there is, in the order of the class."""
    assert kind.from_json(examples[kind.__name__]).to_json() == json.dumps(
        json.loads(examples[kind.__name__]), separators=(",", ":"), ensure_ascii=False
    )


def test_notes_are_read_as_their_type(examples):
    """A report reads named fields; without them a wrong name of a metric or count would be an empty value."""
    provenance = json.loads(examples["Provenance"])
    notes = {"PairingSummary": PairingSummary, "TrainReport": TrainReport}
    for name, kind in notes.items():
        read = Provenance.model_validate(provenance | {"notes": json.loads(examples[name])}).notes
        assert isinstance(read, kind) and read == kind.from_json(examples[name])
    assert isinstance(Provenance.from_json(examples["Provenance"]).notes, EpisodeNotes)
    assert Provenance.model_validate(provenance | {"notes": {"cells": 36}}).notes == {"cells": 36}


def test_metrics_of_pairs_are_those_that_a_step_logs(examples):
    (step,) = TrainReport.from_json(examples["TrainReport"]).history
    logged = kind_means([(PairKind.EXPERT_TARGET, (0.0,) * len(KIND_METRICS))])
    assert [name for name in step if "/" in name] == list(logged)


def test_examples_of_other_classes_are_whole(examples):
    assert list(json.loads(examples["Line"])) == [field.name for field in dataclasses.fields(Line)]
    (lock,) = images.ImageLock.model_validate(yaml.safe_load(examples["ImageLock"])).images.values()
    assert lock.model_fields_set == set(images.BuiltImage.model_fields)


def test_no_example_is_left_unread(examples):
    assert set(examples) == {*(kind.__name__ for kind in RECORDS), "Line", "ImageLock"}


def test_the_table_of_exit_statuses_has_every_command_once(page):
    rows = re.findall(r"^\|(.+)\|.*\|.*\|.*\|$", page.text, re.MULTILINE)  # the page's only table
    named = [name for row in rows for name in re.findall(r"`([\w-]+)`", row)]
    assert sorted(named) == sorted(cli.COMMANDS)


def test_the_record_is_what_evaluation_makes_of_the_trajectory(examples, root):
    switches = quirks(load_suite(root / "configs/suites/smoke.yaml"))
    (record,) = records([Trajectory.from_json(examples["Trajectory"])], switches, seed=0)
    assert record == EvalRecord.from_json(examples["EvalRecord"])


def test_the_pair_and_the_summary_are_what_pairing_makes_of_the_trajectory(examples, root):
    suite = load_suite(root / "configs/suites/smoke.yaml")
    rollout = Trajectory.from_json(examples["Trajectory"])
    shown = PreferencePair.from_json(examples["PreferencePair"])
    said = [message.content for message in shown.chosen]
    pairs = zip(said[::2], [*said[1::2], ""], strict=True)
    turns = tuple(Turn(text=text, action=None, observation=seen) for text, seen in pairs)
    own = {"agent": "expert", "policy": None, "sampling": None, "turns": turns, "reward": 1.0}
    expert = rollout.model_copy(update=own)
    recipe = suite.recipes["coevolve"].agents["target"]
    kinds = {shown.kind: recipe.trains_on[shown.kind]}
    result = pairing.pair(
        recipe.model_copy(update={"trains_on": kinds}), suite.pairing, [rollout.task], [expert], {"target": [rollout]}
    )
    assert result.pairs == (shown,)
    assert pairing.summary(result) == PairingSummary.from_json(examples["PairingSummary"])


def test_every_file_of_every_stage_is_named(page):
    files = {name for stage in STAGES.values() for name in stage.files if "{" not in name}
    assert {name for name in files | {"provenance.json", "images.lock"} if not named(name, page.text)} == set()


def named(name, text):
    return re.search(rf"[`/]{re.escape(name)}`", text)
