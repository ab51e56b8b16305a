"""Data sets for the hub: JSON lines, and a card, whose front matter the hub and `datasets` read."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from statistics import fmean
from typing import Any

import yaml
from tabulate import tabulate

from coevolve import __version__
from coevolve.errors import UserError
from coevolve.export.result_folder import ResultFolder
from coevolve.storage import files
from coevolve.storage.folders import named_directory

WARNING = (
    "A trainer that takes `prompt` and `chosen` as one turn each learns the environment's turns too: a completion "
    "holds the observations between the actions. Use the pre-tokenised form, whose labels are the action tokens alone, "
    "or a trainer that masks the messages of role `user`."
)

#: How to cite the kit and the paper, as CITATION.cff.
CITATION = """@software{coevolve,
  title = {coevolve: a reproduction kit for Co-Evolving Agents},
  author = {The coevolve maintainers},
  version = {VERSION}
}
@article{jung2025coevolving,
  title = {Co-Evolving Agents: Learning from Failures as Hard Negatives},
  author = {Jung, Yeonsung and Padhi, Trilok and Shaham, Sina and Khullar, Dipika and Jeong, Joonhyun and Mehrabi,
            Ninareh and Yang, Eunho},
  journal = {arXiv:2511.22254},
  year = {2025}
}""".replace("VERSION", __version__)


def card(front: Mapping[str, Any], title: str, sections: Mapping[str, str]) -> str:
    """The text of a card; a section without text is left out."""
    parts = [f"## {name}\n\n{text}\n" for name, text in sections.items() if text]
    head = yaml.safe_dump(dict(front), sort_keys=False, allow_unicode=True)
    return f"---\n{head}---\n\n# {title}\n\n" + "\n".join(parts)


def write_data_set(
    out: Path,
    folders: Sequence[ResultFolder],
    rows: Mapping[str, Sequence[Mapping[str, Any]]],
    names: Sequence[str],
    title: str,
    sections: Mapping[str, str],
    *,
    stated: bool = True,
    **front: Any,
) -> list[str]:
    """Write the non-empty files of `rows` and a card to the folder `out`, in place of an earlier export.

    A file `CONFIG/SPLIT.jsonl`, or several `CONFIG/SPLIT/NAME.jsonl`, are a split of a part of the data set;
    `CONFIG.jsonl` is the split `train`. `names` are all entries that such an export can have; `stated`: the card states
    the columns. Returns the names of the files. Raises `UserError` if all are empty.
    """
    made = {name: of_file for name, of_file in rows.items() if of_file}
    if not made:
        raise UserError(f"{folders[0].path}: no pair or episode to export in these folders; name others.")
    licence, limits = licences(folders)
    front |= licence
    configs: dict[str, dict[str, str]] = {}
    columns: dict[str, list[Mapping[str, Any]]] = {}
    for name, of_file in made.items():
        config, *split = PurePath(name).with_suffix("").parts
        path = name if len(split) < 2 else f"{config}/{split[0]}/*.jsonl"
        configs.setdefault(config, {})[split[0] if split else "train"] = path
        columns.setdefault(config, []).extend(of_file)
    front["configs"] = [
        {"config_name": config, "data_files": [{"split": split, "path": path} for split, path in paths.items()]}
        for config, paths in configs.items()
    ]
    if stated:
        front["dataset_info"] = [
            {"config_name": config, "features": features(of_config)} for config, of_config in columns.items()
        ]
    with named_directory(out, ["README.md", *names]) as folder:
        for name, of_file in made.items():
            # ASCII: a reader that splits at every line break of Unicode must not split a message.
            files.write_bytes(folder / name, "".join(f"{json.dumps(row)}\n" for row in of_file).encode())
        text = card(front, title, {**sections, **of_all(folders), "Licences and limits": limits})
        files.write_bytes(folder / "README.md", text.encode())
    return list(made)


def table(rows: Sequence[tuple[object, ...]], *head: str) -> str:
    """A table in Markdown."""
    return tabulate(rows, headers=head, tablefmt="github", disable_numparse=True)


def licences(folders: Iterable[ResultFolder]) -> tuple[dict[str, str], str]:
    """The hub's keys of the licence, and what the licences cover and do not cover, by environment.

    A licence that covers all texts has its identifier; of several, or where some texts have none, the card says more.
    """
    kinds = {kind for folder in folders if (kind := folder.environment)}
    (identifier, *others) = {kind.licence_id for kind in kinds} or {""}
    lines = [f"* {kind.licence}" for kind in sorted(kinds, key=lambda kind: kind.__name__)]
    lines.append("* Texts that a model wrote are subject to the terms of that model; this card does not grant them.")
    keys = {"license": identifier}
    if others or not identifier:
        keys = {"license": "other", "license_name": "see-licences-and-limits", "license_link": "README.md"}
    return keys, "\n".join(lines)


def of_all(folders: Sequence[ResultFolder]) -> dict[str, str]:
    """The sections of every card: numbers of evaluations, and how to cite."""
    numbers = evaluations(folders)
    return {"Evaluation": numbers, "Citation": f"```bibtex\n{CITATION}\n```"}


def evaluations(folders: Iterable[ResultFolder]) -> str:
    """The numbers of the evaluations among the folders, by split; empty without one."""
    rows = [
        (*map(str, folder.subject), split, len(of_split), f"{fmean(each.reward for each in of_split):.3f}",
         f"{fmean(each.success for each in of_split):.3f}")
        for folder in folders
        for split in sorted({record.split for record in folder.records})
        if (of_split := [record for record in folder.records if record.split == split])
    ]  # fmt: skip
    head = ("model", "environment", "method", "seed", "iteration", "split", "episodes", "average reward", "success")
    return table(rows, *head) if rows else ""


def rewards(folders: Iterable[ResultFolder]) -> str:
    """The interval of the rewards; InterCodeSQL's can be negative under protocol `paper` (quirk 10)."""
    negative = any(folder.kind == "intercode_sql" and folder.record.protocol == "paper" for folder in folders)
    return "[-1, 1]" if negative else "[0, 1]"


