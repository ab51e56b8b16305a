"""Exports, each read by the ecosystem's own reader; Inspect's is a slow test, in an environment of its own."""

import json
import lzma
import re
import shutil
from statistics import fmean, stdev

import pytest
import torch
import yaml
from builders import relist
from command_line import exit_status
from datasets import load_dataset
from huggingface_hub import DatasetCard, ModelCard
from report.explored import episode as an_episode
from trl import SFTConfig, SFTTrainer
from web_server import served

from coevolve.config.names import PairKind
from coevolve.export import cards, logbook
from coevolve.export.result_folder import ResultFolder
from coevolve.policies import loading
from coevolve.records.drops import Drop
from coevolve.records.episodes import StopReason, Trajectory
from coevolve.records.evaluation import EvalRecord
from coevolve.records.pairs import PreferencePair
from coevolve.records.provenance import Provenance
from coevolve.report import claims
from coevolve.report.claim_tests import Results
from coevolve.report.verdicts import Verdict
from coevolve.storage import jsonl, provenance

HOME = "results/glance/tiny/webshop"
PAIRS, EVALUATED = f"{HOME}/coevolve/seed0/iter1/pairs/target", f"{HOME}/coevolve/seed0/iter1/eval"
SPLITS = {"train": {"train"}, "test": {"test"}}
ROLLOUT, POLICY = f"{HOME}/base/seed0/rollout/target", f"{HOME}/coevolve/seed0/iter1/policy/target"


@pytest.fixture(scope="module")
def run(made):
    return made


@pytest.fixture
def export(run, monkeypatch):
    monkeypatch.chdir(run)

    def call(*arguments, code=0):
        assert exit_status("export", *arguments) == code

    return call


@pytest.fixture
def inspect_log(export, tmp_path):
    """The Inspect log of the evaluation in a folder."""

    def log(folder=EVALUATED):
        shutil.rmtree(tmp_path / "logs", ignore_errors=True)
        export("inspect", folder, "--out", tmp_path / "logs")
        (path,) = (tmp_path / "logs").iterdir()
        return json.loads(path.read_text())

    return log


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def as_failure(pair, of):
    """The pair with the rejected side of another on its chosen side."""
    sides = ("chosen", "chosen_token_ids", "chosen_id", "chosen_reward")
    return pair.model_copy(update={name: getattr(of, name.replace("chosen", "rejected")) for name in sides})


def test_a_data_set_is_loaded_with_all_rows_and_its_drops(export, run, tmp_path):
    export("dataset", PAIRS, ROLLOUT, EVALUATED, "--out", tmp_path / "data")
    load = {
        name: load_dataset(str(tmp_path / "data"), name, cache_dir=tmp_path / "cache")
        for name in ("pairs", "trajectories", "drops")
    }
    assert {split: set(rows["split"]) for split, rows in load["trajectories"].items()} == SPLITS
    load = {name: [row for rows in splits.values() for row in rows] for name, splits in load.items()}
    pairs = jsonl.read(run / PAIRS / "pairs.jsonl", PreferencePair)
    drops = jsonl.read(run / PAIRS / "drops.jsonl", Drop)
    episodes = [e for folder in (ROLLOUT, EVALUATED) for e in jsonl.read(run / folder / "episodes.jsonl", Trajectory)]
    assert [row["chosen"] for row in load["pairs"]] == [[m.model_dump() for m in pair.chosen] for pair in pairs]
    assert [row["trajectory_id"] for row in load["trajectories"]] == [episode.digest() for episode in episodes]
    assert [[t["observation"] for t in row["turns"]] for row in load["trajectories"]] == [
        [turn.observation for turn in episode.turns] for episode in episodes
    ]
    assert {(row["method"], row["iteration"]) for row in load["trajectories"]} == {("base", 0), ("coevolve", 1)}
    assert len(load["drops"]) == len(drops) and pairs
    assert {row["seed"] for name in load for row in load[name]} == {0}, "of the training, in every table"
    assert [row["episode_seed"] for row in load["trajectories"]] == [episode.seed for episode in episodes]
    assert {row["max_new_tokens"] for row in load["trajectories"]} == {24}
    card = DatasetCard.load(tmp_path / "data/README.md")
    assert card.data.license == "other" and card.data.license_link == "README.md" and "no stated licence" in card.text
    records = jsonl.read(run / EVALUATED / "records.jsonl", EvalRecord)
    mean = fmean(record.reward for record in records)
    assert re.search(
        rf"\| tiny +\| webshop +\| coevolve +\| 0 +\| 1 +\| test +\| {len(records)} +\| {mean:.3f} ", card.text
    )
    assert episodes[0].environment in card.text and "protocol" in card.text
    table = [line.split("|")[1:-1] for line in card.text.split("## Pairs and drops")[1].split("##")[0].splitlines()]
    counts = [int(cells[2]) for cells in table if len(cells) == 3 and cells[2].strip().isdecimal()]
    assert sum(counts) == len(pairs) + len(drops)


