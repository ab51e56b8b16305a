"""Stale results: their code was edited after they were made, so the next run of their suite makes them again."""

import functools
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from coevolve.assets.checks import Check
from coevolve.config.loading import load_suite
from coevolve.config.suite import Suite
from coevolve.errors import UserError
from coevolve.pipeline.plan import Plan
from coevolve.records.provenance import Provenance
from coevolve.storage import code_digest, provenance
from coevolve.storage.origin import git

#: Numbers of modules and of stages that a check lists.
SHOWN = 4


def checks(results: Path, profile: str, suite: Suite | None = None) -> Iterator[Check]:
    """A check of each suite with results below `results`, or of the given one; `profile` is Snakemake's."""
    for each in [suite] if suite else _suites(results):
        home = results / each.suite
        if home.is_dir():
            yield _check(home, Plan(each, root=str(results)), profile)


def _suites(results: Path) -> Iterator[Suite]:
    """The suites with results whose config has their name."""
    for folder in sorted(results.iterdir()) if results.is_dir() else ():
        try:
            yield load_suite(folder.name)
        except UserError:  # such as the committed results, which no config has made here
            continue


def _check(home: Path, plan: Plan, profile: str) -> Check:
    # Without those of another version of the kit: Snakemake decides about these.
    made = [record for path in sorted(home.rglob(provenance.NAME)) if (record := provenance.if_valid(path))]
    name = f"results of {plan.suite.suite}"
    changes = [plan.changed_since(record) for record in made]
    stale = [record for record, changed in zip(made, changes, strict=True) if changed == ["code"]]
    if not stale:
        other = sum("settings" in changed for changed in changes)  # the code of other environments may be theirs
        apart = f", {other} with other settings" if other else ""
        return Check(name, "ok", f"{len(made) - other} were made by the present code{apart}")
    stages = _counted(Counter(record.stage for record in stale))
    command = f"snakemake --profile {profile} --config suite={plan.suite.suite}"
    text = f"{len(stale)} of {len(made)} were made by other code ({stages}); {_edits(plan, stale)}"
    return Check(name, "stale", f"{text}; `{command}` makes them again.")


def _edits(plan: Plan, stale: list[Provenance]) -> str:
    """The definitions that were edited since the results' commits, with the number of results each makes stale."""
    edited, unknown = Counter[str](), 0
    commits = defaultdict[str, list[Provenance]](list)
    for record in stale:
        commits[record.commit].append(record)
    for commit, records in commits.items():
        changed = _edited_since(commit)
        for record in records:
            job = plan.of_record(record)
            reached = changed & (code_digest.reachable(*plan.starts(job)).keys() if job else set())
            edited.update(reached)
            unknown += not reached
    texts = [f"edited since: {_counted(edited)}"] if edited else []
    texts += [f"for {unknown} git shows no edit (uncommitted, or in another package)"] if unknown else []
    return "; ".join(texts)


@functools.cache
def _edited_since(commit: str) -> frozenset[str]:
    """Definitions of the package whose code is not a commit's, without deleted ones; empty where git knows it not."""
    listed = (git("diff", "--name-only", "--relative", commit, "--", ".") if commit else None) or ""
    edited = set[str]()
    for module, path in code_digest.sources(code_digest.PACKAGE.name).items():
        if (name := path.relative_to(code_digest.PACKAGE).as_posix()) in listed.splitlines():
            before = code_digest.definitions(module, (git("show", f"{commit}:./{name}") or "").encode())
            now = code_digest.definitions(module, path.read_bytes())
            edited |= {f"{module}.{each}" for each in now if now[each] != before.get(each)}
    return frozenset(edited)


def _counted(counts: Counter[str]) -> str:
    """The most frequent names with their counts, and the number of the others."""
    shown = ", ".join(f"{count} {name}" for name, count in counts.most_common(SHOWN))
    return f"{shown} and {len(counts) - SHOWN} more" if len(counts) > SHOWN else shown
