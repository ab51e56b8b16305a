"""Runs a study seed by seed and archives each finished one: `python -m tools.run_study science_dose 8 9 --out DIR`.

Run it in a clean clone of the commit that has the study's design. A killed run goes on with the same command; a seed
whose archive is in DIR is done. It makes what the archive holds and no table, so that no result is seen before the
design's look. Rows that pair selected failures (`pairing.failures`) are trained only if their first pairs differ in
hardness by the design's dose. `--iterations 1` ends a pilot after the first iteration, without an archive.
"""

import argparse
import json
import logging
import subprocess
import sys
from pathlib import Path

from coevolve.config.loading import load_suite
from coevolve.config.suite import for_method
from coevolve.export import suite_evidence
from coevolve.pipeline.plan import Plan
from coevolve.records.pairs import PairKind, PreferencePair
from coevolve.storage import jsonl, provenance

log = logging.getLogger(__name__)
#: A hard negative's least reward, and the points by which the rows' shares of them must differ (`science_dose.yaml`).
HARD, DOSE = 0.6, 20.0


def main() -> None:
    """Run the seeds that are given, in order."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite")
    parser.add_argument("seeds", nargs="+", type=int)
    parser.add_argument("--machine", default="cpu")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--iterations", type=int)
    options = parser.parse_args()
    for seed in options.seeds:
        _run(options, seed)


def _run(options: argparse.Namespace, seed: int) -> None:
    archive = options.out / f"{options.suite}_{seed}.tar.xz"
    if archive.exists():
        return
    suite = load_suite(options.suite)
    suite = suite.model_copy(update={"seeds": [seed]})
    if options.iterations:
        suite = suite.model_copy(update={"iterations": dict.fromkeys(suite.iterations, options.iterations)})
    plan = Plan(suite)
    first = _first_pairs(plan)
    if first:
        _make(options, plan, list(first.values()))
        _require_dose(seed, {method: _hard_share(Path(path)) for method, path in first.items()})
    made = suite_evidence.evidence(plan, evaluations=False)
    _make(options, plan, [path for path in made if not path.endswith(provenance.NAME)])
    if not options.iterations:
        suite_evidence.write(plan, archive)
    log.info("%s: seed %d is done", options.suite, seed)


def _first_pairs(plan: Plan) -> dict[str, str]:
    """The pairs of the first iteration of each row that selects failures, by method."""
    methods = [method for method in plan.suite.methods if for_method(plan.suite, method).pairing.failures]
    iterations = plan.iterations(methods, every_model=True)
    return {of.method: each.pairs["target"]["pairs.jsonl"] for of, each in iterations if of.iteration == 1}


def _hard_share(pairs: Path) -> float:
    """The percentage of hard negatives among the second agent's rejected failures."""
    rejected = [
        pair.rejected_reward for pair in jsonl.read(pairs, PreferencePair) if pair.kind is PairKind.EXPERT_FAILURE
    ]
    log.info("%s: %d rejected failures of the second agent", pairs, len(rejected))
    return 100 * sum(reward >= HARD for reward in rejected) / len(rejected)


def _require_dose(seed: int, shares: dict[str, float]) -> None:
    log.info("seed %d: percentages of hard negatives %s", seed, shares)
    if max(shares.values()) - min(shares.values()) < DOSE:
        sys.exit(f"seed {seed}: the shares of hard negatives differ by less than {DOSE} points; the design stops here.")


def _make(options: argparse.Namespace, plan: Plan, targets: list[str]) -> None:
    settings = (f"{key}={json.dumps(getattr(plan.suite, key))}" for key in ("seeds", "iterations"))
    config = [f"suite={options.suite}", f"machine={options.machine}", *settings]
    command = ["snakemake", "--profile", "smoke", "--cores", "1", "--config", *config, "--", *targets]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
