"""The report: one file that needs nothing beside it, made of what lies in the folder and nothing else."""

import contextlib
import json
import re
import shutil
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pytest
from report.view.chromium import FAINT, UNFOLD

from coevolve.config.loading import load_suite
from coevolve.records.provenance import Provenance
from coevolve.records.tables import Estimate
from coevolve.report import claims, costs, drawing, figure3, html, loop, table, training_figure, verdicts, view
from coevolve.report.costs import Line
from coevolve.report.drawing import BarRow
from coevolve.report.html import PageFiles, RunSettings
from coevolve.report.labels import ReportLabels
from coevolve.report.number_text import readable, with_interval
from coevolve.report.training_figure import TrainingCurve
from coevolve.storage import provenance

HOME = "results/glance"
VERDICT = {
    "claim": "Co-evolving > ETO on <b>WebShop</b>",
    "verdict": "cannot tell",
    "text": "12 seeds & more",
    "place": "Table 1",
    "says": "ours is better",
    "kind": "ordering",
}
NOT_RUN = VERDICT | {"claim": "gpt4_webshop", "verdict": "not run", "text": "`gpt4` was not evaluated."}
#: By section: the names of its marks, which are shown when they are pointed at, and the texts of its figures.
DRAWN = """[...document.querySelectorAll('section')].map((section) => ({
  title: section.querySelector('h2').innerText,
  tips: [...section.querySelectorAll('svg.drawn g > title')].map((each) => each.textContent),
  texts: [...section.querySelectorAll('svg.drawn text')].map((each) => each.textContent),
}))"""
#: Pairs of texts of one figure that cover one another by more than a pixel, and texts outside of their figure.
COVERED = """[...document.querySelectorAll('svg.drawn')].flatMap((svg) => {
  const boxes = [...svg.querySelectorAll('text')].map((each) => [each.textContent, each.getBoundingClientRect()]);
  const whole = svg.getBoundingClientRect();
  const out = ([, a]) => a.left < whole.left - 1 || a.right > whole.right + 1 || a.bottom > whole.bottom + 1;
  const on = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1;
  return boxes.filter(out).map(([text]) => text).concat(
    boxes.flatMap(([text, a], i) => boxes.slice(i + 1).filter(([, b]) => on(a, b)).map(([other]) => [text, other])));
})"""


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
        names = [*stage.inputs, *(f"{HOME}/paper/page/{name}" for name in stage.outputs if name != "report.html")]
        products = [folder / Path(name).relative_to(f"{HOME}/paper") for name in names if "/paper/" in name]
        with contextlib.chdir(made):
            paper = claims.load("configs/claims.yaml")
            used = [path for path in products if path.name not in without]
            run = RunSettings.of(load_suite("configs/glance.yaml"))
            return html.report(PageFiles(used), run, paper, jobs)

    return page


@pytest.fixture(scope="module")
def page(make, folder):
    (folder / "page/report.html").write_text(make(), encoding="utf-8")
    return folder / "page/report.html"


def test_it_needs_nothing_beside_it_and_holds_figures_verdicts_drops_and_provenance(browser, page, folder):
    browser.open(page)
    assert browser.complaints() == []
    assert [address for address in browser.requests() if not address.startswith("data:")] == [page.resolve().as_uri()]
    assert browser.run("document.scripts.length") == 0
    assert browser.run("document.images.length") == 0, "figures are inline SVG"
    assert browser.run("document.querySelectorAll('svg.drawn').length") == 8
    assert "12 seeds & more" not in browser.text(), "folded"
    assert "Undecided: 1\n\nNot run: 2 claims." in browser.text()
    browser.run(UNFOLD)
    text = browser.text()
    assert "Co-evolving > ETO on <b>WebShop</b>" in text and "12 seeds & more" in text
    cells = browser.run("[...document.querySelectorAll('td, svg text')].map((cell) => cell.textContent)")
    assert {"failure over failure", "WebShop", "Co-evolving"} <= set(cells)
    assert set(cells).isdisjoint({"failure_failure", "expert_target", "webshop", "coevolve"})
    provenance = json.loads((folder / "table1/provenance.json").read_text())
    assert provenance["commit"] in text and f"torch {provenance['versions']['torch']}" in text
    assert provenance["hardware"] in text
    assert re.search(r"\d+ evaluate, .*\d+ sft, .*\d+ train", text), "every job that the products rest on"
    assert "WebShop (catalogue" in text