def test_a_card_names_the_environment_of_pairs_beside_that_of_episodes(root, tmp_path):
    lines = lzma.decompress((root / "results/reference/real/jobs.jsonl.xz").read_bytes()).splitlines()
    jobs = [Provenance.from_json(line) for line in lines]
    folders = []
    for stage, env in (("rollout", "webshop"), ("pairs", "sciworld")):
        job = next(job for job in jobs if (job.stage, job.wildcards["env"]) == (stage, env))
        folders.append(ResultFolder(tmp_path / stage, job))
    jsonl.write(
        tmp_path / "rollout/episodes.jsonl", [an_episode("a", 0.5).model_copy(update={"environment": "a shop"})]
    )
    assert re.search(r"\| environment +\| sciworld; a shop +\|", cards.origin(folders))


@pytest.mark.parametrize(
    ("wildcards", "agent"),
    [({"agent": "failure"}, "failure"), ({"whole": "rollout/failure"}, "failure"), ({"whole": "eval"}, "target")],
)
def test_a_row_names_the_agent_that_acted(run, wildcards, agent):
    record = provenance.read(run / ROLLOUT / "provenance.json").model_copy(update={"wildcards": wildcards})
    assert ResultFolder(run / ROLLOUT, record).origin["agent"] == agent


def test_a_folder_that_is_named_twice_is_exported_once(export, run, tmp_path):
    export("dataset", PAIRS, ROLLOUT, f"{PAIRS}/../target", run / ROLLOUT, "--out", tmp_path / "data")
    export("trl", PAIRS, f"{PAIRS}/", run / PAIRS, "--out", tmp_path / "trl")
    written = {path: len(lines(path)) for path in tmp_path.rglob("*.jsonl")}
    pairs, drops, episodes = (
        len(lines(run / name)) for name in (f"{PAIRS}/pairs.jsonl", f"{PAIRS}/drops.jsonl", f"{ROLLOUT}/episodes.jsonl")
    )
    assert {path.relative_to(tmp_path).as_posix(): number for path, number in written.items()} == {
        "data/pairs.jsonl": pairs, "data/drops.jsonl": drops, "data/trajectories/train.jsonl": episodes,
        "trl/conversational.jsonl": pairs,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("form", "env", "protocol", "interval"),
    [
        ("dataset", "intercode_sql", "paper", "[-1, 1]"),
        ("traces", "intercode_sql", "paper", "[-1, 1]"),
        ("dataset", "intercode_sql", "fixed", "[0, 1]"),
        ("traces", "webshop", "paper", "[0, 1]"),
    ],
)
def test_a_card_has_the_interval_of_its_environments_rewards(form, env, protocol, interval, export, run, tmp_path):
    folder = shutil.copytree(run / EVALUATED, tmp_path / "eval")
    episodes = jsonl.read(folder / "episodes.jsonl", Trajectory)
    renamed = [e.model_copy(update={"task": e.task.model_copy(update={"env": env})}) for e in episodes]
    jsonl.write(folder / "episodes.jsonl", renamed)
    relist(folder, protocol=protocol)
    export(form, folder, "--out", tmp_path / "out")
    assert f"`reward` in {interval}" in " ".join(DatasetCard.load(tmp_path / "out/README.md").text.split())


