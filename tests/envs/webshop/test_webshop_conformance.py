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


@pytest.mark.parametrize(("traces", "observations", "details"), [("human.jsonl", 115, 7), ("synthetic.jsonl", 86, 5)])
def test_recorded_answers_are_ours(traces: str, observations: int, details: int):
    report = replayed(RECORDED / traces)
    assert report.agrees, report.text()
    assert not report.different
    assert (report.compared["observations"], report.compared["details"]) == (observations, details)
    assert set(report.compared) == set(ANSWER_KINDS)
    assert report.text().endswith("no difference")


@pytest.mark.parametrize(
    ("traces", "observations", "rankings"), [("traces_human_goals", 1134, 60), ("traces_synthetic_goals", 1166, 214)]
)
def test_answers_on_the_larger_catalogue_are_ours(upstream: Path, traces: str, observations: int, rankings: int):
    report = replayed(upstream / f"webshop/{traces}.jsonl", upstream / "webshop")
    assert report.agrees, report.text()
    assert (report.compared["observations"], report.compared["rankings"]) == (observations, rankings)


def bought(lines: list[Line]) -> Line:
    """The first episode that ends with a purchase."""
    return next(line for line in lines if line["kind"] == "episode" and line["steps"][-1]["done"])


def first(lines: list[Line], kind: str) -> Line:
    return next(line for line in lines if line["kind"] == kind)


def change_price(lines: list[Line]) -> None:
    lines[0]["prices"]["B0ODD00004"] += 1e-9


def lose_price(lines: list[Line]) -> None:
    del lines[0]["prices"]["B0ODD00004"]


def change_goal(lines: list[Line]) -> None:
    lines[0]["goals"][3]["goal_options"].append("blue")


def lose_goal(lines: list[Line]) -> None:
    lines[0]["goals"].pop()


def change_start(lines: list[Line]) -> None:
    first(lines, "episode")["reset_obs"] += " "


def change_number(lines: list[Line]) -> None:
    first(lines, "episode").update(goal_idx=999, steps=[])


def change_observation(lines: list[Line]) -> None:
    bought(lines)["steps"][-1]["obs"] = ""


def change_clickables(lines: list[Line]) -> None:
    bought(lines)["steps"][-2]["clickables"].reverse()


def change_reward(lines: list[Line]) -> None:
    bought(lines)["steps"][-1]["reward"] += 1e-9


def change_ending(lines: list[Line]) -> None:
    bought(lines)["steps"][-2]["done"] = True


def change_details(lines: list[Line]) -> None:
    bought(lines)["info"]["title_score"] /= 2


def lose_details(lines: list[Line]) -> None:
    bought(lines)["info"] = None


def change_ranking(lines: list[Line]) -> None:
    first(lines, "bm25")["top50"].reverse()


def change_nouns(lines: list[Line]) -> None:
    first(lines, "nouns")["nouns"].append("cup")


DAMAGES: list[tuple[Callable[[list[Line]], None], str]] = [
    (change_price, "prices"),
    (lose_price, "prices"),
    (change_goal, "goals"),
    (lose_goal, "goals"),
    (change_start, "observations"),
    (change_number, "observations"),
    (change_observation, "observations"),
    (change_clickables, "clickables"),
    (change_reward, "rewards"),
    (change_ending, "endings"),
    (change_details, "details"),
    (lose_details, "details"),
    (change_ranking, "rankings"),
    (change_nouns, "nouns"),
]


@pytest.mark.parametrize(("damage", "what"), DAMAGES, ids=[damage.__name__ for damage, _ in DAMAGES])
def test_one_damaged_answer_is_found(tmp_path: Path, damage: Callable[[list[Line]], None], what: str):
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
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: str, message: str):
    (tmp_path / "traces.jsonl").write_text(content)
    with pytest.raises(UserError, match=message):
        replayed(tmp_path / "traces.jsonl")


def test_a_torn_episode_is_refused_by_its_line(tmp_path: Path):
    meta, episode = (RECORDED / "human.jsonl").read_text().splitlines()[:2]
    torn = json.loads(episode)
    del torn["steps"][1]["obs"]
    (tmp_path / "traces.jsonl").write_text(f"{meta}\n{json.dumps(torn)}\n")
    with pytest.raises(UserError, match="line 2: lacks `obs`"):
        replayed(tmp_path / "traces.jsonl")


def test_two_recordings_in_a_file_are_refused(tmp_path: Path):
    meta = (RECORDED / "human.jsonl").read_text().splitlines()[0]
    (tmp_path / "traces.jsonl").write_text(f"{meta}\n\n{meta}\n")
    with pytest.raises(UserError, match="line 3: is a second `meta` line"):
        replayed(tmp_path / "traces.jsonl")


def test_a_file_that_went_through_windows_is_read(tmp_path: Path):
    text = (RECORDED / "human.jsonl").read_text(encoding="utf-8")
    (tmp_path / "traces.jsonl").write_text(f"{text}\n", encoding="utf-8-sig", newline="\r\n")
    assert replayed(tmp_path / "traces.jsonl").compared == replayed(RECORDED / "human.jsonl").compared


def test_a_missing_file_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match="cannot be read"):
        replayed(tmp_path / "traces.jsonl")
