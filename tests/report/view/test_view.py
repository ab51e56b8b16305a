"""The view: everything is in it, one finds it by filters, keys and links, and nothing in it is markup."""

import json
import subprocess
import sys

import pytest
from report.view.many import episode, pair
from report.view.many import write as write_many

from coevolve.errors import UserError
from coevolve.report import view
from coevolve.report.view.write import first_difference
from coevolve.storage import files, jsonl
from coevolve.types import PreferencePair, Trajectory

CHANGE = "document.title = 'changed'"
HOSTILE = f'<script>{CHANGE}</script><img src=x onerror="{CHANGE}">&lt;\u2028\U0001f600'


@pytest.fixture(scope="module")
def home(made):
    return made / "results/glance"


@pytest.fixture(scope="module")
def site(home, tmp_path_factory):
    out = tmp_path_factory.mktemp("view") / "view"
    view.build(home, out, "suite glance", {"eto": "ETO", "coevolve": "Co-evolving"})
    return out


@pytest.fixture(scope="module")
def page(site):
    return site / "index.html"


@pytest.fixture(scope="module")
def episodes(home):
    """Every episode with its place."""
    files, _ = view.record_files(home)
    return [(view.FileOrigin.of(path), each) for path in files for each in jsonl.read(path, Trajectory)]


@pytest.fixture(scope="module")
def pairs(home):
    _, files = view.record_files(home)
    return [each for path in files for each in jsonl.read(path, PreferencePair)]


def count(browser):
    browser.until("document.getElementById('count') !== null")
    return browser.run("document.getElementById('count').innerText")


def test_everything_is_listed(browser, page, episodes, pairs):
    browser.open(page)
    assert count(browser).startswith(f"{len(episodes)} of {len(episodes)} episodes")
    browser.open(page, "#/pairs")
    assert count(browser).startswith(f"{len(pairs)} of {len(pairs)} pairs")
    assert browser.complaints() == []


@pytest.mark.parametrize(
    ("asked", "fits"),
    [
        ("method=coevolve&part=eval", lambda place, e: (place.method, place.part) == ("coevolve", "eval")),
        ("method=base&agent=failure", lambda place, e: (place.method, e.agent) == ("base", "failure")),
        ("method=untrained", lambda place, e: place.method == "untrained"),
        ("stop=done&env=webshop", lambda place, e: e.stop == "done"),
        ("low=0.5&high=0.9", lambda place, e: 0.5 <= e.reward <= 0.9),
        ("iteration=1&split=test", lambda place, e: place.iteration == 1 and e.task.split == "test"),
        ("text=WEBSHOP%2F1", lambda place, e: "webshop/1" in e.task.task_id),
        ("turns=buy+now", lambda place, e: any("buy now" in f"{t.text}\n{t.observation}".lower() for t in e.turns)),
    ],
)
def test_filters(browser, page, episodes, asked, fits):
    expected = sum(fits(place, each) for place, each in episodes)
    assert 0 < expected < len(episodes)
    browser.open(page, f"#/episodes?{asked}")
    assert count(browser).split(" of ")[0] == str(expected)


def test_an_episode_is_shown_whole(browser, page, episodes):
    place, shown = next((place, each) for place, each in episodes if place.part == "eval")
    browser.open(page, f"#/episode/{shown.digest()}")
    text = browser.text()
    for turn in shown.turns:
        for part in (turn.text, turn.observation):
            assert all(line.strip() in text for line in part.split("\n"))
    assert shown.task.task_id in text and shown.policy.sha256 in text and shown.stop.value in text
    assert place.env in text


def test_an_unknown_episode_is_said_to_be(browser, page):
    browser.open(page, "#/episode/0123456789abcdef")
    assert "There is no episode 0123456789abcdef here." in browser.text()


def test_a_pair_is_shown_side_by_side_with_its_first_difference(browser, page, pairs):
    shown = next(p for p in pairs if len(p.chosen) > 4 and p.chosen[0].content != p.rejected[0].content)
    browser.open(page, f"#/pair/{shown.chosen_id}-{shown.rejected_id}")
    marked = browser.run("[...document.querySelectorAll('.differs')].map((each) => each.innerText)")
    assert len(marked) == 2
    assert all(text.startswith("Turn 1,") and "first difference" in text for text in marked)
    places = "[...document.querySelectorAll('.differs')].map((each) => each.getBoundingClientRect().x)"
    for width, side_by_side in ((1200, True), (500, False)):
        browser.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        left, right = browser.run(places)
        assert (left < right) == side_by_side
    browser.ask("Emulation.clearDeviceMetricsOverride")


def test_the_first_difference_is_a_turn_of_either_side():
    left, right = episode(0, 0), episode(0, 0)
    turns = list(right.turns)
    turns[3] = turns[3].model_copy(update={"text": "Action: click[other]"})
    other = right.model_copy(update={"turns": tuple(turns)})
    shorter = right.model_copy(update={"turns": right.turns[:4]})
    assert first_difference(pair(left, other)) == 4
    assert first_difference(pair(left, shorter)) == 4
    assert first_difference(pair(left, right)) == 0