def trainer(dataset, run, tmp_path):
    """TRL's trainer as it comes."""
    settings = SFTConfig(
        output_dir=str(tmp_path / "out"), per_device_train_batch_size=2, report_to="none", bf16=False, use_cpu=True,
        train_sampling_strategy="sequential", max_length=None, disable_tqdm=True, gradient_checkpointing=False,
    )  # fmt: skip
    model = loading.load_model(run / POLICY, dtype=torch.float32)
    tokenizer = loading.load_tokenizer(run / POLICY)
    return SFTTrainer(model, settings, train_dataset=dataset, processing_class=tokenizer)


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def test_a_stock_trainer_gives_the_pretokenised_form_gradients_of_action_tokens_alone(export, run, tmp_path):
    export("trl", PAIRS, "--tokenizer", POLICY, "--out", tmp_path / "trl")
    dataset = load_dataset(str(tmp_path / "trl"), "sft", cache_dir=tmp_path / "cache")["train"]
    pairs = lines(tmp_path / "trl/pairs.jsonl")
    experts = {str(row["chosen_input_ids"]): row for row in pairs if row["kind"] != "failure_failure"}
    rows = [*experts.values()]
    sft = trainer(dataset, run, tmp_path)
    batch = next(iter(sft.get_train_dataloader()))
    model = sft.model.train()
    theirs = gradients(model, sft.compute_loss(model, dict(batch)))
    total, count = 0.0, 0
    for row in rows[:2]:
        ids, mask = torch.tensor([row["chosen_input_ids"]]), torch.tensor(row["chosen_mask"])
        logps = model(ids).logits.float().log_softmax(-1)[0, :-1].gather(1, ids[0, 1:, None])[:, 0]
        total, count = total - (logps * mask[1:]).sum(), count + int(mask[1:].sum())
    ours = gradients(model, total / count)
    assert torch.allclose(theirs, ours, rtol=1e-4, atol=1e-6) and ours.norm() > 0
    actions = sum(sum(row["chosen_mask"]) for row in rows[:2])
    assert int((batch["labels"] != -100).sum()) == actions < int((batch["input_ids"] >= 0).sum())


def test_the_targets_of_fine_tuning_are_experts_each_once(export, run, tmp_path):
    """The expert of several pairs is one row, an agent's chosen episode none; `pairs.jsonl` keeps all pairs.

    Pairs without an expert, such as the failure agent's, give no file: `datasets` cannot load one without a row.
    """
    folder = shutil.copytree(run / PAIRS, tmp_path / "pairs")
    one, *rest = [pair for pair in jsonl.read(folder / "pairs.jsonl", PreferencePair) if "expert" in pair.kind]
    other = next(pair for pair in rest if pair.task_id != one.task_id)
    again = one.model_copy(update={"kind": PairKind.EXPERT_FAILURE})
    swapped = as_failure(other, of=other)  # a rollout that beat the expert
    failures = swapped.model_copy(update={"kind": PairKind.FAILURE_FAILURE})

    def exported(*given):
        """The card of an export of these pairs."""
        jsonl.write(folder / "pairs.jsonl", given)
        relist(folder)
        export("trl", folder, "--tokenizer", POLICY, "--out", tmp_path / "trl")
        return DatasetCard.load(tmp_path / "trl/README.md")

    given = (failures, one, again, swapped, other)
    card = " ".join(exported(*given).text.split())
    rows, pairs = (lines(tmp_path / f"trl/{name}.jsonl") for name in ("sft", "pairs"))
    assert [pair["kind"] for pair in pairs] == [pair.kind.value for pair in given]
    assert [row["input_ids"] for row in rows] == [pairs[index]["chosen_input_ids"] for index in (1, 4)]
    assert "experts of the pairs, each once" in card and "Chosen sides that an agent played are not in it" in card
    card = exported(failures)
    assert [each["config_name"] for each in card.data.configs] == ["pairs"] and "sft.jsonl" not in card.text
    assert len(load_dataset(str(tmp_path / "trl"), "pairs", cache_dir=tmp_path / "cache")["train"]) == 1
    assert sorted(path.name for path in (tmp_path / "trl").iterdir()) == ["README.md", "pairs.jsonl"]


