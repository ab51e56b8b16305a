"""`coevolve evaluate-model`: evaluates one checkpoint or endpoint in one environment, without a suite of its own."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coevolve.config.restriction import as_dict, digest
from coevolve.config.suite import GENERAL_PROTOCOLS, Suite
from coevolve.errors import UserError
from coevolve.pipeline import in_process
from coevolve.pipeline.branch import Branch
from coevolve.pipeline.job_file import JobFile
from coevolve.pipeline.plan import Plan
from coevolve.pipeline.run_job import execute
from coevolve.pipeline.stage import Subject, files_of
from coevolve.records.episodes import Task
from coevolve.report import evaluation_result
from coevolve.settings.yaml_files import Section, read_yaml
from coevolve.shipped import shipped_file
from coevolve.storage import files, jsonl, policy_dir

#: Longest conversation that is sent to an endpoint, in tokens; a checkpoint's config has its own.
ENDPOINT_CONTEXT = 8192


def run(options: argparse.Namespace, write: Callable[[str], None]) -> int:
    """Evaluates the model, writes the result file, and prints the table; finished episodes are not played again."""
    if options.model.startswith(("http://", "https://")):
        os.environ["OPENAI_BASE_URL"] = options.model
    suite, env = configured(options)
    plan = Plan(suite, root=options.root.as_posix())
    folder = evaluate(plan, env, options.split, options.tasks, options.threads)
    result = evaluation_result.from_folder(folder, suite.models["model"].label)
    for path in dict.fromkeys([folder.with_suffix(".json"), options.out]):
        if path:
            files.write_json(path, result.model_dump(mode="json", exclude_none=True))
    write(evaluation_result.table([result]))
    write("".join(f"\n{remark}" for remark in [suite.envs[env].note] if remark))
    if result.spent:
        served = ", ".join(f"{name or 'no name'} ({count})" for name, count in result.spent["served"].items())
        write(f"\nTokens: {result.spent['prompt_tokens']} of prompts, {result.spent['completion_tokens']} of answers.")
        write(f"Model that the responses name: {served}.")
    write(f"\nResult file: {options.out or folder.with_suffix('.json')}; episodes: {folder / 'episodes.jsonl'}")
    return 0


def configured(options: argparse.Namespace) -> tuple[Suite, str]:
    """The suite of the evaluation, which has one model and one environment, and the environment's name in it.

    The suite's name has a digest of all settings and of the weights, so that results of different settings lie apart.
    """
    settings = {"protocol": options.protocol, "prompt.examples": options.examples}
    overrides = [*options.set, *(f"{key}={value}" for key, value in settings.items() if value is not None)]
    model, env = model_section(options), options.env
    if options.protocol not in (None, *GENERAL_PROTOCOLS) and not options.suite:
        env = f"{env.removesuffix(f'-{options.protocol}')}-{options.protocol}"
    suite, name = in_process.single_environment(env, options.suite, overrides, model, options.seed, options.split)
    digits = digest([as_dict(suite), os.environ.get("OPENAI_BASE_URL") if suite.models["model"].endpoint else None])
    return suite.model_copy(update={"suite": f"{name}_{digits}"}), name


def evaluate(plan: Plan, env: str, split: str | None, limit: int | None, threads: int) -> Path:
    """The folder of the evaluation's episodes and records: the first `limit` tasks of each split, or of one `split`."""
    job = plan.paper.iteration(Subject("model", env, Branch(in_process.METHOD, plan.suite.seeds[0], 0))).evaluation
    inputs = job.inputs
    in_process.make(plan, files_of(inputs), threads)
    tasks = jsonl.read(Path(str(inputs["tasks"])), Task)
    splits = list(dict.fromkeys(task.split for task in tasks))
    chosen = [task for name in splits for task in [t for t in tasks if t.split == name][:limit]]
    name = "-".join(["evaluation", *([split] if split else []), *([str(limit)] if limit else [])])
    out = Path(plan.home) / name
    if limit:
        selected = Path(plan.home) / "tasks" / f"{name}.jsonl"
        jsonl.write(selected, chosen)
        inputs = {**inputs, "tasks": str(selected)}
    if not in_process.is_current(plan, out, job, inputs):
        execute(JobFile.of(plan, job, inputs, out), threads)
    return out


def model_section(options: argparse.Namespace) -> Section:
    """The suite's section of the model: an endpoint's, or that of a checkpoint with the sha256 of its files.

    Raises `UserError` for a checkpoint whose config or tokenizer transformers cannot read, before anything is played.
    """
    if options.model.startswith(("http://", "https://")):
        section: Section = read_yaml(shipped_file(Path("configs/models/endpoint.yaml")))["models"]["endpoint"]
        if not options.name:
            raise UserError("--name: which model does the endpoint serve? Give --name MODEL.")
        section["endpoint"]["model"] = options.name
        section["label"], section["context"] = options.label or options.name, options.context or ENDPOINT_CONTEXT
        return section
    folder = Path(options.model)
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder}: no checkpoint in transformers' format; name its folder, or an endpoint's URL.")
    context = options.context or _architecture(folder / "config.json").get("max_position_embeddings")
    if not context:
        raise UserError(f"{folder / 'config.json'}: no `max_position_embeddings`; give --context TOKENS.")
    values = {
        "label": options.label or _name(folder),
        "context": context,
        "path": str(folder.resolve()),
        "revision": policy_dir.digest(folder),
        "parameters": _parameters(folder),
    }
    from coevolve.policies.loading import load_tokenizer  # imports torch

    load_tokenizer(folder)
    return Section(values, {})


def _architecture(path: Path) -> dict[str, Any]:
    """The checkpoint's `config.json`; raises `UserError` if it is not a JSON object."""
    content = files.read_json(path)
    if not isinstance(content, dict):
        raise UserError(f"{path}: no JSON object; copy the checkpoint again.")
    return content


def _name(folder: Path) -> str:
    """The name in the checkpoint's `policy.json`, which the kit's policies have; else the folder's."""
    path = folder / policy_dir.REF_NAME
    return policy_dir.read_ref(path).name if path.exists() else folder.resolve().name


def _parameters(folder: Path) -> float:
    """The number of weights in a checkpoint, without adapters; raises `UserError` for a file that is not whole."""
    import math

    from safetensors import SafetensorError, safe_open

    count = 0
    for path in policy_dir.first_of(folder).glob(policy_dir.WEIGHTS):
        try:
            with safe_open(path, framework="numpy") as weights:
                count += sum(math.prod(weights.get_slice(key).get_shape()) for key in weights.keys())  # noqa: SIM118
        except SafetensorError as error:
            raise UserError(f"{path}: not a whole file of weights ({error}); copy the checkpoint again.") from None
    return float(count)
