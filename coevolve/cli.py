"""The command line: one command a stage, and `plan`, `replay` and `doctor` beside them."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from coevolve.assets.checks import Check
from coevolve.config.suite import load_suite
from coevolve.errors import UserError
from coevolve.workflow import costs, launch, stage_table
from coevolve.workflow.plan import Plan
from coevolve.workflow.stage_table import MIRROR, STAGES
from coevolve.workflow.targets import targets

#: What jobs read was fetched before: no library asks the network, or reports to it. Read when libraries are imported.
OFFLINE = dict.fromkeys(
    ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY", "DO_NOT_TRACK"), "1"
)
GOLD = Path("data/sciworld/gold.jsonl")
DUMP = Path("data/mirror/spider/spider_dev.sql")
CLAIMS = Path("configs/claims.yaml")
IPR = Path("data/mirror/ipr")


def main(arguments: list[str] | None = None) -> None:
    """Run one command; bad input ends in one sentence on stderr and exit status 2."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = _parser().parse_args(arguments, argparse.Namespace(arguments=arguments))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)
    try:
        status = options.command(options)
    except UserError as error:
        print(f"coevolve: {error}", file=sys.stderr)
        status = 2
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    sys.exit(status)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="coevolve", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name in STAGES:
        _add_stage(commands.add_parser(name, help=f"run the stage `{name}`"), name)
    plan = commands.add_parser("plan", help="print what a full run executes")
    _add_config(plan)
    plan.add_argument("--machine", type=Path, required=True, metavar="FILE", help="one of configs/machines/*.yaml")
    plan.set_defaults(command=_plan)
    check = commands.add_parser("verify", help="the paper's claims: 0 reproduced, 1 one contradicted, 3 none decided")
    _add_config(check)
    check.add_argument("--as-if", action="store_true", help="judge orders on what is not about the paper's setting")
    check.add_argument("--out", type=Path, metavar="DIR", help="also write verdicts.json and verdicts.md there")
    check.add_argument("--model", help="of a suite with several: whose results (default: the first's)")
    check.set_defaults(command=_verify)
    named = commands.add_parser("targets", help="what can be asked of snakemake by name")
    _add_config(named)
    named.set_defaults(command=_targets)
    why = commands.add_parser("why", help="walk back from a printed cell to all that it was made from")
    _add_config(why)
    why.add_argument("cell", nargs="*", metavar="CELL", help="words of its name; left out: list the cells")
    why.add_argument("--json", action="store_true", help="everything, for machines")
    why.set_defaults(command=_why)
    view = commands.add_parser("view", help="write episodes and pairs as pages to look at without a server")
    _add_config(view)
    view.add_argument("--out", type=Path, metavar="DIR", help="where to (default: `view` among the suite's results)")
    view.set_defaults(command=_view)
    _add_replay(commands.add_parser("replay", help="replay recorded trajectories and compare every observation"))
    ipr = commands.add_parser("import", help="take IPR's archives apart into the files that a config names")
    ipr.add_argument("archives", type=Path, nargs="+", metavar="ARCHIVE", help="the zip files of IPR's setup.sh")
    ipr.add_argument("--out", type=Path, default=IPR, help="where to (default: %(default)s)")
    ipr.set_defaults(command=_import_ipr)
    doctor = commands.add_parser("doctor", help="check in seconds whether this machine can run a suite")
    doctor.add_argument("--config", type=Path, metavar="SUITE", help="what this suite needs is looked for")
    doctor.add_argument("--set", action="append", default=[], metavar="KEY.SUBKEY=VALUE", help="override a config key")
    doctor.add_argument("--machine", type=Path, metavar="FILE", help="one of configs/machines/*.yaml")
    doctor.add_argument("--profile", metavar="NAME", help="its suite and machine; of `slurm`, the cluster too")
    doctor.set_defaults(command=_doctor)
    _add_mirror(commands.add_parser("mirror", help="what a suite needs from outside"))
    return parser


def _add_mirror(parser: argparse.ArgumentParser) -> None:
    ways = parser.add_subparsers(required=True, metavar="WAY")
    listing = ways.add_parser("list", help="what must be put where on a cluster without a network")
    listing.set_defaults(command=_list_mirror)
    verify = ways.add_parser("verify", help="whether it is there, byte for byte")
    verify.add_argument("--root", type=Path, default=Path(MIRROR), metavar="DIR", help="default: %(default)s")
    verify.set_defaults(command=_verify_mirror)
    for one in (listing, verify):
        _add_config(one)