def test_a_number_links_to_its_episodes(browser, page):
    browser.open(page)
    address = browser.run("[...document.querySelectorAll('td a')].find((a) => a.hash.includes('coevolve')).href")
    assert "method=coevolve&env=webshop&iteration=1&part=eval&split=test" in address
    browser.visit(address)
    browser.until("document.getElementById('count') !== null")
    assert browser.run("document.getElementById('count').innerText").startswith("6 of ")


def test_without_verdicts_there_is_no_such_section(make):
    text = make(without=["verdicts.json", "verdicts.md"])
    assert ">Verdicts</h2>" not in text and ">Provenance</h2>" in text


def test_orders_in_the_miniature_have_a_section_of_their_own(make, folder):
    assert 'id="miniature"' not in make()
    order = {
        "verdict": "differs",
        "text": "as < here",
        "mean": -2.0,
        "low": -3.5,
        "high": -0.5,
        "tasks": 30,
        "seeds": 8,
    }
    path = folder / "verdicts/verdicts.json"
    before = path.read_bytes()
    path.write_text(json.dumps([VERDICT, NOT_RUN | {"claim": "webshop_better", "miniature": order}]))
    try:
        text = make()
    finally:
        path.write_bytes(before)
    assert "1 orders: 1 differs." in text and "1 of 2 claims judged in this suite" in text
    (row,) = re.findall(r'<tr><th scope="row">differs</th>.*?</tr>', text, re.DOTALL)
    assert ">Co-evolving above ETO, WebShop</td>" in row and "as &lt; here" in row


def test_text_of_the_files_is_escaped_and_numbers_stand_beside_the_papers(make, folder):
    text = make()
    assert "Co-evolving &gt; ETO on &lt;b&gt;WebShop&lt;/b&gt;" in text and "12 seeds &amp; more" in text
    cells = json.loads((folder / "table1/table1.json").read_text())[0]["cells"]
    measured = [cell for cell in cells if cell["estimate"] and cell["paper"] is not None]
    assert measured
    for cell in measured:
        mean, _, rest = table.estimate_text(Estimate.model_validate(cell["estimate"])).partition(" ")
        paper = f'<br><span class="quiet">paper, Llama-2-7B-Chat {cell["paper"]:.1f}'
        assert f'{mean}</a> <span class="quiet">{rest}</span>{paper}' in text


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


def test_the_first_screen_has_what_was_run_what_came_out_the_table_and_the_differences(browser, page, made):
    browser.ask("Emulation.setDeviceMetricsOverride", width=1280, height=800, deviceScaleFactor=1, mobile=False)
    browser.open(page)
    titles = browser.run("[...document.querySelectorAll('h2')].map((each) => each.innerText)")
    assert titles == [
        "Table 1, average reward x 100", "Differences, paired by task and seed", "Table 1, success rate in per cent",
        "Learning curves", "Rewards of failures", "Figure 2: failures", "Pairs and drops", "Costs", "Verdicts",
        "Mechanism", "Training curves", "The loop", "In numbers", "Provenance",
    ]  # fmt: skip
    lead = browser.run("[...document.querySelectorAll('h1 ~ p')].map((each) => each.innerText)")
    model = "tiny Llama (0.7 M parameters, from nothing)"
    assert lead[0] == f"{model} on WebShop, 1 seed: a miniature, no statement about Llama-2-7B-Chat."
    assert re.fullmatch(
        r"Co-evolving minus ETO, .*: \S+ \[.*\] on WebShop \(undecided\)\. Fewer than 4 seeds .*", lead[1]
    )
    bodies = "[...document.querySelectorAll('.cells tbody')].slice(0, 2)"  # rows that ran, and those that did not
    heads = browser.run(f"{bodies}.map(body => [...body.querySelectorAll('th')].map(head => head.textContent))")
    for shown in heads:  # in the paper's order
        labels = [row.label for row in claims.load(made / "configs/claims.yaml").rows.values() if row.label in shown]
        assert labels == [label for label in shown if label in labels] and len(labels) > 1
    folded = browser.run("document.querySelector('summary').innerText")
    assert (
        "SFT" in heads[0]
        and "GPT-4" not in " ".join(heads[0])
        and folded.startswith("Rows that were not run: GPT-4 in context")
    )
    assert browser.run("document.querySelector('#differences ~ .wide svg').getBoundingClientRect().bottom") < 800
    browser.ask("Emulation.clearDeviceMetricsOverride")