def test_what_cannot_be_exported_is_one_sentence(export, run, tmp_path, capsys):
    empty = shutil.copytree(run / PAIRS, tmp_path / "pairs")
    jsonl.write(empty / "pairs.jsonl", [])
    relist(empty)
    (tmp_path / "result.json").write_text("{}")
    no_evaluation = ": no records.jsonl and no episodes.jsonl"
    for form, *arguments, words in (
        ("trl", empty, f"{empty}: no pair or episode to export in these folders; name others."),
        ("trl", PAIRS, "--tokenizer", "nowhere", "nowhere: policy directory without weights"),
        ("trl", PAIRS, "--tokenizer", HOME, f"{HOME}: policy directory without weights"),
        ("dataset", "configs", "configs: no result with pairs.jsonl or episodes.jsonl"),
        ("traces", PAIRS, "no result with episodes.jsonl"),
        *(("inspect", name, f"{name}{no_evaluation}") for name in (PAIRS, "nowhere", tmp_path / "result.json")),
    ):
        export(form, *arguments, "--out", tmp_path / "out", code=2)
        error = capsys.readouterr().err
        assert words in error and len(error.splitlines()) == 1
        assert ("name the folder of an eval" in error) == (form == "inspect")
    assert not (tmp_path / "out").exists()


def test_the_conversational_form_trains_the_environments_turns_as_its_card_says(export, run, tmp_path):
    export("trl", PAIRS, "--out", tmp_path / "trl")
    assert "learns the environment's turns" in DatasetCard.load(tmp_path / "trl/README.md").text
    dataset = load_dataset(str(tmp_path / "trl"), "conversational", cache_dir=tmp_path / "cache")["train"]
    pairs = jsonl.read(run / PAIRS / "pairs.jsonl", PreferencePair)
    assert [row["rejected"] for row in dataset] == [[m.model_dump() for m in pair.rejected] for pair in pairs]
    single = dataset.select_columns(["prompt", "chosen"]).rename_column("chosen", "completion")
    sft = trainer(single, run, tmp_path)
    batch = next(iter(sft.get_train_dataloader()))
    labels = batch["labels"][0]
    text = sft.processing_class.decode([token for token in labels.tolist() if token != -100])
    observation = next(message.content for message in pairs[0].chosen if message.role == "user")
    assert observation.split()[1] in text and "Observation:" in text


def test_a_model_card_has_the_trainings_provenance(export, run, tmp_path):
    export("model", POLICY, "--out", tmp_path / "README.md")
    card = ModelCard.load(tmp_path / "README.md")
    ref = json.loads((run / POLICY / "policy.json").read_text())
    made = json.loads((run / POLICY / "provenance.json").read_text())
    assert ref["sha256"] in card.text and made["code_digest"] in card.text
    assert all(sha256 in card.text for sha256 in made["inputs"].values())
    assert f"| {made['notes']['steps']}" in card.text and card.data.library_name == "transformers"
    assert card.data.base_model == []  # a tiny model has none on the hub
    mean = fmean(record.reward for record in jsonl.read(run / EVALUATED / "records.jsonl", EvalRecord))
    assert re.search(rf"\| test +\| 6 +\| {mean:.3f} ", card.text)
    base = f"{HOME}/base/seed0/policy/failure"  # is never evaluated, and the target's evaluation is beside it
    export("model", base, "--out", tmp_path / "README.md")
    assert "## Evaluation" not in ModelCard.load(tmp_path / "README.md").text


def test_a_card_cites_what_the_repository_does(root):
    cited = yaml.safe_load((root / "CITATION.cff").read_text())
    (paper,) = cited["references"]
    wanted = [cited["title"], cited["authors"][0]["name"], str(cited["version"]), paper["title"], paper["notes"]]
    wanted += [f"{author['family-names']}, {author['given-names']}" for author in paper["authors"]]
    text = " ".join(cards.CITATION.split())
    assert [words for words in wanted if words not in text] == []


