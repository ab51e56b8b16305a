"""The view: everything is in it, one finds it by filters, keys and links, and nothing in it is markup."""

import contextlib
import json
import re
import subprocess
import sys

import pytest
from report.explored import LABELS
from report.view.chromium import FAINT, UNFOLD
from report.view.many import episode, pair
from report.view.many import write as write_many

from coevolve.config.loading import load_suite
from coevolve.errors import UserError
from coevolve.export.site_documents import site_documents
from coevolve.pipeline.plan import Plan
from coevolve.records.episodes import Message, Trajectory, turn_messages
from coevolve.records.pairs import PairKind, PreferencePair
from coevolve.report import view
from coevolve.report.labels import STOPS, ReportLabels
from coevolve.report.view.write import first_difference
from coevolve.storage import files, jsonl

CHANGE = "document.title = 'changed'"
PLAIN = f'<script>{CHANGE}</script><img src=x onerror="{CHANGE}">&lt;'
HOSTILE = f"{PLAIN}\u2028\u202e\x1b[31m\U0001f600"


@pytest.fixture(scope="module")
def home(made):
    return made / "results/glance"


@pytest.fixture(scope="module")
def site(made):
    """The site where `coevolve view` writes it, with links to the suite's products."""
    with contextlib.chdir(made):
        plan = Plan(load_suite("configs/glance.yaml"))
        out = made / plan.home / "view"
        view.build(made / plan.home, out, "Suite glance", LABELS, list(site_documents(plan)))
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
    browser.open(page, "#/episodes")
    assert count(browser).startswith(f"{len(episodes)} of {len(episodes)} episodes")
    assert any(" ".join(each.prompt[-1].content.split())[:40] in browser.text() for _, each in episodes)
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


def test_an_episode_is_shown_whole_and_nothing_is_loaded_from_elsewhere(browser, page, episodes):
    place, shown = next((place, each) for place, each in episodes if place.part == "eval")
    browser.open(page, f"#/episode/{shown.digest()}")
    top = browser.text()
    assert f"reward {shown.reward:g}\n{STOPS[shown.stop]}\n{len(shown.turns)} turns\ntarget agent" in top
    assert shown.task.task_id in top and LABELS.env(place.env) in top
    assert "reward 1: solved" in top and "observation" in top, "the legend"
    browser.run(UNFOLD)
    text = browser.text()
    assert shown.policy.sha256 in text
    spoken = [message.content for message in shown.prompt]
    spoken += [part for turn in shown.turns for part in (turn.text, turn.observation)]
    drawn = browser.run("[...document.querySelectorAll('main .bubble pre')].map((each) => each.textContent)")
    assert drawn == spoken, "every word, in order"
    speakers = browser.run("[...document.querySelectorAll('main .turn .speaker')].map((each) => each.innerText)")
    assert speakers == ["target agent", "environment"] * len(shown.turns)
    requests = browser.requests()
    assert requests and all(address.startswith(page.parent.resolve().as_uri()) for address in requests)
    browser.open(page, "#/episode/0123456789abcdef")
    assert "There is no episode 0123456789abcdef here." in browser.text()


def test_a_pair_is_shown_side_by_side_with_its_first_difference(browser, page, pairs):
    shown = next(p for p in pairs if len(p.chosen) > 4 and p.chosen[0].content != p.rejected[0].content)
    browser.open(page, f"#/pair/{shown.chosen_id}-{shown.rejected_id}")
    marked = browser.run("[...document.querySelectorAll('.differs')].map((each) => each.innerText)")
    assert len(marked) == 2
    assert all(text.startswith("Turn 1,") and "first difference" in text for text in marked)
    assert [text.split(", ")[1] for text in marked] == ["chosen", "rejected"], "on every turn, so also on a phone"
    heads = browser.run("[...document.querySelectorAll('.side-head h3')].map((each) => each.innerText)")
    rewards = (shown.chosen_reward, shown.rejected_reward)
    assert heads == [
        f"{sign} reward {round(reward, 3):g}" for sign, reward in zip(("✓ Chosen", "✗ Rejected"), rewards, strict=True)
    ]
    instruction = browser.run("document.querySelector('.instruction').textContent")
    assert shown.prompt[-1].content in instruction
    places = "[...document.querySelectorAll('.differs')].map((each) => each.getBoundingClientRect().x)"
    for width, side_by_side in ((1200, True), (500, False)):
        browser.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        left, right = browser.run(places)
        assert (left < right) == side_by_side
    browser.ask("Emulation.clearDeviceMetricsOverride")