def test_claims_have_words(made):
    paper = claims.load(made / "configs/claims.yaml")
    shown = {
        "webshop_better": "Co-evolving above ETO, WebShop",
        "eto_webshop": "ETO, WebShop: 63",
        "mean_gain": "Co-evolving above ETO by 5.1 points, Mean",
        "largest_gain_unseen": "Co-evolving gains most over ETO on ScienceWorld unseen",
        "no claim": "no claim",
    }
    assert {name: verdicts.in_words(name, paper, ReportLabels({}, {})) for name in shown} == shown


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_and_its_text_has_contrast(browser, page, tmp_path, width, scheme):
    browser.ask("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False)
    browser.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    try:
        browser.open(page)
        browser.run(UNFOLD)
        (tmp_path / "page.png").write_bytes(browser.picture())
        assert browser.run("document.documentElement.scrollWidth") <= width
        cells = "[...document.querySelectorAll('.blocks td')].map((each) => getComputedStyle(each).display)"
        assert set(browser.run(cells)) == {"block" if width == 390 else "table-cell"}
        wide = "[...document.querySelectorAll('svg, figure, p, li')].filter((each) => !each.closest('.wide'))"
        assert browser.run(f"Math.max(...{wide}.map((each) => each.getBoundingClientRect().right))") <= width
        background = browser.run("getComputedStyle(document.body).backgroundColor")
        assert background == {"light": "rgb(255, 255, 255)", "dark": "rgb(22, 23, 24)"}[scheme]
        assert browser.run(FAINT) == []
        assert browser.run("[...document.querySelectorAll('.wide')].every((each) => each.tabIndex === 0)")
        assert browser.complaints() == []
    finally:
        browser.ask("Emulation.clearDeviceMetricsOverride")
        browser.ask("Emulation.setEmulatedMedia", features=[])


def test_links_resolve(browser, written):
    browser.open(written)
    links = browser.run("[...document.querySelectorAll('a')].map((each) => each.getAttribute('href'))")
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
    rectangles = re.findall(r'<rect x="(.*?)" y="(.*?)" width="(.*?)" height="(.*?)"/>', drawn)
    boxes = [tuple(map(float, numbers)) for numbers in rectangles]
    edges = {(x + dx * w, y + dy * h) for x, y, w, h in boxes for dx, dy in ((0, 0.5), (1, 0.5), (0.5, 0), (0.5, 1))}
    for path in re.findall(r'<path (?:class="next" )?d="M(.*?)"', drawn.partition("</defs>")[2]):
        numbers = [float(number) for number in re.findall(r"[-\d.]+", path)]
        assert {tuple(numbers[:2]), tuple(numbers[-2:])} <= edges, "an arrow joins two boxes"


def read(written, name):
    return json.loads((written.parents[1] / name).read_text())


def test_the_page_has_the_images_that_the_stages_wrote(written):
    page, images = written.read_text(), sorted(written.parents[1].glob("*/*.svg"))
    assert {image.stem for image in images} == {
        "figure3", "failure_rewards", "figure2", "pairs", "mechanism", "training_curves", "costs",
    }  # fmt: skip
    for image in images:
        text = image.read_text()
        assert text[text.index("<svg") :] in page
    ids = re.findall(r' id="([^"]*)"', page)
    assert len(ids) == len(set(ids))
    used = re.findall(r'href="#([^"]*)"|url\(#([^)]*)\)', page)
    assert {first or second for first, second in used} <= set(ids)


def test_histograms_pairs_and_costs_are_those_of_the_files(figures, written):
    numbers = {
        title: sorted(tip.rpartition(": ")[2] for tip in figures[title]["tips"])
        for title in ("Rewards of failures", "Pairs and drops", "Costs")
    }
    rewards = read(written, "failures/analysis.json")["failure_rewards"]
    counts = [count for row in rewards for count in row["counts"]]
    assert numbers["Rewards of failures"] == sorted(map(readable, counts)) and sum(counts) > 0
    rows = read(written, "pair_counts/pairs.json")
    values = [value for row in rows for value in (row["pairs"], *filter(None, row["drops"].values()))]
    assert numbers["Pairs and drops"] == sorted(map(readable, values)), "one seed"
    hours = [
        line[f"done_{kind}_hours"]
        for lines in read(written, "costs/costs.json").values()
        for line in map(asdict, costs.merged([Line(**line) for line in lines]))
        for kind in ("predicted", "measured")
    ]
    assert numbers["Costs"] == sorted(map(readable, hours))
    bars = [bar for panel in read(written, "figure2/figure2.json")["panels"] for bar in panel["bars"]]
    shown = [with_interval(*(bar["estimate"][name] for name in ("mean", "low", "high")), readable) for bar in bars]
    tips = figures["Figure 2: failures"]["tips"]
    assert sorted(tip.partition(": ")[2] for tip in tips) == sorted(shown)


def test_training_curves_are_those_of_the_trainings(jobs, figures, written):
    labels = RunSettings.of(load_suite(written.parents[4] / "configs/glance.yaml")).labels
    figure = drawing.drawn(lambda: training_figure.draw(list(training_figure.trainings(jobs.values())), labels))
    assert drawing.svg(figure) == (written.parent / "training_curves.svg").read_bytes()
    lines = {line.get_label(): list(line.get_ydata()) for axes in figure.axes for line in axes.lines}
    notes = read(written, "../tiny/webshop/eto/seed0/iter1/policy/target/provenance.json")["notes"]
    metrics = {"loss": "loss"} | {
        name: f"expert_target/{name}" for name in ("rewards/margins", "logps/chosen", "logps/rejected")
    }
    for metric, key in metrics.items():
        assert lines[f"ETO, target agent, {metric}"] == pytest.approx([s[key] for s in notes["history"]])
    before_and_after = [notes["gold"]["before"], notes["gold"]["after"]]
    assert lines["ETO, target agent, gold log-prob, iteration 1"] == pytest.approx(before_and_after)
    assert "ETO, target agent, loss" in figures["Training curves"]["tips"]
    (row,) = (row for row in read(written, "failures/analysis.json")["gold"] if row["method"] == "eto")
    assert [row["before"], row["after"]] == before_and_after and row["after"] < row["token_after"] < 0


@pytest.mark.parametrize("length", [1, 60])
def test_no_text_of_a_figure_covers_another(browser, page, tmp_path, length):
    """Of the suite's figures, and of many methods with labels of any length."""
    browser.open(page)
    assert browser.run(COVERED) == []
    labels = {f"m{number}": f"{number} " + "Wide label " * (length // 10 + 1) for number in range(10)}
    names = labels.values()
    rows = [BarRow(f"{name}, expert over target", [[(f"part {n}", n, 1.0)]], name) for n, name in enumerate(names)]
    history = [{"loss": 1000.0, "rewards/margins": 1e-4}, {"loss": -1000.0, "rewards/margins": 2e-4}]
    trained = [TrainingCurve("tiny", "e", name, 0, 1, "target", history) for name in labels]
    points = {"suite": "micro", "model": "tiny", "protocol": "fixed", "caption": "", "labels": labels}
    points["points"] = [
        {"method": name, "env": "e", "split": split, "iteration": 1, "sources": [],
         "estimate": {"mean": 0.1 * n, "low": 0.0, "high": 1.0, "n": 2, "n_tasks": 2, "n_seeds": 1}}
        for n, name in enumerate(labels) for split in ("seen", "unseen")
    ]  # fmt: skip
    draws = (
        partial(drawing.bars, "Bars", {"All": rows}),
        partial(training_figure.draw, trained, ReportLabels(labels, {"e": "World"})),
        partial(figure3.draw, figure3.Curves.model_validate(points), ReportLabels(labels, {"e": "World"})),
    )
    content = "".join(drawing.svg(drawing.drawn(draw)).decode().partition("?>")[2] for draw in draws)
    (tmp_path / "many.html").write_text(f"<!doctype html><meta charset=utf-8>{content}", encoding="utf-8")
    browser.open(tmp_path / "many.html")
    assert browser.run("document.querySelectorAll('svg.drawn').length") == 3
    assert browser.run(COVERED) == []


def test_equal_inputs_give_equal_bytes_without_a_time(make, page):
    assert make() == page.read_text(encoding="utf-8")
    assert not re.search(r"\d\d:\d\d:\d\d", make())