@pytest.mark.parametrize("name", ["dataset", "traces", "trl"])
def test_an_export_replaces_no_folder_with_other_files(name, export, run, tmp_path, capsys):
    thesis = tmp_path / "home/thesis/text.tex"
    thesis.parent.mkdir(parents=True)
    thesis.write_text("years of work")
    folder = PAIRS if name == "trl" else EVALUATED
    export(name, folder, "--out", tmp_path / "home", code=2)
    assert "home: has thesis, which is not of this export" in capsys.readouterr().err and thesis.exists()
    export(name, folder, "--out", "results", code=2)
    assert (run / EVALUATED / "records.jsonl").exists()
    for _ in "12":
        export(name, folder, "--out", tmp_path / "again")


def test_an_inspect_log_has_every_episode_and_the_evaluations_score_and_times(run, inspect_log, tmp_path):
    """An episode that the environment broke has no part in the score, as in the table."""
    log, records = inspect_log(), jsonl.read(run / EVALUATED / "records.jsonl", EvalRecord)
    rewards = [record.reward for record in records]
    assert [s["scores"]["reward"]["value"] for s in log["samples"]] == rewards
    assert log["eval"]["metadata"]["step_limit"] == 8 and log["eval"]["dataset"]["samples"] == len(records)
    (score,) = log["results"]["scores"]
    values = {name: metric["value"] for name, metric in score["metrics"].items()}
    assert values == pytest.approx({"mean": fmean(rewards), "stderr": stdev(rewards) / len(rewards) ** 0.5})
    folder = shutil.copytree(run / EVALUATED, tmp_path / "eval")
    *episodes, last = jsonl.read(folder / "episodes.jsonl", Trajectory)
    broken = last.model_copy(update={"stop": StopReason.ENV_ERROR, "reward": 0.0})
    jsonl.write(folder / "episodes.jsonl", [*episodes, broken])
    jsonl.write(folder / "records.jsonl", records[:-1])
    relist(folder, started="2026-01-31T23:59:00+00:00", seconds=90.4)
    log = inspect_log(folder)
    (score,) = log["results"]["scores"]
    assert score["metrics"]["mean"]["value"] == pytest.approx(fmean(rewards[:-1]))
    assert log["stats"] == {
        "started_at": "2026-01-31T23:59:00+00:00", "completed_at": "2026-02-01T00:00:30+00:00",
    }  # fmt: skip
    jsonl.write(folder / "records.jsonl", [records[0].model_copy(update={"split": "more"}), *records[1:]])
    relist(folder, started="2026-01-31T23:59:00+00:00", seconds=90.4)
    names = {score["name"]: score["metrics"]["mean"]["value"] for score in inspect_log(folder)["results"]["scores"]}
    assert names == {"reward more": rewards[0], f"reward {records[1].split}": pytest.approx(fmean(rewards[1:]))}


@pytest.mark.slow
def test_inspects_own_reader_opens_the_log(export, run, tmp_path, other_environment):
    export("inspect", EVALUATED, "--out", tmp_path / "logs")
    python = other_environment("inspect")
    code = (
        "import sys; from inspect_ai.log import read_eval_log, list_eval_logs\n"
        "log = read_eval_log(list_eval_logs(sys.argv[1])[0])\n"
        "print(log.status, len(log.samples), log.results.scores[0].metrics['mean'].value)\n"
        "print(log.samples[0].messages[-1].text)"
    )
    status, samples, mean, *text = python("-c", code, str(tmp_path / "logs")).split(maxsplit=3)
    records = jsonl.read(run / EVALUATED / "records.jsonl", EvalRecord)
    assert (status, int(samples)) == ("success", len(records))
    assert float(mean) == pytest.approx(sum(record.reward for record in records) / len(records))
    assert text


