"""Jobs without Snakemake: a suite of one model and one environment, and the jobs that a file needs, in this process."""

from collections.abc import Sequence
from pathlib import Path

from coevolve.config.loading import completed, named_file, suite_file
from coevolve.config.suite import Suite
from coevolve.errors import UserError, suggestion
from coevolve.pipeline import required_files
from coevolve.pipeline.job_file import JobFile
from coevolve.pipeline.plan import Plan
from coevolve.pipeline.run_job import execute
from coevolve.pipeline.stage import Inputs, PlannedJob, files_of
from coevolve.settings.validation import validated
from coevolve.settings.yaml_files import Section, read_yaml
from coevolve.shipped import shipped_file
from coevolve.storage import files, provenance

#: The recipe whose target is the model as it is.
METHOD = "untrained"


def single_environment(
    env: str, suite: str | None, overrides: Sequence[str], model: Section, seed: int, split: str | None = None
) -> tuple[Suite, str]:
    """A suite with one model, `models.model`, and one environment, and the environment's name in it.

    `env` is an environment of `suite`; without a suite the name of a file in `configs/envs`, which is joined with the
    common settings. Raises `UserError` for an unknown name, key or value, and for an override without an effect.
    """
    if suite:
        path = suite_file(suite)
        raw = read_yaml(path)
    else:
        path = named_file("environment without a suite", env, Path("configs/envs"))
        common = read_yaml(shipped_file(Path("configs/parts/hyperparameters.yaml")))
        raw = read_yaml(path).over(common).over(Section({"protocol": "fixed"}, {}))
    envs = raw.get("envs")
    if not envs:
        raise UserError(f"{path}: key `envs` is empty; add an environment.")
    name = env if suite else next(iter(envs), "")
    if name not in envs:
        listed = ", ".join(f"`{each}`" for each in envs)
        raise UserError(f"{path}: no environment `{name}`{suggestion(name, envs) or f'; it has {listed}.'}")
    raw |= {"models": Section({"model": model}, {}), "envs": Section({name: envs[name]}, envs.origins)}
    raw |= {"iterations": {name: 1}, "methods": [METHOD], "seeds": [seed], "suite": "evaluate_model"}
    for override in overrides:
        _require_effect(override, name)
    of_split = [f"envs.{name}.splits=[{split}]"] if split else []
    return validated(Suite, path, completed(path, raw, [*overrides, *of_split])), name


def _require_effect(override: str, env: str) -> None:
    """Raises `UserError` for an override of a key that `single_environment` sets itself."""
    key = override.partition("=")[0]
    section = key.partition(".")[0]
    if section in ("suite", "methods", "seeds", "iterations"):
        raise UserError(f"override `{override}`: `{section}` is fixed here; leave it out, and give a seed by `--seed`.")
    entry = {"models": "models.model", "envs": f"envs.{env}"}.get(section, section)
    if not f"{key}.".startswith(f"{entry}."):
        raise UserError(f"override `{override}`: `{section}` has only `{entry}` here; write {entry}.KEY=VALUE.")


def make(plan: Plan, paths: Sequence[str], threads: int) -> None:
    """Run the jobs that files need, but those whose results are there and current."""
    for job in plan.jobs(paths) if paths else ():
        made = all(Path(path).exists() for path in job.files)
        if not (made and (not job.leaves_provenance or is_current(plan, Path(job.folder), job))):
            execute(JobFile.of(plan, job), threads)


def is_current(plan: Plan, out: Path, job: PlannedJob, inputs: Inputs | None = None) -> bool:
    """Whether a folder has the result of a job, of the present code, settings and inputs; their paths may differ."""
    record = provenance.of_file(out / provenance.NAME)
    if record is None or plan.changed_since(record):
        return False
    given = map(Path, files_of(inputs or job.inputs))
    hashes = [required_files.recorded_sha256(path) or files.sha256(path) for path in given]
    return sorted(record.inputs.values()) == sorted(hashes)