def test_keys_are_enough(browser, page):
    browser.open(page)
    focused = "document.activeElement.innerText"
    browser.press("j")
    first = browser.run(focused)
    browser.press("j")
    second = browser.run("document.activeElement.getAttribute('href')")
    browser.press("k")
    assert browser.run(focused) == first
    browser.press("j")
    browser.press("Enter")
    browser.until(f"location.hash === {json.dumps(second)} && document.body.innerText.includes('Turn 1')")
    browser.press("k")
    browser.until(f"location.hash !== {json.dumps(second)}")
    browser.press("Escape")
    browser.until("document.querySelectorAll('a.row').length > 0")
    browser.press("/")
    for letter in "nothing such":
        browser.press(letter)
    browser.until("document.body.innerText.includes('Nothing passes these filters.')")
    assert "text=nothing+such" in browser.run("location.hash")


def test_choosing_a_filter_changes_list_and_address(browser, page, episodes):
    browser.open(page)
    browser.run("document.querySelector('select[name=part]').focus()")
    browser.press("r")  # as a reader does: the first choice that begins with r
    browser.until("location.hash.includes('part=rollout')")
    expected = sum(place.part == "rollout" for place, _ in episodes)
    browser.until(f"document.getElementById('count').innerText.startsWith('{expected} of')")


def test_nothing_is_loaded_from_elsewhere(browser, page, site, episodes):
    browser.open(page, f"#/episode/{episodes[0][1].digest()}")
    browser.until("document.body.innerText.includes('Turn 1')")
    assert browser.requests()
    assert all(address.startswith(site.resolve().as_uri()) for address in browser.requests())


def test_light_and_dark(browser, page):
    background = "getComputedStyle(document.body).backgroundColor"
    colours = []
    for scheme in ("light", "dark"):
        browser.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        browser.open(page)
        colours.append(browser.run(background))
    browser.ask("Emulation.setEmulatedMedia", features=[])
    assert colours == ["rgb(255, 255, 255)", "rgb(22, 23, 24)"]


def test_what_an_environment_says_is_text(browser, tmp_path):
    plain = episode(0, 0)
    turn = plain.turns[0].model_copy(update={"text": HOSTILE, "observation": HOSTILE})
    task = plain.task.model_copy(update={"task_id": f"webshop/{HOSTILE}"})
    prompt = (plain.prompt[0].model_copy(update={"content": HOSTILE}),)
    hostile = plain.model_copy(update={"turns": (turn,), "task": task, "prompt": prompt})
    jsonl.write(tmp_path / "home/tiny/webshop/eto/seed0/iter1/rollout/target/episodes.jsonl", [hostile])
    view.build(tmp_path / "home", tmp_path / "view", f"suite {HOSTILE}", {"eto": HOSTILE})
    for address in ("", f"#/episode/{hostile.digest()}"):
        browser.open(tmp_path / "view/index.html", address)
        assert "<script>document.title = 'changed'</script><img src=x" in browser.text()
        assert browser.run("document.title") == f"suite {HOSTILE}"
        assert browser.run("document.querySelectorAll('main script, main img').length") == 0
        assert browser.complaints() == []


def test_equal_results_give_equal_bytes(home, site, tmp_path):
    view.build(home, tmp_path / "again", "suite glance", {"eto": "ETO", "coevolve": "Co-evolving"})
    assert files.sha256(tmp_path / "again") == files.sha256(site)


def test_it_is_made_again_in_place_and_replaces_nothing_else(home, tmp_path):
    for _ in range(2):
        view.build(home, tmp_path / "view", "", {})
    precious = tmp_path / "thesis"
    precious.mkdir()
    with pytest.raises(UserError, match=r"thesis: exists and is not a view; give another --out"):
        view.build(home, precious, "", {})
    assert precious.is_dir()


def test_nothing_to_show_and_damage_are_one_sentence(tmp_path):
    with pytest.raises(UserError, match=r"no episodes.jsonl under it"):
        view.build(tmp_path, tmp_path / "view", "", {})
    file = tmp_path / "tiny/webshop/eto/seed0/iter1/rollout/target/episodes.jsonl"
    jsonl.write(file, [episode(0, 0)])
    file.write_bytes(file.read_bytes() + b'{"task": 1}\n')
    with pytest.raises(UserError, match=r"episodes.jsonl: line 2 is not a valid Trajectory"):
        view.build(tmp_path, tmp_path / "view", "", {})
    assert not (tmp_path / "view").exists()


@pytest.mark.slow
def test_twenty_thousand_episodes(browser, tmp_path):
    """Written in less than a minute in less than 200 MB, opened in less than two seconds."""
    write_many(tmp_path / "home", 20_000)
    code = (
        "import re, time; from pathlib import Path; from coevolve.report import view; started = time.monotonic();"
        "shown = view.build(Path('home'), Path('view'), '', {}); seconds = time.monotonic() - started;"
        "peak = re.search(r'VmHWM:\\s+(\\d+) kB', Path('/proc/self/status').read_text())[1];"
        "print(shown.episodes, seconds, int(peak) / 1024)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    shown, seconds, megabytes = map(float, done.stdout.split())
    assert (shown, seconds < 60, megabytes < 200) == (20_000, True, True), done.stdout
    opened = min(browser.open(tmp_path / "view/index.html") for _ in range(3))
    assert opened < 2
    assert count(browser).startswith("20000 of 20000")
    browser.open(tmp_path / "view/index.html", "#/episodes?turns=b19x999")
    assert count(browser).startswith("1 of 20000")
