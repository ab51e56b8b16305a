"""Fills the tables of the pages of results/reference from the committed results.

`python -m tools.reference_page` rewrites the pages; tests/docs/test_reference_page.py compares.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from coevolve.export.suite_export import JOBS
from coevolve.report.labels import kind_label
from coevolve.report.number_text import with_interval
from coevolve.report.stats import mean_of
from tools import front_page, recomputed

PAGES = tuple(front_page.REFERENCE / name for name in ("README.md", "science.md", "when.md", "suites.md"))
#: Rows of comparisons with SFT, in the order of the tables; others are left out.
METHODS = (
    "sft_all", "best_of_10", "rft", "rft_10", "ppo", "grpo", "eto", "eto_again", "eto_eq9", "eto_matched",
    "eto_eq9_matched", "ipr", "ipr_lower", "ipr_higher", "hpl", "hpl_lower", "hpl_higher",
    "lambda_0", "nll_mean", "without_failure_failure", "frozen_failure_agent", "beta_10", "hard_60",
    "failure_agent_first", "without_conflicts", "second_target", "ff_only_frozen", "ff_only", "coevolve",
    "agent_data_static", "agent_data_random", "agent_data", "coevolve_agent_data",
)  # fmt: skip
AGENTS = {"target": "target", "failure": "failure agent"}
#: The rows of `science_variants`.
VARIANTS = ("beta_10", "hard_60", "failure_agent_first", "without_conflicts")
#: Comparisons of two methods, beside those with SFT.
COMPARISONS = (
    ("eto_again", "eto"),
    ("eto_eq9", "eto"),
    ("hpl", "eto"),
    *((f"hpl{rate}", f"ipr{rate}") for rate in ("", "_lower", "_higher")),
    ("coevolve", "eto"),
    ("coevolve", "eto_again"),
    ("coevolve", "sft_all"),
    ("coevolve", "eto_eq9"),
    ("second_target", "eto"),
    ("second_target", "eto_eq9"),
    ("coevolve", "second_target"),
    ("eto_matched", "eto"),
    ("eto_matched", "eto_eq9"),
    ("coevolve", "eto_matched"),
    ("coevolve", "eto_eq9_matched"),
    ("coevolve", "ppo"),
    ("coevolve", "grpo"),
    ("coevolve", "lambda_0"),
    ("coevolve", "nll_mean"),
    ("coevolve", "without_failure_failure"),
    ("coevolve", "frozen_failure_agent"),
    *(("coevolve", row) for row in VARIANTS),
    ("ff_only", "ff_only_frozen"),
    ("lambda_0", "eto"),
    ("agent_data", "agent_data_random"),
    ("agent_data", "agent_data_static"),
)
#: Rows that differ from co-evolving in one thing: the folder of both, and the difference.
EXPLANATIONS = (
    ("science", "eto", "one agent, no NLL, weight 1 of DPO"),
    ("science", "eto_again", "the same, other random numbers"),
    ("science_why", "eto_matched", "the same, with as many episodes and steps as both agents"),
    ("science", "eto_eq9", "one agent"),
    ("science", "second_target", "the second agent is trained as the target is, on experts too"),
    ("science_bounds", "eto_eq9_matched", "one agent, with as many episodes and steps as both agents"),
    ("science_bounds", "frozen_failure_agent", "the failure agent is never trained"),
    ("science_parts", "frozen_failure_agent", "the same, two iterations"),
    ("science_parts", "without_failure_failure", "the target does not learn from pairs of failures"),
    ("science_parts", "nll_mean", "the mean of the experts' NLL in place of the sum"),
    ("science_variants", "beta_10", "beta 0.1 in both iterations"),
    ("science_variants", "hard_60", "pairs of failures only where the better one is a hard negative"),
    ("science_variants", "failure_agent_first", "the failure agent is trained before the target's pairs are made"),
    ("science_variants", "without_conflicts", "no pairs whose rejected side is another pair's chosen side"),
    ("science", "grpo", "GRPO on one agent's rewards, no pairs"),
    ("science", "sft_all", "SFT on twice the experts, no exploration"),
)
#: The methods of the tables by iteration.
ITERATIONS = {
    "science": (*recomputed.BOTH, "eto_eq9", "second_target", "coevolve"),
    "science_why": ("eto", "eto_matched", "eto_eq9", "coevolve"),
    "science_parts": ("nll_mean", "without_failure_failure", "frozen_failure_agent", "coevolve"),
    "science_variants": (*VARIANTS, "coevolve"),
    "science_when": ("ff_only_frozen", "ff_only", "coevolve"),
    "science_when_matched": ("eto_eq9_matched", "coevolve"),
    "science_bounds": ("eto_eq9_matched", "frozen_failure_agent", "coevolve"),
    "science_methods": (*recomputed.BOTH, "coevolve"),
    "real": ("eto", "coevolve"),
    "real_seeds": ("eto", "coevolve"),
    "real_sql": ("eto", "eto_eq9", "lambda_0", "coevolve"),
    "real_tuned": ("eto", "coevolve"),
}
#: The results whose declared outcomes name the log-probs of pairs.
DRIFTING = ("science_when", "science_bounds")


def blocks() -> dict[str, str]:
    """The tables of the pages by the name of their mark, most of them that of the folder whose numbers they have."""
    compared = ("science", "science_methods", "real", "real_seeds", "real_tuned", "micro", "methods", "bfcl")
    parts_of_science = ("science_parts", "science_variants", "science_when", "science_when_matched", "science_bounds")
    folders = (*compared, "micro_hpl", *parts_of_science, "real_sql", "agent_data")
    mechanism = ("science", "science_methods", *parts_of_science)
    made = {folder: _table(_differences(folder)) for folder in folders}
    made |= {f"{folder}_iterations": _table(_iterations(folder, methods)) for folder, methods in ITERATIONS.items()}
    made |= {f"{folder}_mechanism": _table(_mechanism(folder)) for folder in mechanism}
    made |= {f"{folder}_pairs": _table(_pairs(folder)) for folder in ("science", *DRIFTING)}
    made |= {f"{folder}_drift": _table(_drift(folder)) for folder in DRIFTING}
    made |= {folder: _table(_rates(folder)) for folder in ("science_tuning", "science_methods_tuning")}
    return made | {
        "overview": front_page.overview(compared),
        "explanations": _table(_explanations()),
        "science_by_iteration": _table(recomputed.by_iteration("science")),
        "science_why": _table(_differences("science_why", with_one_of=("eto_matched",))),
        "science_by_type": _table(recomputed.by_type("science")),
        "lambda": _table(_cells("lambda")),
        "real_tuning": _table(_trials("real_tuning")),
        "made": _table(_made()),
    }


def _differences(folder: str, with_one_of: Sequence[str] = ()) -> Iterator[list[str]]:
    """Differences to SFT and between methods, in points, with their intervals and the means of the seeds.

    `with_one_of`: those of these methods only; default: of all.
    """
    labels, by_env = front_page.labels(folder), front_page.differences(folder)
    several = any(estimate["n_seeds"] > 1 for estimates in by_env.values() for estimate in estimates.values())
    head = ["environment"] * (len(by_env) > 1) + ["difference", "points, 95 % interval", "tasks"]
    yield head + ["by seed"] * several
    for env, estimates in by_env.items():
        for better, than in (*((method, "sft") for method in METHODS), *COMPARISONS):
            chosen = not with_one_of or not {better, than}.isdisjoint(with_one_of)
            if chosen and (estimate := estimates.get((better, than))):
                seeds = ", ".join(f"{100 * mean:+.1f}" for mean in estimate["seed_means"].values())
                name = f"{labels.method(better)} - {labels.method(than)}"
                row = [name, front_page.points(estimate), str(estimate["n_tasks"])] + [seeds] * several
                yield [labels.env(env)] * (len(by_env) > 1) + row


def _explanations() -> Iterator[list[str]]:
    """What co-evolving gains over each row of `EXPLANATIONS`, and what that row gains over SFT."""
    yield ["row", "differs from co-evolving in", "results", "seeds", "Co-evolving - row", "row - SFT"]
    for folder, row, change in EXPLANATIONS:
        (estimates,) = front_page.differences(folder).values()
        gain, base = estimates["coevolve", row], estimates[row, "sft"]
        label = front_page.labels(folder).method(row)
        yield [label, change, f"`{folder}/`", str(gain["n_seeds"]), front_page.points(gain), front_page.points(base)]


def _iterations(folder: str, methods: Sequence[str]) -> Iterator[list[str]]:
    """Mean reward x 100 by environment and split, method and iteration."""
    labels, rewards = front_page.labels(folder), _rewards(folder)
    numbers = range(1, 1 + max(iteration for *_, iteration in rewards))
    made = {key[2:] for key in rewards}
    columns = [(method, number) for method in methods for number in numbers if (method, number) in made]
    yield ["environment", labels.method("sft"), *(f"{labels.method(method)}, {n}" for method, n in columns)]
    for env, split in dict.fromkeys(key[:2] for key in rewards):
        values = (rewards[env, split, *column] for column in [("sft", 0), *columns])
        yield [labels.split(env, split), *(f"{value:.1f}" for value in values)]


def _rewards(folder: str) -> dict[tuple[str, str, str, int], float]:
    """Mean reward x 100 by environment, split, method and iteration."""
    points = front_page.read(folder, "figure3.json")["points"]
    return {(p["env"], p["split"], p["method"], p["iteration"]): 100 * p["estimate"]["mean"] for p in points}


def _mechanism(folder: str) -> Iterator[list[str]]:
    """What a target is trained on and what it does, by method and iteration, means over the seeds."""
    labels = front_page.labels(folder)
    data = front_page.read(folder, "analysis.json")
    threshold = min(row["threshold"] for row in data["hard_negatives"])
    kinds = ("expert_target", "expert_failure", "failure_failure")
    yield [
        "method, iteration",
        *(f"hard negatives of all episodes, {agent}" for agent in ("target", "failure agent")),
        *(f"log-prob of {whose}" for whose in ("experts", "own episodes")),
        *(f"rejected token, {agent}" for agent in ("target's", "failure agent's")),
        "shares of the gradient",
    ]
    for method, iteration in dict.fromkeys((row["method"], row["iteration"]) for row in data["gold"]):
        on = {"method": method, "iteration": iteration}
        target, hard = on | {"agent": "target"}, {"threshold": threshold}
        shares = [_mean(data["gradients"], "share", target | {"kind": kind, "policy": "start"}) for kind in kinds]
        yield [
            f"{labels.method(method)}, {iteration}",
            *(_text(_mean(data["hard_negatives"], "of_episodes", on | hard | {"agent": a}), ".0%") for a in AGENTS),
            *(_change(data[sample], "before", "after", target) for sample in ("gold", "explored")),
            *(_text(_mean(data["off_policy"], "rejected", target | {"kind": kind}), ".2f") for kind in kinds[:2]),
            " / ".join(_text(share, ".0%") for share in shares if share is not None) or "-",
        ]


def _pairs(folder: str) -> Iterator[list[str]]:
    """The pairs that a target is trained on, by method, iteration and kind: their number, hard negatives, rewards."""
    labels = front_page.labels(folder)
    rows = [row for row in front_page.read(folder, "analysis.json")["pair_rewards"] if row["agent"] == "target"]
    sides = [f"{what}, {side}" for what in ("hard negatives", "reward") for side in ("chosen", "rejected")]
    yield ["method, iteration", "pair kind", "pairs", *sides]
    for names in dict.fromkeys((row["method"], row["iteration"], row["kind"]) for row in rows):
        method, iteration, kind = names
        on = {"method": method, "iteration": iteration, "kind": kind}
        yield [
            f"{labels.method(method)}, {iteration}",
            kind_label(kind),
            _text(_mean(rows, "pairs", on), ".0f"),
            *(_text(_mean(rows, f"{side}_hard", on), ".0%") for side in ("chosen", "rejected")),
            *(_text(_mean(rows, side, on), ".2f") for side in ("chosen", "rejected")),
        ]


def _drift(folder: str) -> Iterator[list[str]]:
    """Log-probs of the sides of the pairs that an agent is trained on, means over the trainings of an iteration."""
    labels, rows = front_page.labels(folder), front_page.read(folder, "analysis.json")["drift"]
    yield ["method, iteration, agent", "pair kind", "chosen sides", "rejected sides"]
    for names in dict.fromkeys((row["method"], row["iteration"], row["agent"], row["kind"]) for row in rows):
        on = dict(zip(("method", "iteration", "agent", "kind"), names, strict=True))
        sides = (_change(rows, f"{side}_first", f"{side}_last", on) for side in ("chosen", "rejected"))
        yield [f"{labels.method(names[0])}, {names[1]}, {AGENTS[names[2]]}", kind_label(names[3]), *sides]


def _change(rows: Sequence[dict[str, Any]], first: str, last: str, on: Mapping[str, Any]) -> str:
    return " to ".join(_text(_mean(rows, key, on), ".1f") for key in (first, last))


def _mean(rows: Sequence[dict[str, Any]], key: str, on: Mapping[str, Any]) -> float | None:
    """The mean of a key over the rows that have all of `on`; None if none has."""
    return mean_of(row[key] for row in rows if row.items() >= on.items() and row[key] is not None)


def _text(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _cells(folder: str) -> Iterator[list[str]]:
    """The first table of an ablation."""
    table, *_ = front_page.read(folder, "table.json")
    columns = list(dict.fromkeys(cell["column"] for cell in table["cells"]))
    yield ["", *(column.split("_")[-1] for column in columns)]
    estimates = {(cell["row"], cell["column"]): cell["estimate"] for cell in table["cells"]}
    for row, label in table["rows"].items():
        shown = [estimates[row, column] for column in columns]
        yield [label, *(with_interval(each["mean"], each["low"], each["high"]) for each in shown)]


def _rates(folder: str) -> Iterator[list[str]]:
    """Trials of one seed: mean reward x 100 by iteration, and the difference to SFT after the last one, in points."""
    labels, rewards = front_page.labels(folder), _rewards(folder)
    ((env, split),) = {key[:2] for key in rewards}
    numbers = range(1, 1 + max(iteration for *_, iteration in rewards))
    yield ["trial", *(f"iteration {number}" for number in numbers), "minus SFT, points"]
    (estimates,) = front_page.differences(folder).values()
    for (better, than), estimate in estimates.items():
        if than == "sft":
            shown = (_text(rewards.get((env, split, better, number)), ".1f") for number in numbers)
            yield [labels.method(better), *shown, front_page.points(estimate)]


def _trials(folder: str) -> Iterator[list[str]]:
    """Differences to SFT, and the experts' log-prob before and after the training."""
    labels = front_page.labels(folder)
    rows = front_page.read(folder, "analysis.json")["gold"]
    gold = {row["method"]: row for row in rows}
    assert len(gold) == len(rows), "one training of each trial"
    yield ["trial", "minus SFT, points", "log-prob of experts before", "after"]
    (estimates,) = front_page.differences(folder).values()
    for (better, than), estimate in estimates.items():
        if than == "sft" and (row := gold.get(better)):
            before, after = f"{row['before']:.1f}", f"{row['after']:.1f}"
            yield [labels.method(better), front_page.points(estimate), before, after]