@pytest.fixture(scope="module")
def made_up(tmp_path_factory):
    """A site of a pair that agrees in three turns, with a long observation, and of a pair of steps (IPR)."""
    folder = tmp_path_factory.mktemp("made_up")
    left = episode(0, 0)
    turns = list(left.turns)
    turns[3] = turns[3].model_copy(update={"observation": "first line\n" * 200})
    right = left.model_copy(update={"turns": tuple(turns), "reward": 1.0, "sample": 1})
    before = turn_messages(left.turns[:3])
    third = left.model_copy(update={"sample": 2})
    step = pair(right, third).model_copy(
        update={
            "kind": PairKind.EXPERT_STEP, "prompt": (*left.prompt, *before), "task_id": "webshop/step",
            "chosen": right.completion[6:], "rejected": third.completion[6:13],
        }
    )  # fmt: skip
    branch = folder / "home/tiny/webshop/eto/seed0/iter1"
    jsonl.write(branch / "rollout/target/episodes.jsonl", [left, right, third])
    for name, each in (("target", pair(right, left)), ("failure", step)):
        jsonl.write(branch / f"pairs/{name}/pairs.jsonl", [each])
    view.build(folder / "home", folder / "view", "Suite made up", LABELS)
    return folder / "view/index.html", right, left, third


def test_the_common_beginning_and_long_observations_are_folded(browser, made_up):
    page, chosen, rejected, _ = made_up
    browser.open(page, f"#/pair/{chosen.digest()}-{rejected.digest()}")
    assert "Turns 1 to 3 are the same on both sides" in browser.text() and "Turn 3" not in browser.text()
    marked = browser.run("[...document.querySelectorAll('.differs')].map((each) => each.getAttribute('aria-label'))")
    assert marked == ["turn 4, chosen", "turn 4, rejected"]
    assert "all 2,200 characters" in browser.text()
    assert browser.text().count("first line") < 30
    browser.run("document.querySelector('.differs .long summary').focus()")
    browser.press("Enter")
    browser.until("document.body.innerText.split('first line').length === 201")
    browser.run(UNFOLD)
    assert browser.text().count("Turn 3") == 1


def test_a_pair_of_steps_is_counted_from_the_beginning_of_its_episodes(browser, made_up):
    page, chosen, _, rejected = made_up
    browser.open(page, "#/pairs?text=webshop%2Fstep")
    cells = browser.run("[...document.querySelectorAll('tbody td')].map((each) => each.innerText)")
    assert cells[5:] == ["expert over step", "webshop/step", "1", "0", "4"]
    browser.open(page, f"#/pair/{chosen.digest()}-{rejected.digest()}")
    marked = browser.run("[...document.querySelectorAll('.differs')].map((each) => each.getAttribute('aria-label'))")
    assert marked == ["turn 4, chosen", "turn 4, rejected"]
    cut = browser.run("[...document.querySelectorAll('.cut')].map((each) => each.getAttribute('aria-label'))")
    assert cut == ["turn 8, rejected", "turn 9, rejected", "turn 10, rejected"]


def test_an_example_in_an_episodes_prompt_is_no_turn_of_its_pair(tmp_path):
    """The policies explore with an example and are trained without it (`prompt.trained: false`)."""
    chosen, rejected = (episode(0, 0).model_copy(update={"sample": sample}) for sample in (1, 2))
    example = tuple(Message(role=role, content="an example") for role in ("user", "assistant") * 2)
    prompted = [each.model_copy(update={"prompt": (*example, *each.prompt)}) for each in (chosen, rejected)]
    names = dict(zip(("chosen_id", "rejected_id"), (each.digest() for each in prompted), strict=True))
    branch = tmp_path / "home/tiny/webshop/eto/seed0/iter1"
    jsonl.write(branch / "rollout/target/episodes.jsonl", prompted)
    jsonl.write(branch / "pairs/target/pairs.jsonl", [pair(chosen, rejected).model_copy(update=names)])
    assert view.build(tmp_path / "home", tmp_path / "view", "Suite", LABELS)[1] == 1
    (row,) = re.findall(r"pair\((.*)\)", (tmp_path / "view/data/index.js").read_text())
    assert json.loads(row)[-2:] == [10, 10]