def _add_replay(parser: argparse.ArgumentParser) -> None:
    envs = parser.add_subparsers(required=True, metavar="ENV")
    sciworld = envs.add_parser("sciworld", help="the kit's own trajectories, or recorded gold paths")
    sciworld.add_argument("file", type=Path, nargs="?", default=GOLD, help="recorded episodes (default: %(default)s)")
    sciworld.set_defaults(command=_replay_sciworld)
    sql = envs.add_parser("intercode_sql", help="a run that InterCode recorded in 2023")
    sql.add_argument("--recorded", type=Path, required=True, metavar="FILE", help="the recorded run")
    sql.add_argument("--items", type=Path, metavar="FILE", help="ic_spider_dev.json (default: near the recorded run)")
    sql.add_argument("--dump", type=Path, default=DUMP, metavar="FILE", help="the databases (default: %(default)s)")
    sql.add_argument("--engine", choices=["mysql", "mariadb"], help="default: MySQL, else MariaDB")
    sql.add_argument("--server", metavar="ADDRESS", help="user@host:port of a server that holds the databases")
    sql.set_defaults(command=_replay_sql)
    shop = envs.add_parser("webshop", help="what upstream answered, or a checkout of upstream beside ours")
    shop.add_argument("--catalogue", type=Path, metavar="DIR", help="folder with upstream's product files")
    shop.add_argument("--traces", type=Path, metavar="FILE", help="what upstream answered on them")
    shop.add_argument("--goals", type=Path, metavar="FILE", help="upstream's human_goals.json, instead of traces")
    shop.add_argument("--tagger", choices=["stand_in", "spacy", "approximate"], default="stand_in")
    shop.add_argument("--upstream", type=Path, metavar="PATH", help="a WebShop checkout, instead of traces")
    shop.add_argument("--python", type=Path, default=Path("python3"), help="the interpreter the checkout runs in")
    shop.add_argument("--episodes", type=int, default=20, metavar="N", help="random episodes beside a checkout")
    shop.add_argument("--synthetic", action="store_true", help="synthetic goals beside a checkout")
    shop.set_defaults(command=_replay_webshop)
    for one in (sciworld, sql):
        one.add_argument("--limit", type=int, metavar="N", help="replay the first N episodes only")


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, required=True, help="suite, one of configs/*.yaml")
    parser.add_argument("--set", action="append", default=[], metavar="KEY.SUBKEY=VALUE", help="override a config key")


def _add_stage(parser: argparse.ArgumentParser, name: str) -> None:
    _add_config(parser)
    parser.add_argument("--out", type=Path, required=True, help="directory of the results, replaced whole")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1, help="of all nodes together")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument(
        "--launch", type=Path, default=Path("none"), metavar="FILE", help="accelerate's config for several processes"
    )
    parser.add_argument("--on", action="append", default=[], metavar="NAME=VALUE", help="model, env, branch, agent")
    parser.add_argument("inputs", nargs="*", metavar="NAME=FILE", help="input files by name")
    parser.set_defaults(command=_stage, stage=name)


def _stage(options: argparse.Namespace) -> int:
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    if options.stage not in ("download", "snapshot"):
        os.environ |= OFFLINE
    if options.processes > 1:
        asked = launch.Launch(options.launch, options.processes, options.nodes)
        launch.launch(asked, options.arguments, options.threads)
        return 0
    from coevolve.workflow.run_stage import execute

    inputs: dict[str, list[Path]] = {}
    for name, path in map(_pair, options.inputs):
        inputs.setdefault(name, []).append(Path(path))
    suite = load_suite(options.config, options.set)
    execute(suite, options.stage, dict(map(_pair, options.on)), inputs, options.out, options.threads)
    return 0


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UserError(f"argument `{text}`: write it as NAME=VALUE.")
    return name, value


def _verify(options: argparse.Namespace) -> int:
    from coevolve.report import claims, verdicts
    from coevolve.workflow import verify

    plan, paper = Plan(load_suite(options.config, options.set).about(options.model)), claims.load(CLAIMS)
    found = verify.verify(plan, paper, verify.finished(plan, paper), options.as_if)
    for verdict in found:
        print(verdicts.line(verdict))
    print(verdicts.summary(found, verify.AS_IF * options.as_if))
    if options.out:
        verify.write(found, options.out, options.as_if)
    return verdicts.exit_status(found)


