"""The report: one file that needs nothing beside it, made of what lies in the folder and nothing else."""

import contextlib
import json
import re
import shutil
from pathlib import Path

import pytest
from report.view.chromium import FAINT, UNFOLD

from coevolve.config.loading import load_suite
from coevolve.records.provenance import Provenance
from coevolve.report import claims, html, loop, view
from coevolve.report.html import PageFiles, RunSettings
from coevolve.report.labels import ReportLabels
from coevolve.stages.parts.training_curves import trainings
from coevolve.storage import provenance

HOME = "results/glance"
VERDICT = {
    "claim": "Co-evolving > ETO on <b>WebShop</b>",
    "verdict": "underpowered",
    "text": "12 seeds & more",
    "place": "Table 1",
    "says": "ours is better",
    "kind": "ordering",
}
NOT_RUN = VERDICT | {"claim": "gpt4_webshop", "verdict": "not run", "text": "`gpt4` was not evaluated."}
DRAWN = """[...document.querySelectorAll('section')].map((section) => ({
  title: section.querySelector('h2').innerText,
  curves: [...section.querySelectorAll('path[data-y]')].map((path) => [
    path.closest('figure').querySelector('svg').getAttribute('aria-label'), path.dataset.name, path.getAttribute('d'),
    path.dataset.x.split(' ').map(Number), path.dataset.y.split(' ').map(Number)]),
  bars: [...section.querySelectorAll('rect')].map((bar) => [Number(bar.dataset.value),
    Number(bar.getAttribute('width')), Number(bar.getAttribute('height'))]),
}))"""


@pytest.fixture(scope="module")
def folder(made, tmp_path_factory):
    """The suite's folder of results, with verdicts and costs beside its tables, and the view."""
    home = tmp_path_factory.mktemp("report") / "glance"
    shutil.copytree(made / HOME / "paper", home / "paper")
    (home / "paper/verdicts/verdicts.json").write_text(json.dumps([VERDICT, NOT_RUN, NOT_RUN]))
    with contextlib.chdir(made):
        view.build(made / HOME, home / "view", "Suite glance", ReportLabels({}, {}))
    return home / "paper"


@pytest.fixture(scope="module")
def jobs(made):
    """The provenance of every job behind the page, by the folder of its result."""
    stage = Provenance.from_json((made / HOME / "paper/page/provenance.json").read_bytes())
    read = [provenance.read(made / name) for name in stage.inputs if name.endswith("/provenance.json")]
    return {job.result: job for job in read}


@pytest.fixture(scope="module")
def make(made, folder, jobs):
    """The page made of the products, but for those left out."""

    def page(without=()):
        stage = Provenance.from_json((made / HOME / "paper/page/provenance.json").read_bytes())
        products = [folder / Path(name).relative_to(f"{HOME}/paper") for name in stage.inputs if "/paper/" in name]
        with contextlib.chdir(made):
            paper = claims.load("configs/claims.yaml")
            used = [path for path in products if path.name not in without]
            run = RunSettings.of(load_suite("configs/glance.yaml"))
            return html.report(PageFiles(used), run, paper, jobs, list(trainings(jobs.values())))

    return page


@pytest.fixture(scope="module")
def page(make, folder):
    (folder / "page/report.html").write_text(make(), encoding="utf-8")
    return folder / "page/report.html"


def test_it_needs_nothing_beside_it(browser, page):
    browser.open(page)
    assert browser.complaints() == []
    assert [address for address in browser.requests() if not address.startswith("data:")] == [page.resolve().as_uri()]
    assert browser.run("document.scripts.length") == 0
    assert browser.run("document.images.length") == 0, "charts are inline SVG"
    assert browser.run("document.querySelectorAll('svg.chart').length") >= 8


def test_it_holds_tables_figures_verdicts_drops_and_provenance(browser, page, folder):
    browser.open(page)
    browser.run(UNFOLD)
    text = browser.text()
    for table in json.loads((folder / "table1/table1.json").read_text()):
        for cell in table["cells"]:
            if cell["estimate"]:
                shown = "{mean:.1f} [{low:.1f}, {high:.1f}]".format_map(cell["estimate"])
                assert shown in text
            if cell["paper"] is not None:
                assert f"paper {cell['paper']:.1f}" in text
    assert "Co-evolving > ETO on <b>WebShop</b>" in text and "12 seeds & more" in text
    cells = browser.run("[...document.querySelectorAll('td, .bars span')].map((cell) => cell.innerText)")
    assert "failure over failure" in cells and "WebShop" in cells and "Co-evolving" in cells
    assert set(cells).isdisjoint({"failure_failure", "expert_target", "webshop", "coevolve"})
    provenance = json.loads((folder / "table1/provenance.json").read_text())
    assert provenance["commit"] in text and f"torch {provenance['versions']['torch']}" in text
    assert re.search(r"\d+ evaluate, .*\d+ sft, .*\d+ train", text), "every job that the products rest on"
    assert "WebShop (catalogue" in text