@pytest.mark.slow
def test_inspects_bundled_viewer_shows_an_episodes_messages(export, run, tmp_path, other_environment, browser):
    export("inspect", EVALUATED, "--out", tmp_path / "logs")
    command = ("view", "bundle", "--log-dir", str(tmp_path / "logs"), "--output-dir", str(tmp_path / "site"))
    other_environment("inspect")("-m", "inspect_ai", *command)
    (log,) = (tmp_path / "logs").iterdir()
    episode = jsonl.read(run / EVALUATED / "episodes.jsonl", Trajectory)[-1]
    sample = f"{episode.task.task_id.replace('/', '%2F')}/{episode.sample + 1}"
    with served(tmp_path / "site") as address:
        browser.visit(f"{address}/#/logs/{log.name}/samples/sample/{sample}/messages")
        messages = [episode.prompt[-1].content, episode.turns[0].text.splitlines()[0]]
        for message in messages:
            browser.until(f"document.body.innerText.includes({json.dumps(message)})")
        assert browser.text().count("ASSISTANT\n") >= 2
        assert [url for url in browser.requests() if not url.startswith((address, "data:"))] == []


def sessions(folder):
    """The header and the messages of every session, by id."""
    found = {}
    for path in sorted((folder / "sessions").glob("*/*")):
        header, *messages = lines(path)
        assert {line["type"] for line in messages} == {"message"} and header["id"] == path.stem
        found[header["id"]] = header, [line["message"] for line in messages]
    return found


def spoken(episode):
    """Role and text of every message of an episode."""
    turns = [pair for turn in episode.turns for pair in (("assistant", turn.text), ("user", turn.observation))]
    return [(message.role, message.content) for message in episode.prompt] + turns


def test_traces_have_every_episode_as_a_session(export, run, tmp_path):
    export("traces", ROLLOUT, EVALUATED, ROLLOUT, "--out", tmp_path / "traces")
    made = sessions(tmp_path / "traces")
    episodes = [e for folder in (ROLLOUT, EVALUATED) for e in jsonl.read(run / folder / "episodes.jsonl", Trajectory)]
    assert made.keys() == {episode.digest() for episode in episodes} and len(made) == len(episodes)
    for episode in episodes:
        header, messages = made[episode.digest()]
        assert (tmp_path / f"traces/sessions/{episode.task.split}/{episode.digest()}.jsonl").exists()
        assert (header["type"], header["harness"], header["name"]) == ("session", "coevolve", episode.task.task_id)
        assert (header["reward"], header["stop"], header["env"]) == (episode.reward, episode.stop.value, "webshop")
        assert [(message["role"], message["content"]) for message in messages] == spoken(episode)
        sampled = [message["content"] for message in messages if message.get("model") == episode.policy.name]
        assert sampled == [turn.text for turn in episode.turns]
    card = DatasetCard.load(tmp_path / "traces/README.md")
    assert card.data.license == "other" and episodes[0].environment in card.text


@pytest.mark.slow
def test_the_hubs_reader_of_traces_has_a_row_for_each_episode(export, run, tmp_path, other_environment):
    export("traces", EVALUATED, "--out", tmp_path / "traces")
    code = (
        "import json, sys; from datasets import load_dataset\n"
        "rows = load_dataset(sys.argv[1], cache_dir=sys.argv[2])['test']\n"
        "print(json.dumps([[row['session_id'], row['messages'], row['num_user_messages']] for row in rows]))"
    )
    printed = other_environment("traces")("-c", code, str(tmp_path / "traces"), str(tmp_path / "cache"))
    rows = {key: (messages, count) for key, messages, count in json.loads(printed.splitlines()[-1])}
    episodes = {e.digest(): e for e in jsonl.read(run / EVALUATED / "episodes.jsonl", Trajectory)}
    assert rows.keys() == episodes.keys()
    for key, episode in episodes.items():
        messages, count = rows[key]
        texts = [(message["role"], message["content"]) for message in messages]
        assert texts == [(role, text) for role, text in spoken(episode) if text]
        assert count == sum(role == "user" for role, _ in spoken(episode))