def _made() -> Iterator[list[str]]:
    """Commits, number and time of the jobs of each result."""
    yield ["results", "jobs", "commit of the jobs", "commit of the table", "hours of the jobs", "CPU-hours"]
    for folder in sorted(path.parent.name for path in front_page.REFERENCE.glob("*/jobs.jsonl.xz")):
        jobs = front_page.read_lines(folder, JOBS)
        commits = ", ".join(dict.fromkeys(job["commit"][:7] for job in jobs))
        measured = all(job.get("cpu_seconds") is not None for job in jobs)
        cpu = f"{sum(job['cpu_seconds'] for job in jobs) / 3600:.1f}" if measured else "not measured"
        hours = f"{sum(job['seconds'] for job in jobs) / 3600:.1f}"
        yield [
            f"`{folder}/`",
            str(len(jobs)),
            commits,
            front_page.read(folder, "provenance.json")["commit"][:7],
            hours,
            cpu,
        ]


def _table(rows: Iterator[Sequence[str]]) -> str:
    head, *body = rows
    return front_page.table(head, body)


def filled() -> dict[Path, str]:
    """The pages with their tables; raises `ValueError` for a table that is on no page or on several."""
    texts = {page: page.read_text(encoding="utf-8") for page in PAGES}
    for name, block in blocks().items():
        pages = [page for page, text in texts.items() if f"<!-- {name} -->" in text]
        if len(pages) != 1:
            raise ValueError(f"{len(pages)} pages have the mark `{name}`")
        texts[pages[0]] = front_page.fill(texts[pages[0]], {name: block})
    return texts


def main() -> None:
    """Rewrite the tables of the pages."""
    for page, text in filled().items():
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
