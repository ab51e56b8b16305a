"""What WebShop itself answered, replayed: on the catalogue in `recorded/`, and on the larger one in `tests/data`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from envs.webshop.spacy_tokenizer import recorded_tagger

from coevolve.envs.webshop.conformance import ANSWER_KINDS, ConformanceReport, replay
from coevolve.errors import UserError

RECORDED = Path(__file__).parent / "recorded"
Line = dict[str, Any]


def replayed(traces: Path, catalogue: Path = RECORDED) -> ConformanceReport:
    return replay(catalogue, traces, recorded_tagger())


@pytest.mark.parametrize(
    ("folder", "traces", "counts"),
    [
        (None, "human", {"observations": 115, "details": 7}),
        (None, "synthetic", {"observations": 86, "details": 5}),
        ("webshop", "traces_human_goals", {"observations": 1134, "rankings": 60, "nouns": 200}),
        ("webshop", "traces_synthetic_goals", {"observations": 1166, "rankings": 214, "nouns": 200}),
    ],
)
def test_recorded_answers_are_ours(upstream: Path, folder: str | None, traces: str, counts: dict[str, int]):
    catalogue = upstream / folder if folder else RECORDED
    report = replayed(catalogue / f"{traces}.jsonl", catalogue)
    assert report.agrees and not report.different, report.text()
    assert set(report.compared) == set(ANSWER_KINDS) and counts.items() <= report.compared.items()
    assert report.text().endswith("no difference")


def bought(lines: list[Line]) -> Line:
    """The first episode that ends with a purchase."""
    return next(line for line in lines if line["kind"] == "episode" and line["steps"][-1]["done"])


def first(lines: list[Line], kind: str) -> Line:
    return next(line for line in lines if line["kind"] == kind)


def starts(lines: list[Line]) -> Line:
    return first(lines, "episode")


def end(lines: list[Line]) -> Line:
    """The step that buys."""
    return bought(lines)["steps"][-1]


def before_end(lines: list[Line]) -> Line:
    return bought(lines)["steps"][-2]


#: The kind of answer, and what damages one answer of that kind.
DAMAGES: list[tuple[str, Callable[[list[Line]], object]]] = [
    ("prices", lambda lines: lines[0]["prices"].update(B0ODD00004=lines[0]["prices"]["B0ODD00004"] + 1e-9)),
    ("prices", lambda lines: lines[0]["prices"].pop("B0ODD00004")),
    ("goals", lambda lines: lines[0]["goals"][3]["goal_options"].append("blue")),
    ("goals", lambda lines: lines[0]["goals"].pop()),
    ("observations", lambda lines: starts(lines).update(reset_obs=starts(lines)["reset_obs"] + " ")),
    ("observations", lambda lines: starts(lines).update(goal_idx=999, steps=[])),
    ("observations", lambda lines: end(lines).update(obs="")),
    ("clickables", lambda lines: before_end(lines)["clickables"].reverse()),
    ("rewards", lambda lines: end(lines).update(reward=end(lines)["reward"] + 1e-9)),
    ("endings", lambda lines: before_end(lines).update(done=True)),
    ("details", lambda lines: bought(lines)["info"].update(title_score=bought(lines)["info"]["title_score"] / 2)),
    ("details", lambda lines: bought(lines).update(info=None)),
    ("rankings", lambda lines: first(lines, "bm25")["top50"].reverse()),
    ("nouns", lambda lines: first(lines, "nouns")["nouns"].append("cup")),
]


@pytest.mark.parametrize(("what", "damage"), DAMAGES)
def test_one_damaged_answer_is_found(tmp_path: Path, what: str, damage: Callable[[list[Line]], object]):
    lines = [json.loads(line) for line in (RECORDED / "human.jsonl").read_text().splitlines()]
    damage(lines)
    damaged = tmp_path / "damaged.jsonl"
    damaged.write_text("".join(json.dumps(line) + "\n" for line in lines))
    report = replayed(damaged)
    assert not report.agrees
    assert report.different == {what: 1}
    assert report.first and report.first.what == what
    assert f"first difference: {what}, " in report.text()
    assert repr(report.first.upstream) in report.text() and repr(report.first.ours) in report.text()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read"),
        ("", r"traces\.jsonl: is empty"),
        ("\n\n", "is not a `meta` line"),
        ('{"kind": "nouns", "title": "a", "nouns": []}\n', "is not a `meta` line"),
        ("{}\n", "kind is None, not one of meta, episode, bm25, nouns"),
        ('{"kind": []}\n', r"kind is \[\], not one of"),
        ('{"kind": "meta"', "line 1: is not JSON"),
        ('{"kind": "bm25", "query": "a", "top50": ["B000000001"]}', "line 1: `top50` does not hold pairs"),
        ('{"kind": "episode", "goal_idx": 0, "reset_obs": "", "info": null, "steps": null}', "lacks `steps`"),
        ('{"kind": "episode", "goal_idx": 0, "reset_obs": "", "info": null, "steps": [0]}', "lacks `action`"),
        ('{"kind": "episode", "goal_idx": "0", "reset_obs": "", "info": null, "steps": []}', "lacks `goal_idx`"),
        ('{"kind": "meta", "seed_before_ctor": 0}\n', "lacks `human_goals`"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: str | None, message: str):
    if content is not None:
        (tmp_path / "traces.jsonl").write_text(content)
    with pytest.raises(UserError, match=message):
        replayed(tmp_path / "traces.jsonl")


def test_a_torn_episode_and_a_second_recording_are_refused_by_their_line(tmp_path: Path):
    meta, episode = (RECORDED / "human.jsonl").read_text().splitlines()[:2]
    torn = json.loads(episode)
    del torn["steps"][1]["obs"]
    path = tmp_path / "traces.jsonl"
    for content, message in (
        (f"{meta}\n{json.dumps(torn)}\n", "line 2: lacks `obs`"),
        (f"{meta}\n\n{meta}\n", "line 3: is a second `meta` line"),
    ):
        path.write_text(content)
        with pytest.raises(UserError, match=message):
            replayed(path)


def test_a_file_that_went_through_windows_is_read(tmp_path: Path):
    text = (RECORDED / "human.jsonl").read_text(encoding="utf-8")
    (tmp_path / "traces.jsonl").write_text(f"{text}\n", encoding="utf-8-sig", newline="\r\n")
    assert replayed(tmp_path / "traces.jsonl").compared == replayed(RECORDED / "human.jsonl").compared
