"""Reuse of results of other suites: a job with equal settings, code and input bytes takes one instead of running.

A result lies at the same path below the folder of every suite, so the candidates of a job are at most one per suite:
there is no index that could be stale. A result is taken only if its bytes are those that its provenance lists.
"""

import logging
import shutil
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from coevolve.agent_data.records import Fragment
from coevolve.errors import UserError
from coevolve.policies.endpoint import endpoint_ref
from coevolve.records.provenance import Provenance
from coevolve.storage import files, folders, jsonl, policy_dir, provenance, pruned

log = logging.getLogger(__name__)
_COMPARED = ("stage", "wildcards", "config_digest", "code_digest", "protocol", "seeds")


def take(record: Mapping[str, Any], out: Path, tracked: Collection[str]) -> bool:
    """Write another suite's result of the same job to `out`; returns whether there is one.

    `record` is the job's provenance as far as it is known before the job runs. Files named in `tracked` are copied,
    because Snakemake compares their times; all others, such as weights, are hard links where the disk is the same.
    """
    for source, made in candidates(record, out):
        try:
            _write(source, made, record, out, tracked)
        except (OSError, UserError) as error:
            log.warning("%s: not reused: %s", source, error)
            continue
        log.info("%s: reused from %s; nothing was run.", out, source)
        return True
    return False


def candidates(record: Mapping[str, Any], out: Path) -> Iterator[tuple[Path, Provenance]]:
    """Folders of other suites with the result of an equal job, and their provenance."""
    result = record["result"]
    home = Path(out.as_posix().removesuffix(f"/{result}"))
    if home == out:  # a person gave another folder
        return
    inputs = _below(home, record["inputs"])
    for other in sorted(home.parent.iterdir()):
        if other == home:
            continue
        made = provenance.if_valid(other / result / provenance.NAME)
        if made is None or pruned.read(other / result):
            continue
        equal = all(getattr(made, name) == record[name] for name in _COMPARED)
        if equal and _below(other, made.inputs) == inputs:
            yield other / result, made


def _below(home: Path, inputs: Mapping[str, str]) -> dict[str, str]:
    """sha256 by path, where paths in the folder of a suite are relative to it."""
    return {path.removeprefix(f"{home}/"): sha256 for path, sha256 in inputs.items()}


def _write(source: Path, made: Provenance, record: Mapping[str, Any], out: Path, tracked: Collection[str]) -> None:
    """Write the result with its provenance; raises `UserError` for a file that is not as its provenance lists it."""
    with folders.directory(out) as folder:
        for name, sha256 in made.outputs.items():
            if Path(name).name != name:
                raise UserError(f"its {provenance.NAME} lists `{name}`, which is not the name of a file.")
            _copy(source / name, folder / name, linked=name not in tracked)
            if files.sha256(folder / name) != sha256:
                raise UserError(f"{name} is not as its {provenance.NAME} lists it.")
        _require_same_endpoint(folder, record)
        taken = made.model_copy(update={**record, "reused_from": made.reused_from or str(source)})
        files.write_bytes(folder / provenance.NAME, taken.model_dump_json(indent=2).encode() + b"\n")


def _require_same_endpoint(folder: Path, record: Mapping[str, Any]) -> None:
    """Raise `UserError` if the result is of an endpoint's model at another address than this job's.

    The address is an environment variable, so no digest has it; what a policy plays has its reference as an input.
    """
    config, policy, fragments = record["config"], folder / policy_dir.REF_NAME, folder / "fragments.jsonl"
    model = config.get("models", {}).get(record["wildcards"].get("model"), {})
    if policy.is_file() and (endpoint := model.get("endpoint")):
        refs = {policy_dir.read_ref(policy)}
    elif fragments.is_file() and (endpoint := config.get("task_evolution", {}).get("endpoint")):
        refs = {fragment.explorer for fragment in jsonl.read(fragments, Fragment)}
    else:
        return
    if refs - {endpoint_ref(endpoint["model"])}:
        raise UserError(f"it is of model `{endpoint['model']}` at another address than OPENAI_BASE_URL.")


def _copy(source: Path, target: Path, *, linked: bool) -> None:
    """Copy or link a file, or a folder without its hidden entries, which have no part in its sha256."""
    copy = folders.link_or_copy if linked else shutil.copyfile
    if source.is_symlink():
        target.symlink_to(source.readlink())
    elif source.is_dir():
        shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns(".*"), copy_function=copy)
    else:
        copy(source, target)