def test_rows_and_columns_are_in_the_papers_order(browser, page, made):
    browser.open(page)
    paper = claims.load(made / "configs/claims.yaml")
    rows = browser.run("[...document.querySelectorAll('tbody')][0].innerText")
    places = [rows.index(row.label) for row in paper.rows.values()]
    assert places == sorted(places)


def test_a_number_links_to_its_episodes(browser, page):
    browser.open(page)
    address = browser.run("[...document.querySelectorAll('td a')].find((a) => a.hash.includes('coevolve')).href")
    assert "method=coevolve&env=webshop&iteration=1&part=eval&split=test" in address
    browser.visit(address)
    browser.until("document.getElementById('count') !== null")
    assert browser.run("document.getElementById('count').innerText").startswith("6 of ")


def test_equal_inputs_give_equal_bytes_without_a_time(make, page):
    assert make() == page.read_text(encoding="utf-8")
    assert not re.search(r"\d\d:\d\d:\d\d", make())


def test_without_verdicts_there_is_no_such_section(make):
    text = make(without=["verdicts.json", "verdicts.md"])
    assert ">Verdicts</h2>" not in text and ">Provenance</h2>" in text


def test_orders_in_the_miniature_have_a_section_of_their_own(make, folder):
    assert 'id="miniature"' not in make()
    order = {"outcome": "does not hold", "text": "as < here", "mean": -2.0, "low": -3.5, "high": -0.5, "unit": "points",
             "tasks": 30, "seeds": 8}  # fmt: skip
    path = folder / "verdicts/verdicts.json"
    before = path.read_bytes()
    path.write_text(json.dumps([VERDICT, NOT_RUN | {"claim": "webshop_better", "miniature": order}]))
    try:
        text = make()
    finally:
        path.write_bytes(before)
    assert "1 orders: 1 decided (0 hold, 1 do not), 0 undecided." in text
    (row,) = re.findall(r'<tr><th scope="row">webshop_better</th>.*?</tr>', text, re.DOTALL)
    assert "decided: does not hold" in row and "[-3.5, -0.5] points" in row and "as &lt; here" in row
    assert "Not run: 1 claims." in text


def test_text_of_the_files_is_escaped_and_numbers_stand_beside_the_papers(make, folder):
    text = make()
    assert "Co-evolving &gt; ETO on &lt;b&gt;WebShop&lt;/b&gt;" in text and "12 seeds &amp; more" in text
    cells = json.loads((folder / "table1/table1.json").read_text())[0]["cells"]
    measured = [cell for cell in cells if cell["estimate"] and cell["paper"] is not None]
    assert measured
    for cell in measured:
        shown = '{mean:.1f}</a> <span class="quiet">[{low:.1f}, {high:.1f}]</span>'.format_map(cell["estimate"])
        assert f'{shown}<br><span class="quiet">paper {cell["paper"]:.1f}' in text


@pytest.fixture(scope="module")
def written(made):
    """The page that the stage wrote among the suite's results, with the view."""
    with contextlib.chdir(made):
        view.build(made / HOME, made / HOME / "view", "Suite glance", ReportLabels({}, {}))
    return made / HOME / "paper/page/report.html"


@pytest.fixture(scope="module")
def figures(browser, written):
    """What the browser holds of each section's charts, by title."""
    browser.open(written)
    return {section["title"]: section for section in browser.run(DRAWN)}


def test_sections_are_in_order_and_the_run_comes_first(browser, page):
    browser.open(page)
    titles = browser.run("[...document.querySelectorAll('h2')].map((each) => each.innerText)")
    assert titles == [
        "Table 1, average reward x 100", "Table 1, success rate in per cent", "The loop", "Learning curves",
        "Rewards of failures", "Figure 2: failures", "Pairs and drops", "Mechanism", "Training curves", "Costs",
        "In numbers", "Provenance", "Verdicts",
    ]  # fmt: skip
    run = browser.run("document.querySelector('h1').nextElementSibling.innerText").split("\n")
    assert "tiny Llama (0.7 M parameters, from nothing)" in run and "WebShop" in run
    assert "Untrained, SFT, ETO, Co-evolving" in run
    assert browser.run("document.querySelector('table').getBoundingClientRect().top") < 800