def logbook_page(folder, claim):
    return (folder / f".trackio/logbook/pages/{claim.replace('_', '-')}/page.md").read_text()


def test_a_logbook_has_a_page_for_each_claim_and_calls_a_miniature_one(export, run, coevolve, tmp_path):
    judged = json.loads(coevolve("verify", "--suite", "configs/glance.yaml", "--json")[1])
    export("logbook", "--suite", "configs/glance.yaml", "--out", tmp_path)
    index = (tmp_path / ".trackio/logbook/pages/index.md").read_text()
    statuses = dict(re.findall(r"^\| \[(\w+)\]\S+ +\| (\w+)", index, re.MULTILINE))
    assert statuses == {each["claim"]: "toy" if "miniature" in each else "inconclusive" for each in judged}
    assert "on the miniature glance" in index and {"toy", "inconclusive"} == {*statuses.values()}
    verdict = next(each for each in judged if each["claim"] == "webshop_better")
    page = logbook_page(tmp_path, "webshop_better")
    assert (
        verdict["says"] in page and verdict["miniature"]["text"] in page and "coevolve reverify results/glance" in page
    )
    record = json.loads((run / EVALUATED / "provenance.json").read_text())
    row = next(line for line in page.splitlines() if line.startswith(f"| `{EVALUATED}/records.jsonl`"))
    assert record["outputs"]["records.jsonl"][:16] in row and record["code_digest"] in row
    assert "`results/glance/view/index.html#/episodes?method=coevolve`" in page
    export("logbook", "--suite", "configs/glance.yaml", "--out", tmp_path)
    assert logbook_page(tmp_path, "webshop_better") == page, "an export is replaced, by equal bytes"


@pytest.mark.parametrize(
    ("outcome", "status"),
    [("agrees", "verified"), ("differs", "falsified"), ("cannot tell", "inconclusive")],
)
def test_a_verdict_has_its_status_and_numbers_in_a_logbook(root, tmp_path, outcome, status):
    paper = claims.load(root / "configs/claims.yaml")
    verdict = Verdict(
        claim="eto_webshop", verdict=outcome, text="Here.", place="Table 1", says="67.4", kind="cell",
        mean=66.04, low=61.0, high=70.96, tasks=200, seeds=3, row="eto", column="webshop",
    )  # fmt: skip
    assert logbook.write("paper", [verdict], paper, Results((), ()), tmp_path) == 1
    page = logbook_page(tmp_path, "eto_webshop")
    assert f"**{status}** ({outcome}): Here." in page and "coevolve why --suite paper eto webshop" in page
    assert re.search(r"\| claim +\| 66\.0 \[61\.0, 71\.0\] +\| 200 +\| 3 ", page)


def test_a_persons_logbook_is_not_replaced(export, tmp_path, capsys):
    pages = tmp_path / ".trackio/logbook/pages/index.md"
    pages.parent.mkdir(parents=True)
    pages.write_text("# Mine\n")
    export("logbook", "--suite", "configs/glance.yaml", "--out", tmp_path, code=2)
    assert "a logbook that is not of this export" in capsys.readouterr().err and pages.read_text() == "# Mine\n"


@pytest.mark.slow
def test_trackios_own_reader_reads_the_logbook(export, tmp_path, other_environment):
    export("logbook", "--suite", "configs/glance.yaml", "--out", tmp_path)
    python = other_environment("trackio")

    def trackio(*arguments):
        return python("-m", "trackio.cli", "logbook", *arguments, cwd=tmp_path)

    assert "- webshop-better · webshop_better · 4 cells" in trackio("read", "pages")
    assert trackio("sync") and (tmp_path / ".trackio/logbook/index.html").is_file()
    page = trackio("read", "page", "webshop-better")
    cells = re.findall(r"^### ([\w ]+) · (\w+) · (cell_\w+)$", page, re.MULTILINE)
    assert [title for title, *_ in cells] == ["Claim", "Numbers", "Commands", "Provenance and episodes"]
    assert "**toy** (not run)" in page and f"`{EVALUATED}/records.jsonl`" in trackio("read", "cell", cells[-1][2])