def test_a_path_names_the_origin_of_its_file():
    """The name of an environment can have dashes and points."""
    training = view.FileOrigin.of("results/smoke/tiny/sci-world.2/ppo/seed2/iter1/policy/target/episodes.jsonl")
    named = {"env": "sci-world.2", "method": "ppo", "seed": 2, "iteration": 1, "part": "policy", "agent": "target"}
    assert training.model_dump() == named
    assert view.FileOrigin.of("results/smoke/data/sci-world.2/experts.jsonl").env == "sci-world.2"


def test_the_landing_page_has_products_and_counts(browser, page, episodes, pairs):
    browser.open(page)
    assert count(browser) == f"{len(episodes)} episodes and {len(pairs)} pairs of WebShop"
    documents = browser.run("[...document.querySelectorAll('.documents li')].map((each) => each.innerText)")
    assert documents[0].startswith("Report report.html") and documents[2].startswith("Table 1 table1.md, table1.tex")
    links = browser.run("[...document.querySelectorAll('.documents a')].map((each) => each.getAttribute('href'))")
    assert len(links) > 15 and all((page.parent / link).is_file() for link in links)
    rows = browser.run(
        "[...document.querySelectorAll('tbody tr')].map((row) => [...row.children].map((cell) => cell.innerText))"
    )
    expected = sum(place.part == "eval" and place.method == "coevolve" for place, _ in episodes)
    assert ["Co-evolving", "1", "evaluation", "target", "test", str(expected), "0"] in rows
    of_kind = sum(each.kind == "expert_failure" for each in pairs)
    assert any(row[:5] == ["Co-evolving", "1", "target", "expert over failure", str(of_kind)] for row in rows)
    address = browser.run("[...document.querySelectorAll('td a')].find((a) => a.hash.includes('coevolve')).hash")
    browser.run(f"location.hash = {json.dumps(address)}")
    browser.until(f"document.getElementById('count').innerText.startsWith('{expected} of')")


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (390, "dark"), (1200, "dark")])
def test_every_page_fits_and_its_text_has_contrast(browser, page, pairs, width, scheme):
    browser.ask("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False)
    browser.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    one = pairs[0]
    addresses = (
        "",
        "#/episodes",
        "#/pairs",
        f"#/episode/{one.rejected_id}",
        f"#/pair/{one.chosen_id}-{one.rejected_id}",
    )
    try:
        for address in addresses:
            browser.open(page, address)
            browser.run(UNFOLD)
            assert browser.run("document.documentElement.scrollWidth") <= width, address
            assert browser.run(FAINT) == [], address
            background = browser.run("getComputedStyle(document.body).backgroundColor")
            assert background == {"light": "rgb(255, 255, 255)", "dark": "rgb(22, 23, 24)"}[scheme]
            assert browser.complaints() == []
            rewards = "[...document.querySelectorAll('.cards tr td[data-name=reward]')].slice(0, 3)"
            inside = f"{rewards}.every((cell) => cell.getBoundingClientRect().right <= {width})"
            assert browser.run(inside), "a row shows its reward without scrolling, also on a phone"
            assert browser.run("[...document.querySelectorAll('.wide')].every((each) => each.tabIndex === 0)")
    finally:
        browser.ask("Emulation.clearDeviceMetricsOverride")
        browser.ask("Emulation.setEmulatedMedia", features=[])


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
    browser.open(page, "#/episodes")
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
    browser.until("location.hash === '#/episodes' && document.querySelectorAll('a.row').length > 0")
    browser.press("/")
    for letter in "nothing such":
        browser.press(letter)
    browser.until("document.body.innerText.includes('Nothing passes these filters.')")
    assert "text=nothing+such" in browser.run("location.hash")


def test_choosing_a_filter_changes_list_and_address(browser, page, episodes):
    browser.open(page, "#/episodes")
    browser.run("document.querySelector('select[name=part]').focus()")
    browser.press("r")  # as a reader does: the first choice that begins with r
    browser.until("location.hash.includes('part=rollout')")
    expected = sum(place.part == "rollout" for place, _ in episodes)
    browser.until(f"document.getElementById('count').innerText.startsWith('{expected} of')")


def test_what_an_environment_says_is_text(browser, tmp_path):
    plain = episode(0, 0)
    turn = plain.turns[0].model_copy(update={"text": HOSTILE, "observation": HOSTILE})
    task = plain.task.model_copy(update={"task_id": f"webshop/{HOSTILE}"})
    prompt = (plain.prompt[0].model_copy(update={"content": HOSTILE}),)
    hostile = plain.model_copy(update={"turns": (turn,), "task": task, "prompt": prompt})
    jsonl.write(tmp_path / "home/tiny/webshop/eto/seed0/iter1/rollout/target/episodes.jsonl", [hostile])
    labels = ReportLabels({"eto": HOSTILE}, {"webshop": HOSTILE})
    documents = [view.SiteDocument(HOSTILE, HOSTILE, [tmp_path / "a#b?<i>.md"])]
    view.build(tmp_path / "home", tmp_path / "view", f"suite {HOSTILE}", labels, documents)
    for address in ("", "#/episodes", f"#/episode/{hostile.digest()}"):
        browser.open(tmp_path / "view/index.html", address)
        browser.run(UNFOLD)
        assert f"{PLAIN}\\u2028\\u202e\\u001b[31m\U0001f600" in browser.text(), "control characters are visible"
        assert browser.run("document.title").startswith(f"suite {PLAIN}")
        assert browser.run("document.querySelectorAll('main script, main img').length") == 0
        assert browser.complaints() == []


def test_equal_results_give_equal_bytes(home, site):
    before = files.sha256(site)
    with contextlib.chdir(site.parents[2]):
        plan = Plan(load_suite("configs/glance.yaml"))
        view.build(home, site, "Suite glance", LABELS, list(site_documents(plan)))
    assert files.sha256(site) == before


def test_it_is_made_again_in_place_and_of_nothing_damaged_or_elsewhere(tmp_path):
    with pytest.raises(UserError, match=r"no episodes.jsonl under it"):
        view.build(tmp_path / "home", tmp_path / "view", "", LABELS)
    file = tmp_path / "home/tiny/webshop/eto/seed0/iter1/rollout/target/episodes.jsonl"
    jsonl.write(file, [episode(0, 0)])
    whole = file.read_bytes()
    file.write_bytes(whole + b'{"task": 1}\n')
    with pytest.raises(UserError, match=r"episodes.jsonl: line 2 is not a valid Trajectory"):
        view.build(tmp_path / "home", tmp_path / "view", "", LABELS)
    assert not (tmp_path / "view").exists()
    file.write_bytes(whole)
    for _ in range(2):
        view.build(tmp_path / "home", tmp_path / "view", "", LABELS)
    (tmp_path / "thesis").mkdir()
    with pytest.raises(UserError, match=r"thesis: exists and is not a view; give another --out"):
        view.build(tmp_path / "home", tmp_path / "thesis", "", LABELS)
    assert (tmp_path / "thesis").is_dir()


@pytest.mark.slow
def test_twenty_thousand_episodes(browser, tmp_path):
    """Written in less than a CPU minute in less than 200 MB, opened in less than two CPU seconds."""
    write_many(tmp_path / "home", 20_000)
    code = (
        "import re, time; from pathlib import Path; from coevolve.report import view;"
        "from coevolve.report.labels import ReportLabels; started = time.process_time();"
        "episodes, _ = view.build(Path('home'), Path('view'), '', ReportLabels({}, {}));"
        "seconds = time.process_time() - started;"
        "peak = re.search(r'VmHWM:\\s+(\\d+) kB', Path('/proc/self/status').read_text())[1];"
        "print(episodes, seconds, int(peak) / 1024)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    shown, seconds, megabytes = map(float, done.stdout.split())
    assert (shown, seconds < 60, megabytes < 200) == (20_000, True, True), done.stdout
    opened = min(browser.open(tmp_path / "view/index.html", "#/episodes") for _ in range(3))
    assert opened < 2
    assert count(browser).startswith("20,000 of 20,000")
    browser.open(tmp_path / "view/index.html", "#/episodes?turns=b19x999")
    assert count(browser).startswith("1 of 20,000")