def test_verdicts_are_grouped_and_folded_and_those_not_run_are_one_line(browser, page):
    browser.open(page)
    assert "12 seeds & more" not in browser.text(), "folded"
    assert browser.text().split("\n")[-3:] == ["Underpowered: 1", "", "Not run: 2 claims."]


def test_the_keyboard_unfolds(browser, page):
    browser.open(page)
    browser.run("document.querySelector('details:last-of-type > summary').focus()")
    folded = "document.activeElement.parentElement.open"
    before = browser.run(folded)
    browser.press("Enter")
    browser.until(f"{folded} === {json.dumps(not before)}")
    assert browser.run("[...document.querySelectorAll('.wide')].every((each) => each.tabIndex === 0)")


@pytest.mark.parametrize("width", [390, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_and_its_text_has_contrast(browser, page, width, scheme):
    browser.ask("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False)
    browser.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    try:
        browser.open(page)
        browser.run(UNFOLD)
        assert browser.run("document.documentElement.scrollWidth") <= width
        wide = "[...document.querySelectorAll('svg, figure, p, li')].filter((each) => !each.closest('.wide'))"
        assert browser.run(f"Math.max(...{wide}.map((each) => each.getBoundingClientRect().right))") <= width
        background = browser.run("getComputedStyle(document.body).backgroundColor")
        assert background == {"light": "rgb(255, 255, 255)", "dark": "rgb(22, 23, 24)"}[scheme]
        assert browser.run(FAINT) == []
        assert browser.complaints() == []
    finally:
        browser.ask("Emulation.clearDeviceMetricsOverride")
        browser.ask("Emulation.setEmulatedMedia", features=[])


def test_links_resolve(browser, written):
    browser.open(written)
    links = browser.run("[...document.querySelectorAll('a')].map((each) => each.getAttribute('href'))")
    inside = {link[1:] for link in links if link.startswith("#")}
    assert all(browser.run(f"document.getElementById({json.dumps(name)}) !== null") for name in inside)
    files = {link.partition("#")[0] for link in links} - {""}
    assert [file for file in files if not (written.parent / file).is_file()] == []
    assert {Path(file).name for file in files} >= {
        "table1.json", "figure3.json", "analysis.json", "figure2.json", "pairs.json", "provenance.json", "costs.json",
        "verdicts.json", "index.html",
    }  # fmt: skip


def test_the_loop_is_that_of_the_jobs_and_its_boxes_are_links(browser, written, jobs):
    both, data = ("target", "failure"), ("data", "")
    expected = {(data, ("sft", agent), False) for agent in both} | {(data, ("pairs", "target"), False)}
    expected |= {(("sft", agent), ("rollout", agent), False) for agent in both}
    expected |= {(("rollout", agent), ("pairs", learner), False) for agent in both for learner in both}
    expected |= {(("pairs", "target"), ("train", "target"), False), (("train", "target"), ("evaluate", ""), False)}
    assert set(loop.job_edges(jobs)) == expected, "one iteration, so the failure agent is not trained"
    browser.open(written)
    boxes = browser.run(
        "[...document.querySelectorAll('.loop a')].map((each) => [each.textContent, each.getAttribute('href')])"
    )
    assert [text for text, _ in boxes][-1] == "evaluatereward per split4 jobs"
    addresses = dict(boxes)
    assert addresses["exploretarget agent1 job"] == "../../view/index.html#/episodes?part=rollout&agent=target"
    assert addresses["DPO + SFT (eq. 9)target agent2 jobs"] == "#training-curves"
    browser.run("document.querySelector('.loop a').focus()")
    browser.press("Enter")
    browser.until("location.hash === '#/episodes?part=experts' && document.getElementById('count') !== null")


def test_a_later_iteration_and_its_shards_have_an_arrow(jobs):
    """Two iterations: the second exploration reads the trained policy; shards of it belong to its box."""
    rollout = next(job for job in jobs.values() if job.stage == "rollout")
    policy = next(job.result for job in jobs.values() if job.stage == "train")
    names = {"branch": "coevolve/seed0/iter2", "agent": "target"}
    second = rollout.model_copy(update={"wildcards": names, "inputs": {f"results/other/{policy}/policy.json": "0"}})
    part = second.model_copy(update={"stage": "shard", "wildcards": {"whole": "rollout/target", "part": "0of2"}})
    for job in (second, part):
        assert set(loop.job_edges({"a": job, **jobs})) - set(loop.job_edges(jobs)) == {
            (("train", "target"), ("rollout", "target"), True)
        }
    drawn = loop.svg(loop.LABELS, loop.job_edges({"a": second, **jobs}))
    assert "the next iteration starts" in drawn and "the next iteration" not in loop.svg(loop.LABELS, [])


def read(written, name):
    return json.loads((written.parents[1] / name).read_text())


def test_learning_curves_are_those_of_the_file(figures, written):
    data = read(written, "figure3/figure3.json")
    assert len(figures["Learning curves"]["curves"]) == len(data["labels"]) >= 3
    points = {(p["method"], p["iteration"]): 100 * p["estimate"]["mean"] for p in data["points"]}
    for chart, name, _, xs, ys in figures["Learning curves"]["curves"]:
        (method,) = (key for key, label in data["labels"].items() if label == name)
        assert chart == "WebShop"
        expected = [points.get((method, x), points.get(("sft", x))) for x in xs]
        assert xs == ([0] if method == "sft" else [0, 1]) and ys == pytest.approx(expected, rel=1e-5)


def test_a_curve_is_drawn_where_its_numbers_are(figures):
    for _, _, line, xs, ys in figures["Training curves"]["curves"]:
        places = [tuple(map(float, point.split())) for point in line[1:].split("L")]
        assert len(places) == len(xs)
        for numbers, drawn, sign in ((xs, [x for x, _ in places], 1), (ys, [y for _, y in places], -1)):
            low, high = numbers.index(min(numbers)), numbers.index(max(numbers))
            spread = (numbers[high] - numbers[low]) or 1
            scale = (drawn[high] - drawn[low]) / spread
            assert sign * scale > 0 or len(set(numbers)) == 1
            assert drawn == pytest.approx([drawn[low] + scale * (n - numbers[low]) for n in numbers], abs=0.2)


def test_histograms_pairs_and_costs_are_those_of_the_files(figures, written):
    rewards = read(written, "failures/analysis.json")["failure_rewards"]
    drawn = [value for value, *_ in figures["Rewards of failures"]["bars"]]
    assert drawn == [count for row in rewards for count in row["counts"]] and sum(drawn) > 0
    rows = read(written, "pair_counts/pairs.json")
    values = [value for row in rows for value in (row["pairs"], *filter(None, row["drops"].values()))]
    assert sorted(value for value, *_ in figures["Pairs and drops"]["bars"]) == sorted(values)
    hours = [
        line[f"done_{kind}_hours"]
        for lines in read(written, "costs/costs.json").values()
        for line in lines
        for kind in ("predicted", "measured")
    ]
    assert [value for value, *_ in figures["Costs"]["bars"]] == pytest.approx(hours, rel=1e-5)
    bars = [
        bar["estimate"]["mean"] for panel in read(written, "figure2/figure2.json")["panels"] for bar in panel["bars"]
    ]
    assert sorted(value for value, *_ in figures["Figure 2: failures"]["bars"]) == pytest.approx(sorted(bars), rel=1e-5)
    for title in ("Rewards of failures", "Pairs and drops", "Costs", "Figure 2: failures"):
        side = 2 if title == "Rewards of failures" else 1
        charts = figures[title]["bars"]
        assert all((bar[0] > 0) == (bar[side] > 0) for bar in charts), title


def test_training_curves_are_those_of_the_trainings(figures, written):
    notes = read(written, "../tiny/webshop/eto/seed0/iter1/policy/target/provenance.json")["notes"]
    drawn = {name: ys for _, name, _, _, ys in figures["Training curves"]["curves"]}
    metrics = {"loss": "loss"} | {
        name: f"expert_target/{name}" for name in ("rewards/margins", "logps/chosen", "logps/rejected")
    }
    for metric, key in metrics.items():
        assert drawn[f"ETO, target agent, {metric}"] == pytest.approx([s[key] for s in notes["history"]], rel=1e-4)
    before_and_after = [notes["gold"]["before"], notes["gold"]["after"]]
    assert drawn["ETO, target agent, gold log-prob, iteration 1"] == pytest.approx(before_and_after, rel=1e-4)
    (row,) = (row for row in read(written, "failures/analysis.json")["gold"] if row["method"] == "eto")
    assert [row["before"], row["after"]] == before_and_after and row["after"] < row["token_after"] < 0