def _plan(options: argparse.Namespace) -> int:
    machine = stage_table.load_machine(options.machine)
    plan = Plan(load_suite(options.config, options.set), shards=machine.shards)
    jobs = list(costs.jobs(plan, machine))
    print(f"Suite {plan.suite.suite} on {machine.label}, reckoned, not measured, from {options.machine}.\n")
    print(costs.text("stage", costs.lines((stage, cost) for stage, _, cost in jobs)))
    print()
    print(costs.text("method", costs.lines((method, cost) for _, method, cost in jobs)))
    return 0


def _targets(options: argparse.Namespace) -> int:
    for target in targets(Plan(load_suite(options.config, options.set))):
        print(f"{target.name:40} {target.text}")
    return 0


def _why(options: argparse.Namespace) -> int:
    from coevolve.report import claims, why, why_text

    home = Plan(load_suite(options.config, options.set)).home
    cells = why.cells(Path(home))
    if not options.cell:
        print("\n".join(cell.name for cell in cells))
        return 0
    answer = why.ask(why.find(cells, " ".join(options.cell)), claims.load(CLAIMS))
    print(answer.to_json() if options.json else why_text.text(answer, home))
    return 1 if answer.broken else 0


def _view(options: argparse.Namespace) -> int:
    from coevolve.report import view

    suite = load_suite(options.config, options.set)
    home = Path(Plan(suite).home)
    out = options.out or home / "view"
    labels = {name: recipe.label for name, recipe in suite.recipes.items()}
    shown = view.build(home, out, f"suite {suite.suite}", labels)
    print(f"{shown.episodes} episodes, {shown.pairs} pairs: {out / 'index.html'}")
    return 0


def _replay_sciworld(options: argparse.Namespace) -> int:
    from coevolve.envs.replay import replay_recorded_sciworld

    summary = replay_recorded_sciworld(options.file, limit=options.limit)
    if summary.first:
        first = summary.first
        print(f"first difference: {first.task_id}, turn {first.turn}, {first.what}")
        print(f"recorded: {first.expected}\nreplayed: {first.found}")
    print(f"{summary.episodes} episodes, {summary.turns} turns compared; {summary.different} episodes differ")
    return 1 if summary.different else 0


def _replay_sql(options: argparse.Namespace) -> int:
    from coevolve.envs.intercode_sql import engine, recorded

    engines = [options.engine] if options.engine else engine.ANY.engine
    server = engine.ANY.model_copy(update={"engine": engines, "address": options.server})
    report = recorded.replay(options.recorded, server, options.dump, options.items, options.limit)
    for kind in report.by_class:
        for difference in report.first(kind, 1):
            print(f"{kind}, item {difference.item}, turn {difference.turn}: {difference.pair.statement}")
            print(f"recorded: {difference.pair.recorded}\nanswered: {difference.pair.seen}")
    print(report.last_line())
    return 0


def _replay_webshop(options: argparse.Namespace) -> int:
    from coevolve.envs.webshop import conformance, upstream
    from coevolve.envs.webshop.tagger import tagger

    if options.upstream:
        human = not options.synthetic
        report = upstream.compare_checkout(options.upstream, options.python, options.episodes, human=human)
    elif options.catalogue and options.traces:
        report = conformance.replay(options.catalogue, options.traces, tagger(options.tagger))
    elif options.catalogue and options.goals:
        count, different = conformance.replay_goals(options.catalogue, options.goals)
        print(f"{count} human goals compared, {len(different)} different; the first: {different[:1] or 'none'}")
        return 1 if different else 0
    else:
        raise UserError("replay webshop: give --catalogue DIR and --traces or --goals FILE, or --upstream PATH.")
    print(report.text())
    return 0 if report.agrees else 1


def _import_ipr(options: argparse.Namespace) -> int:
    from coevolve.envs.intercode_sql import ipr

    for name, sha256 in ipr.unpack(options.archives, options.out).items():
        print(f"{options.out / name}  sha256 {sha256}")
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from coevolve.workflow import doctor

    return _print_checks(doctor.examine(doctor.patient(options.config, options.set, options.machine, options.profile)))


def _list_mirror(options: argparse.Namespace) -> int:
    from coevolve.workflow import required_files

    for need in required_files.needs(load_suite(options.config, options.set)):
        print(need)
    return 0


def _verify_mirror(options: argparse.Namespace) -> int:
    from coevolve.workflow import required_files

    return _print_checks(required_files.verify(load_suite(options.config, options.set), options.root))


def _print_checks(checks: Iterable[Check]) -> int:
    """A line each, as they come; 1 if one of them is not ok."""
    bad = False
    for check in checks:
        print(check, flush=True)
        bad |= check.status != "ok"
    return int(bad)