def origin(folders: Sequence[ResultFolder]) -> str:
    """Protocols, environments and code of the folders; an environment without episodes has its name in the suite."""
    identities: dict[str, set[str]] = {}
    for folder in folders:
        identities.setdefault(str(folder.origin["env"]), set()).update(e.environment for e in folder.episodes)
    subjects = sorted({" · ".join(map(str, (*folder.subject, folder.origin["agent"]))) for folder in folders})
    rows = [
        ("model, environment, method, seed, iteration, agent", "; ".join(subjects)),
        ("protocol", ", ".join(sorted({folder.record.protocol for folder in folders}))),
        ("environment", "; ".join("; ".join(sorted(names)) or env for env, names in sorted(identities.items()))),
        ("made by", f"coevolve {__version__}, commit {', '.join(sorted({f.record.commit for f in folders}))}"),
        ("code digests", ", ".join(sorted({folder.record.code_digest for folder in folders}))),
    ]
    return table(rows, "", "")


def drops(folders: Iterable[ResultFolder]) -> str:
    """Counts of pairs and of drops, by pair kind and reason."""
    counts: Counter[tuple[str, str]] = Counter()
    for folder in folders:
        counts.update((pair.kind.value, "in a pair") for pair in folder.pairs)
        counts.update((drop.kind.value if drop.kind else "no kind", drop.reason.value) for drop in folder.drops)
    rows = [(kind, reason, count) for (kind, reason), count in sorted(counts.items())]
    return tabulate(rows, headers=["pair kind", "outcome of a candidate", "number"], tablefmt="github") if rows else ""


def features(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The columns of JSON rows and their types, of all rows together, as the front matter of a card states them.

    Without them `datasets` infers types from the first megabytes of a file, and refuses a later value in a column whose
    values were all empty before. Raises `pyarrow.ArrowInvalid` for a column with values of two types.
    """
    try:
        import pyarrow
    except ImportError:
        raise UserError("the columns of a data set are typed by pyarrow; install `datasets`.") from None
    return [_feature(field) for field in pyarrow.array(rows).type]


def _feature(field: Any) -> dict[str, Any]:
    return {"name": field.name, **_typed(field.type)}


def _typed(kind: Any) -> dict[str, Any]:
    """A type as the hub's YAML writes it."""
    from pyarrow import types

    if types.is_struct(kind):
        return {"struct": [_feature(field) for field in kind]}
    if types.is_list(kind):
        (inner,) = _typed(kind.value_type).items()
        return {"list": {"list": inner[1]} if inner[0] == "list" else inner[1]}
    return {"dtype": {"double": "float64"}.get(str(kind), str(kind))}
