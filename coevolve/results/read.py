"""The tables of a suite, read from what its product `tables` wrote, or made from the records of a committed folder."""

from __future__ import annotations

import io
import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from coevolve.errors import UserError
from coevolve.records.evaluation import EvalRecord, ResultFile
from coevolve.records.provenance import Provenance
from coevolve.results import tables
from coevolve.storage import files, provenance

if TYPE_CHECKING:
    import pandas as pd

#: Of a committed folder, as compressed JSON lines: the provenance of every job, and the records of every evaluation.
JOBS, RECORDS = "jobs.jsonl.xz", "records.jsonl.xz"
#: The rows that the evaluations of shared policies are: fine-tuned, made from nothing or downloaded, pre-trained.
_SHARED = {"base": "sft", "base/untrained": "untrained", "base/pretrained": "pretrained"}


def episodes(suite: str | Path) -> pd.DataFrame:
    """The evaluated and explored episodes of a suite, by its name (in `results` or `results/reference`) or a folder.

    Raises `UserError` if there are none, and for a changed file.
    """
    return _table("episodes", suite)


def pairs(suite: str | Path) -> pd.DataFrame:
    """The preference pairs, as `episodes`."""
    return _table("pairs", suite)


def pairings(suite: str | Path) -> pd.DataFrame:
    """Candidates, pairs and drops by pair kind, as `episodes`."""
    return _table("pairings", suite)


def trainings(suite: str | Path) -> pd.DataFrame:
    """The steps of all trainings, as `episodes`."""
    return _table("trainings", suite)


def jobs(suite: str | Path) -> pd.DataFrame:
    """The finished jobs and their costs, as `episodes`."""
    return _table("jobs", suite)


def _table(name: str, suite: str | Path) -> pd.DataFrame:
    import pandas as pd

    folders = [Path(suite), Path("results", suite, "paper", "tables"), Path("results", "reference", suite)]
    for folder in folders:
        if (path := folder / f"{name}.parquet").is_file():
            return pd.read_parquet(io.BytesIO(files.read_bytes(provenance.checked(path))))
    made = next((_committed(name, folder) for folder in folders if (folder / JOBS).is_file()), None)
    if made is None:
        command = f"snakemake --profile smoke --config suite={suite} -- tables"
        raise UserError(f"`{suite}` has no table `{name}` here; run `{command}` in the folder of its results.")
    return made


def _committed(name: str, folder: Path) -> pd.DataFrame | None:
    """A table from a committed folder's compressed lines, which have no explorations and no pairs."""
    history = [(tables.of_job(made), made) for made in map(Provenance.from_json, _lines(folder / JOBS))]
    if name == "episodes" and (folder / RECORDS).is_file():
        of_result = {made.result: of for of, made in history}
        return tables.frame([row for line in _lines(folder / RECORDS) for row in _evaluated(line, of_result)])
    makers = {"trainings": tables.trainings, "jobs": tables.jobs}
    return makers[name](history) if name in makers else None


def _evaluated(line: bytes, of_result: dict[str, ResultFile]) -> Iterator[tables.Row]:
    record = json.loads(line)
    of = of_result[record.pop("result")]
    file = of._replace(method=_SHARED.get(of.method, of.method), path=f"{of.path}/records.jsonl")
    yield tables.evaluated(file, EvalRecord.model_validate(record))


def _lines(path: Path) -> list[bytes]:
    return lzma.decompress(files.read_bytes(path)).splitlines()
