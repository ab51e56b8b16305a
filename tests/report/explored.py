"""Explorations and measurements made from rewards, notes and provenance of jobs, and claims about a range."""

from pathlib import Path

import builders
from builders import turn

from coevolve.pipeline.job import NO_BRANCH, Job
from coevolve.pipeline.stage import files_by_name, results_by_name
from coevolve.records.provenance import Provenance
from coevolve.records.training import TrainReport
from coevolve.report import claims
from coevolve.report.exploration import Exploration, ExploredEpisode
from coevolve.report.labels import ReportLabels
from coevolve.report.measurement import Measurement
from coevolve.storage import jsonl

#: Of the paper's methods and environments.
LABELS = ReportLabels(
    {"sft": "SFT", "eto": "ETO", "coevolve": "Co-evolving"}, {"sciworld": "ScienceWorld", "webshop": "WebShop"}
)


def episode(task, reward, actions=("look",), *, observations=(), **fields):
    """An episode in which all is seen but for the first `observations`."""
    answers = [*observations, *["You see it."] * len(actions)]
    turns = [turn(action, answer) for action, answer in zip(actions, answers, strict=False)]
    return builders.episode(task, reward, turns, prompt=f"Do {task}", **fields)


def episodes(rewards_by_task, **fields):
    """An episode of every task, or several where a list is given."""
    return [
        episode(task, reward, sample=sample, **fields)
        for task, rewards in rewards_by_task.items()
        for sample, reward in enumerate(rewards if isinstance(rewards, list) else [rewards])
    ]


def explored(method, rewards_by_task, *, agent="target", iteration=1, seed=0, env="sciworld", folder=None, **names):
    """One file of `episodes`; written to disk if a folder is given."""
    played, source = episodes(rewards_by_task, env=env, agent=agent), f"{method}/{seed}/{iteration}/{agent}"
    if folder:
        source = f"{folder}/{source}"
        jsonl.write(Path(source), played)
    given = {"model": "tiny", "protocol": "fixed", "source": source} | names
    kept = tuple(map(ExploredEpisode.of, played))
    return Exploration(method=method, env=env, seed=seed, iteration=iteration, agent=agent, episodes=kept, **given)


def measurement(
    method, env, split, rewards_by_task, *, iteration=0, protocol="fixed", suite="micro", model="tiny", environment=""
):
    """One record per task and seed; task names are the keys, seeds the positions in the lists."""
    records = tuple(
        builders.record(task, reward, split=split, seed=seed, environment=environment)
        for task, rewards in rewards_by_task.items()
        for seed, reward in enumerate(rewards)
    )
    source = f"results/{suite}/{method}/{env}/{split}/{iteration}.jsonl"
    return Measurement(suite, model, protocol, method, env, split, iteration, records, (source,))


def run(plan, planned, out, work, **given):
    """Run the stage of a planned job in this process, with other inputs where some are given; returns its notes."""
    inputs = planned.inputs | given
    paths = {name: [Path(path) for path in paths] for name, paths in files_by_name(inputs).items()}
    suite, branch = plan.settings(planned), planned.branch or NO_BRANCH
    job = Job(planned.stage.name, suite, paths, planned.wildcards, work, 1, results_by_name(inputs), plan.vllm, branch)
    out.mkdir(parents=True, exist_ok=True)
    return planned.stage.run(job, out)


def train_report(history, rows=1):
    """The notes of a training with these steps."""
    return TrainReport(
        rows=rows, truncated=0, dropped=0, steps=len(history), tokens=9, first_loss=1.0, last_loss=1.0, history=history,
        seconds=1.0, trained_tokens=9,
    )  # fmt: skip


def provenance(result, inputs=(), **fields):
    """A finished job's provenance; its inputs are named as in a run under `results`."""
    empty = {
        "stage": "train", "config": {}, "config_digest": "", "code_digest": "", "commit": "", "dirty": False,
        "protocol": "fixed", "seeds": {}, "versions": {}, "container": "", "outputs": {}, "started": "",
        "seconds": 36.0,
    }  # fmt: skip
    return Provenance(**empty | fields, result=result, inputs={f"results/smoke/{name}": "" for name in inputs})


def claim(**fields):
    """An order, or a difference with a `value` and a `rival`."""
    fields = {"text": "it says", "place": "section 5", "better": "coevolve", "than": "sft", "column": "seen"} | fields
    if "value" in fields:
        return claims.DifferenceClaim(kind="difference", **fields)
    return claims.OrderingClaim(kind="ordering", **fields)
