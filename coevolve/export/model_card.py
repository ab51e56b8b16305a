"""A policy's model card: what it was trained from and on, with the hashes of all inputs."""

import re
from pathlib import Path

from coevolve.export import cards
from coevolve.export.result_folder import ResultFolder
from coevolve.records.training import TrainReport
from coevolve.storage import files, policy_dir, provenance


def write(folder: Path, out: Path) -> Path:
    """Write the card of the policy in `folder` to `out`; nothing of the policy is copied."""
    result, ref = ResultFolder.open(folder, policy_dir.REF_NAME), policy_dir.describe(folder)
    provenance.checked(folder / policy_dir.REF_NAME)
    record, start = result.record, policy_dir.start_of(folder)
    licence, limits = cards.licences([result])
    front = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "license": "other",
        "license_name": "of-the-base-model-and-the-data",
        "base_model": [ref.base] if re.fullmatch(r"[\w.-]+/[\w.-]+", ref.base) else [],
        "tags": ["agents", "coevolve", f"data-license:{licence['license']}"],
    }
    rows = [
        ("name", ref.name),
        ("sha256 of weights, config and tokenizer", ref.sha256),
        *([("sha256 of the policy that its adapters were trained on", start.sha256)] if start else []),
        ("base model", f"{Path(ref.base).name if Path(ref.base).is_absolute() else ref.base} {ref.revision}"),
        ("stage", record.stage),
        *((name, value) for name, value in result.origin.items()),
        ("config digest", record.config_digest),
        ("code digest", record.code_digest),
        ("commit", f"{record.commit}{', with uncommitted changes' if record.dirty else ''}"),
        ("versions", ", ".join(f"{name} {version}" for name, version in record.versions.items())),
    ]
    inputs = [(Path(path).name, Path(path).parent.as_posix(), sha256) for path, sha256 in record.inputs.items()]
    sections = {
        "Identity": cards.table(rows, "", ""),
        "Training": _training(record.notes if isinstance(record.notes, TrainReport) else None),
        "Inputs": cards.table(inputs, "file", "folder", "sha256"),
        "Weights": "Publish the merged weights, which `coevolve export checkpoint` writes." if start else "",
        "Prompt": "The chat template is the tokenizer's; an episode begins with the data's `instruction.txt`.",
        **cards.of_all(_evaluations(result)),
        "Licences and limits": f"{limits}\n* The policy was trained for one environment.",
    }
    files.write_bytes(out, cards.card(front, ref.name, sections).encode())
    return out


def _evaluations(policy: ResultFolder) -> list[ResultFolder]:
    """The evaluation of the policy in the suite's results, if there is one."""
    folder = policy.path.parent.parent / "eval"
    if not (folder / provenance.NAME).is_file():
        return []
    made = provenance.read(folder / provenance.NAME)
    evaluated = files.sha256(policy.path / policy_dir.REF_NAME) in made.inputs.values()
    return [ResultFolder(folder, made)] if evaluated else []


def _training(report: TrainReport | None) -> str:
    if report is None:
        return ""
    rows = [
        ("examples", report.rows),
        ("examples cut to the context", report.truncated),
        ("examples dropped", report.dropped),
        ("gradient steps", report.steps),
        ("tokens of all epochs", report.tokens),
        ("loss of the first and of the last step", f"{report.first_loss} and {report.last_loss}"),
    ]
    return cards.table(rows, "", "") + (f"\n\n{report.note}" if report.note else "")
