"""The command line: a table of commands, each with its arguments and the function that runs it."""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TextIO

from coevolve import __version__, completion, escaping
from coevolve.arguments import natural, positive
from coevolve.errors import UserError, suggestion
from coevolve.shipped import shipped_file

if TYPE_CHECKING:
    from coevolve.assets.checks import Check
    from coevolve.config.sections import Ablation
    from coevolve.config.suite import Suite
    from coevolve.workflow.plan import Plan
    from coevolve.workflow.run_record import RunRecord

#: Jobs read files that were fetched before: libraries stay off the network. Libraries read this when they are imported.
OFFLINE = dict.fromkeys(
    ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY", "DO_NOT_TRACK"), "1"
)
CLAIMS = Path("configs/claims.yaml")
EVALUATIONS = Path("results/evaluate_model")
IPR = Path("data/mirror/ipr")
REFERENCE = Path("results/reference")


@dataclass(frozen=True)
class Command:
    """A command: its help text, its arguments, and the function that runs it and returns the exit status."""

    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


@dataclass(frozen=True)
class Group:
    """Commands under one name, in titled sections; `sections` imports modules only when the group is used."""

    help: str
    sections: Callable[[], Mapping[str, Commands]]


Commands = Mapping[str, Command | Group]


class Parser(argparse.ArgumentParser):
    """Arguments of one command."""

    def error(self, message: str) -> NoReturn:
        """Raises `UserError` where argparse would print its usage."""
        raise UserError(f"{message}; see `{self.prog} --help`.")


def main(arguments: list[str] | None = None) -> None:
    """Run one command and exit; Ctrl-C gives the exit status 130.

    Bad input, or an environment that fails outside of an episode, gives one sentence on stderr and exit status 2.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(escaping.Formatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # OpenAI's client: else a line for each request
    try:
        status = _run("coevolve", COEVOLVE, sys.argv[1:] if arguments is None else arguments)
    except UserError as error:
        _show(f"coevolve: {error}", file=sys.stderr)
        status = 2
    except OSError as error:
        status = _after_os_error(error)
    except Exception as error:
        from coevolve.envs.base import EnvError

        if not isinstance(error, EnvError):
            raise
        _show(f"coevolve: {' '.join(str(error).split())}; run the same command again.", file=sys.stderr)
        status = 2
    except KeyboardInterrupt:
        status = 130  # a shell's status after SIGINT; `coevolve status` calls the job stopped
    sys.exit(status)


def _after_os_error(error: OSError) -> int:
    """The exit status after an `OSError`; raises the error unless a user can correct it."""
    from coevolve.storage import files

    if isinstance(error, BrokenPipeError):  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if not files.is_disk_problem(error):
        raise error
    _show(f"coevolve: {files.disk_problem(error)}", file=sys.stderr)
    return 2


def _show(text: object = "", *, end: str = "\n", file: TextIO | None = None) -> None:
    """Print text without its control characters: a model may have written it."""
    print(escaping.terminal(str(text)), end=end, file=file, flush=True)


def _run(prog: str, group: Group, arguments: list[str]) -> int:
    """Run the command of the group that the first argument names; returns the exit status."""
    sections = group.sections()
    commands = {name: command for section in sections.values() for name, command in section.items()}
    name, *rest = arguments or ["--help"]
    if name == "--version":
        _show(f"coevolve {__version__}")
        return 0
    if name in ("-h", "--help"):
        width = max(map(len, commands))
        lines = [f"usage: {prog} NAME ...", "", group.help, ""]
        for title, section in sections.items():
            lines += [f"{title}:", *(f"  {name:{width}}  {command.help}" for name, command in section.items()), ""]
        _show("\n".join([*lines, f"`{prog} NAME --help` lists its arguments."]))
        return 0
    if name not in commands:
        hint = suggestion(name, commands) or f"; see `{prog} --help`."
        raise UserError(f"`{prog} {name}` does not exist{hint}")
    command = commands[name]
    if isinstance(command, Group):
        return _run(f"{prog} {name}", command, rest)
    parser = Parser(prog=f"{prog} {name}", description=command.help)
    command.add_arguments(parser)
    return command.run(parser.parse_args(rest, argparse.Namespace(arguments=rest)))


def _suite(options: argparse.Namespace) -> Suite:
    from coevolve.config.suite import load_suite

    return load_suite(options.suite, options.set)


def _suite_arguments(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    parser.add_argument("--suite", required=required, help="a name, such as smoke for configs/smoke.yaml, or a path")
    parser.add_argument("--set", action="append", default=[], metavar="KEY.SUBKEY=VALUE", help="override a config key")


def _machine_argument(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    text = "a name, such as h100 for configs/machines/h100.yaml, or a path"
    parser.add_argument("--machine", required=required, help=text)


def _machine_file(options: argparse.Namespace, record: RunRecord | None) -> Path | None:
    """The file of the given machine, else of the recorded run's machine."""
    from coevolve.config.machine import machine_file

    name = options.machine or (record.machine if record else None)
    return machine_file(name) if name else None


def _ablation(suite: Suite, name: str) -> Ablation:
    if name not in suite.ablations:
        hint = suggestion(name, suite.ablations) or "."
        raise UserError(f"--ablation: the suite has no ablation `{name}`{hint}")
    return suite.ablations[name]


def _plan_arguments(parser: argparse.ArgumentParser) -> None:
    _suite_arguments(parser)
    _machine_argument(parser)
    parser.add_argument("--ablation", metavar="NAME", help="plan this ablation's methods instead of the suite's")


def _plan(options: argparse.Namespace) -> int:
    from coevolve.config.machine import machine_file
    from coevolve.config.suite import load_suite
    from coevolve.report import costs
    from coevolve.workflow import estimates, stage_table
    from coevolve.workflow.plan import Plan

    machine = stage_table.load_machine(options.machine)
    suite, part = _suite(options), ""
    if options.ablation:
        methods = json.dumps(_ablation(suite, options.ablation).methods)
        suite, part = load_suite(options.suite, [*options.set, f"methods={methods}"]), f", ablation {options.ablation},"
    plan = Plan(suite, shards=machine.shards)
    jobs = list(estimates.jobs(plan, machine))
    source = machine_file(options.machine)
    _show(f"Suite {suite.suite}{part} on {machine.label}, estimated, not measured, from {source}.\n")
    _show(costs.text("stage", costs.lines((stage, cost) for stage, _, cost in jobs)))
    _show()
    _show(costs.text("method", costs.lines((method, cost) for _, method, cost in jobs), plan.suite.labels))
    return 0


def _status_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", nargs="?", metavar="SUITE", help="a name, such as smoke for configs/smoke.yaml, or a path"
    )
    _suite_arguments(parser, required=False)
    _machine_argument(parser, required=False)


def _status(options: argparse.Namespace) -> int:
    from coevolve.config.suite import load_suite
    from coevolve.workflow import status
    from coevolve.workflow.plan import Plan
    from coevolve.workflow.run_record import RunRecord
    from coevolve.workflow.stage_table import load_machine

    if options.name and options.suite:
        raise UserError(f"two suites, `{options.name}` and --suite {options.suite}; name one.")
    name = options.name or options.suite
    if not name:
        raise UserError("which suite? Write `coevolve status SUITE`.")
    record = RunRecord.read(Plan(load_suite(name, options.set)).home)
    file = _machine_file(options, record)
    machine = load_machine(file) if file else None
    suite = load_suite(name, options.set or (record.overrides if record else []))
    plan = Plan(suite, shards=machine.shards, machine=str(file)) if machine else Plan(suite)
    results = status.SuiteState.of(plan, record, name)
    for line in status.text(results, machine):
        _show(line)
    return int(any(job.state in status.ATTENTION for job in results.states().values()))


def _config(options: argparse.Namespace) -> int:
    from coevolve.config.suite import merged

    _suite(options)  # raises if a key or a value is wrong
    _show(merged(options.suite, options.set).commented(), end="")
    return 0


def _view_arguments(parser: argparse.ArgumentParser) -> None:
    _suite_arguments(parser)
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: `view` in the suite's results")


def _view(options: argparse.Namespace) -> int:
    from coevolve.report import view
    from coevolve.report.labels import ReportLabels
    from coevolve.workflow.plan import Plan
    from coevolve.workflow.site_documents import site_documents

    suite = _suite(options)
    plan = Plan(suite)
    out = options.out or Path(plan.home) / "view"
    labels = ReportLabels.of(suite, suite.labels)
    shown = view.build(Path(plan.home), out, f"Suite {suite.suite}", labels, list(site_documents(plan)))
    _show(f"{shown.episodes:,} episodes and {shown.pairs:,} pairs, report, tables and figures: {out / 'index.html'}")
    return 0


def _export_arguments(parser: argparse.ArgumentParser) -> None:
    _suite_arguments(parser, required=False)
    _machine_argument(parser, required=False)
    text = "folder of the export (default: results/reference/SUITE); without --suite only its page is written again"
    parser.add_argument("--out", type=Path, metavar="DIR", help=text)
    parser.add_argument(
        "--ablation", metavar="NAME", help="export this ablation's table instead of the suite's products"
    )


def _export(options: argparse.Namespace) -> int:
    from coevolve.report import claims
    from coevolve.workflow import suite_export

    paper = claims.load(shipped_file(CLAIMS))
    if options.suite is None:
        if options.out is None:
            raise UserError("give --suite, or --out with the folder of an export whose page is written again.")
        suite_export.write_page(options.out, paper)
        _show(options.out / suite_export.PAGE)
        return 0
    plan = _run_plan(options)
    if options.ablation:
        _ablation(plan.suite, options.ablation)
    name = plan.suite.suite
    out = options.out or REFERENCE / (f"{name}_{options.ablation}" if options.ablation else name)
    names = suite_export.export(plan, out, paper, options.ablation)
    _show(f"{len(names)} files: {out / suite_export.PAGE}")
    return 0


def _evidence_arguments(parser: argparse.ArgumentParser) -> None:
    _suite_arguments(parser)
    _machine_argument(parser, required=False)
    parser.add_argument("--out", type=Path, metavar="FILE", help="default: results/SUITE.evidence.tar.xz")


def _evidence(options: argparse.Namespace) -> int:
    from coevolve.workflow import suite_evidence
    from coevolve.workflow.stage_table import exported

    plan = _run_plan(options)
    out = options.out or Path(plan.home).with_suffix(".evidence.tar.xz")
    paths = suite_evidence.write(plan, out)
    _show(f"{out}: {len(paths)} files, {out.stat().st_size / 1e6:.1f} MB, to be unpacked with `tar -xJf`.")
    _show(f"Their products: add `--allowed-rules all {' '.join(exported(plan.suite))}` to the suite's command.")
    return 0


def _run_plan(options: argparse.Namespace) -> Plan:
    """The plan of a suite on the named machine, or on that of its last run."""
    from coevolve.workflow.layout import UNDIVIDED
    from coevolve.workflow.plan import Plan
    from coevolve.workflow.run_record import RunRecord
    from coevolve.workflow.stage_table import load_machine

    suite = _suite(options)
    machine = _machine_file(options, RunRecord.read(Plan(suite).home))
    if machine is None:
        return Plan(suite, shards=UNDIVIDED)
    return Plan(suite, shards=load_machine(machine).shards, machine=str(machine))


def _why_arguments(parser: argparse.ArgumentParser) -> None:
    _suite_arguments(parser)
    parser.add_argument(
        "cell",
        nargs="*",
        metavar="CELL",
        help="words of a cell's name, or the id of a synthetic task (default: list all cells)",
    )
    parser.add_argument("--json", action="store_true", help="print the whole trace as JSON")


def _why(options: argparse.Namespace) -> int:
    from coevolve.report import claims, why, why_task, why_text
    from coevolve.workflow.plan import Plan

    plan = Plan(_suite(options))
    home = plan.home
    if pool := why_task.find(Path(home), options.cell):
        task = why_task.trace(pool, options.cell[0], plan.leaves_provenance)
        _show(task.to_json() if options.json else why_task.text(task))
        return 1 if task.broken else 0
    cells = why.cells(Path(home))
    if not options.cell:
        _show("\n".join(cell.name for cell in cells))
        return 0
    cell = why.find(cells, " ".join(options.cell))
    answer = why.ask(cell, claims.load(shipped_file(CLAIMS)), plan.leaves_provenance, plan.changed_since)
    _show(answer.to_json() if options.json else why_text.text(answer, home))
    return 1 if answer.broken else 0


def _verify_arguments(parser: argparse.ArgumentParser) -> None:
    _suite_arguments(parser)
    parser.add_argument(
        "--as-if",
        action="store_true",
        help="also judge claims about an order on results with another model, other tasks or the other protocol",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="also write verdicts.json and verdicts.md to this folder"
    )
    parser.add_argument("--model", help="the model whose results are judged (default: the suite's first)")


def _verify(options: argparse.Namespace) -> int:
    from coevolve.report import claims, second_paper, verdicts
    from coevolve.workflow import results
    from coevolve.workflow.layout import Layout

    layout, paper = Layout(_suite(options).with_model(options.model)), claims.load(shipped_file(CLAIMS))
    measured = results.on_disk(layout, paper)
    small = verdicts.is_miniature(layout.suite)
    judged = verdicts.verify(paper, measured, layout.suite.report, options.as_if, small)
    for verdict in judged:
        _show(verdicts.line(verdict))
    _show(verdicts.summary(judged, options.as_if))
    tables = second_paper.texts(paper.success_tables, measured.measurements, layout.suite.report)
    if measured.unfinished:
        tables = [verdicts.unfinished_markdown(measured.unfinished.values()), *tables]
    _show("\n" + "\n".join(filter(None, [verdicts.miniature_markdown(judged), *tables])))
    if options.out:
        verdicts.write(judged, options.out, options.as_if, tables)
    return verdicts.exit_status(judged)


def _regime_arguments(parser: argparse.ArgumentParser) -> None:
    _suite_arguments(parser)
    parser.add_argument("--model", help="the model whose results are checked (default: the suite's first)")


def _regime(options: argparse.Namespace) -> int:
    """Exit status 0: every check passes, 1: one fails, 3: none fails and some were not measured."""
    from coevolve.report import regime
    from coevolve.report.labels import ReportLabels
    from coevolve.workflow import regime_evidence
    from coevolve.workflow.layout import Layout

    suite = _suite(options).with_model(options.model)
    judged = regime_evidence.checks(suite, regime_evidence.on_disk(Layout(suite)))
    _show(regime.markdown(judged, ReportLabels.of(suite, suite.labels)))
    passed = {check.passed for check in judged}
    return 1 if False in passed else 3 if None in passed else 0


def _evaluate_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="PATH|URL", help="a checkpoint folder, or an OpenAI-compatible endpoint")
    parser.add_argument("--env", required=True, help="a name, such as webshop for configs/envs/webshop.yaml, or a path")
    parser.add_argument("--suite", help="take the environment `--env` and all settings from this suite")
    parser.add_argument("--name", help="name of the model at the endpoint")
    parser.add_argument("--label", default="", help="name in tables (default: the model's name)")
    parser.add_argument("--split", help="evaluation split (default: all)")
    parser.add_argument("--tasks", type=positive, metavar="N", help="the first N tasks of each split (default: all)")
    parser.add_argument("--protocol", choices=["paper", "fixed"], help="default: fixed, or as --suite")
    parser.add_argument("--examples", type=int, choices=[0, 1], help="few-shot examples (default: 0, or as --suite)")
    parser.add_argument(
        "--context", type=positive, metavar="TOKENS", help="longest conversation (default: the model's)"
    )
    parser.add_argument("--threads", type=positive, default=1, help="CPU threads (default: 1)")
    parser.add_argument("--seed", type=int, default=0, help="seed of sampling at a temperature above 0 (default: 0)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY.SUBKEY=VALUE", help="override a config key")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the result file here")
    parser.add_argument(
        "--root", type=Path, default=EVALUATIONS, metavar="DIR", help="folder of the episodes (default: %(default)s)"
    )


def _evaluate_model(options: argparse.Namespace) -> int:
    from coevolve.workflow import evaluate_model

    os.environ |= OFFLINE | {"OMP_NUM_THREADS": str(options.threads)}
    return evaluate_model.run(options, _show)


def _compare_arguments(parser: argparse.ArgumentParser) -> None:
    text = "a result file (JSON or YAML), or the folder of an evaluation (.../eval)"
    parser.add_argument("results", type=Path, nargs="+", metavar="FILE", help=text)


def _compare(options: argparse.Namespace) -> int:
    from coevolve.report import comparison, evaluation_result

    for line in comparison.compare(evaluation_result.read_all(options.results)):
        _show(line)
    return 0


def _stages() -> dict[str, dict[str, Command]]:
    from coevolve.workflow.stage_table import STAGES

    return {
        "stages": {
            name: Command(stage.help, partial(_stage_arguments, stage.known_wildcards), partial(_stage, name))
            for name, stage in STAGES.items()
        }
    }


def _stage_arguments(wildcards: Sequence[str], parser: argparse.ArgumentParser) -> None:
    _suite_arguments(parser)
    parser.add_argument(
        "--out", type=Path, required=True, help="folder of the result; replaces a result of the same stage as a whole"
    )
    parser.add_argument("--threads", type=positive, default=1, help="CPU threads on each node")
    parser.add_argument("--processes", type=positive, default=1, help="number of processes on all nodes together")
    parser.add_argument("--nodes", type=positive, default=1, help="number of nodes")
    parser.add_argument(
        "--gpus",
        type=natural,
        default=0,
        help="of the visible GPUs use so many that no other job uses (default: all)",
    )
    parser.add_argument(
        "--launch", type=Path, default=Path("none"), metavar="FILE", help="accelerate's config for several processes"
    )
    parser.add_argument(
        "--fingerprint", default="", help="expected fingerprint; the job fails if its settings or code have changed"
    )
    parser.add_argument(
        "--reuse",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="reuse another suite's result of an equal job, if there is one",
    )
    known = ", ".join(wildcards) or "none"
    parser.add_argument(
        "--on", action="append", default=[], metavar="NAME=VALUE", help=f"the job's wildcards; this stage has: {known}"
    )
    parser.add_argument("inputs", nargs="*", metavar="NAME=FILE", help="input files by name")


def _stage(name: str, options: argparse.Namespace) -> int:
    from coevolve.workflow.stage_table import STAGES

    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    if not STAGES[name].network:
        os.environ |= OFFLINE
    from coevolve.workflow import devices

    inputs: dict[str, list[Path]] = {}
    for key, path in map(_pair, options.inputs):
        inputs.setdefault(key, []).append(Path(path))
    with devices.taken(options.gpus):
        _run_stage(name, inputs, options)
    return 0


def _run_stage(name: str, inputs: dict[str, list[Path]], options: argparse.Namespace) -> None:
    from coevolve.workflow import run_stage

    on, planned = dict(map(_pair, options.on)), options.fingerprint
    if options.processes == 1:
        suite = _suite(options)
        run_stage.execute(suite, name, on, inputs, options.out, options.threads, planned, reuse=options.reuse)
    elif not (options.reuse and run_stage.reuse_before_launch(_suite(options), name, on, inputs, options.out, planned)):
        from coevolve.workflow import launch

        wanted = launch.Launch(options.launch, options.processes, options.nodes)
        launch.launch(wanted, name, options.arguments, options.threads)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UserError(f"argument `{text}`: write it as NAME=VALUE.")
    return name, value


def _targets(options: argparse.Namespace) -> int:
    from coevolve.workflow.plan import Plan
    from coevolve.workflow.targets import targets

    for target in targets(Plan(_suite(options))):
        _show(f"{target.name:40} {target.text}")
    return 0


def _doctor_arguments(parser: argparse.ArgumentParser) -> None:
    _suite_arguments(parser, required=False)
    _machine_argument(parser, required=False)
    parser.add_argument(
        "--profile", metavar="NAME", help="use the suite and machine of this Snakemake profile; slurm: check Slurm too"
    )


def _doctor(options: argparse.Namespace) -> int:
    from coevolve.workflow import doctor

    return _print_checks(doctor.run_checks(doctor.setup(options.suite, options.set, options.machine, options.profile)))


def _exports() -> dict[str, dict[str, Command]]:
    from coevolve.export import commands

    exports = {
        "reference": Command(
            "Write a finished suite's tables, figures, provenance and page to one folder, as a reference result.",
            _export_arguments,
            _export,
        ),
        "evidence": Command(
            "Write a finished suite's episodes, pairs, records and provenance, without weights, to one archive.",
            _evidence_arguments,
            _evidence,
        ),
        "inspect": Command(
            "Write an evaluation as an Inspect log.",
            commands.inspect_arguments,
            partial(commands.inspect_log, write=_show),
        ),
        "dataset": Command(
            "Write pairs and trajectories as a Hugging Face data set with a card.",
            commands.dataset_arguments,
            partial(commands.dataset, write=_show),
        ),
        "traces": Command(
            "Write episodes as sessions for the trace viewer of the Hugging Face hub.",
            commands.traces_arguments,
            partial(commands.traces, write=_show),
        ),
        "trl": Command(
            "Write pairs for TRL, as conversations or pre-tokenised.",
            commands.trl_arguments,
            partial(commands.trl, write=_show),
        ),
        "model": Command(
            "Write a policy's model card.", commands.model_arguments, partial(commands.model_card, write=_show)
        ),
    }
    return {"targets": exports}


def _replays() -> dict[str, dict[str, Command]]:
    from coevolve.config.environments import known_kinds
    from coevolve.envs.registry import Replay, optional

    replays: dict[str, Replay] = {kind: replay for kind in known_kinds() if (replay := optional(kind, "replay"))}
    commands = {
        kind: Command(replay.HELP, replay.add_arguments, partial(replay.run, write=_show))
        for kind, replay in replays.items()
    }
    return {"environments": commands}


def _completion_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=completion.SHELLS)


def _completion(options: argparse.Namespace) -> int:
    names: dict[str, list[str]] = {}
    flags: dict[str, list[str]] = {}

    def add(group: Group, words: str) -> None:
        commands = {name: command for section in group.sections().values() for name, command in section.items()}
        names[words] = [*commands]
        for name, command in commands.items():
            below = f"{words} {name}".strip()
            if isinstance(command, Group):
                add(command, below)
            else:
                parser = Parser(prog=below)
                command.add_arguments(parser)
                flags[below] = sorted(set(re.findall(r"--[a-z][a-z-]*", parser.format_usage())))

    add(COEVOLVE, "")
    _show(completion.script(options.shell, names, flags), end="")
    return 0


def _import_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("archives", type=Path, nargs="+", metavar="ARCHIVE", help="the zip files of IPR's setup.sh")
    parser.add_argument("--out", type=Path, default=IPR, help="default: %(default)s")


def _import_ipr(options: argparse.Namespace) -> int:
    from coevolve.envs.intercode_sql import ipr_archives

    for name, sha256 in ipr_archives.unpack(options.archives, options.out).items():
        _show(f"{options.out / name}  sha256 {sha256}")
    return 0


def _mirror_verify_arguments(parser: argparse.ArgumentParser) -> None:
    from coevolve.workflow.layout import MIRROR

    _suite_arguments(parser)
    parser.add_argument("--root", type=Path, default=Path(MIRROR), metavar="DIR", help="default: %(default)s")


def _list_mirror(options: argparse.Namespace) -> int:
    from coevolve.workflow import required_files

    for file in required_files.required_files(_suite(options)):
        _show(file)
    return 0


def _verify_mirror(options: argparse.Namespace) -> int:
    from coevolve.workflow import required_files
    from coevolve.workflow.layout import MIRROR

    if options.root != Path(MIRROR) and not options.root.is_dir():
        raise UserError(f"--root {options.root}: no such folder; name one with the layout of {MIRROR}.")
    return _print_checks(required_files.verify(_suite(options), options.suite, options.root))


def _print_checks(checks: Iterable[Check]) -> int:
    """Print the result of each check at once; returns 1 if one is `missing` or `wrong`, else 0."""
    failed = False
    for check in checks:
        _show(check)
        failed |= check.status not in ("ok", "stale")
    return int(failed)


MIRROR = {
    "list": Command("List the external files and models that a suite needs.", _suite_arguments, _list_mirror),
    "verify": Command(
        "Check the sha256 of every file and model that a suite needs.", _mirror_verify_arguments, _verify_mirror
    ),
}
MAIN: Commands = {
    "plan": Command("Print the jobs of a suite with their estimated time, GPU-hours and disk.", _plan_arguments, _plan),
    "status": Command(
        "Print which jobs of a suite are done, running, failed or changed, and the time left.",
        _status_arguments,
        _status,
    ),
    "config": Command(
        "Print a suite's merged configuration, each key with the file and line that set it.", _suite_arguments, _config
    ),
    "view": Command(
        "Write HTML pages of all episodes, pairs and products; they need no server.", _view_arguments, _view
    ),
    "why": Command(
        "Trace a printed number, or a synthetic task, back to episodes, policies, pairs and code.", _why_arguments, _why
    ),
    "verify": Command(
        "Judge the paper's claims; exit status 1: one is contradicted; else 0: one is reproduced; 3: none is decided.",
        _verify_arguments,
        _verify,
    ),
    "stage": Group("Run one stage on given files, as Snakemake does.", _stages),
}
ALSO: Commands = {
    "export": Group("Export results to one folder, or in the formats of other tools.", _exports),
    "regime": Command(
        "Check whether finished results can decide between methods; exit status 0: yes, 1: no, 3: not all measured.",
        _regime_arguments,
        _regime,
    ),
    "evaluate-model": Command(
        "Evaluate a checkpoint or an endpoint on one environment, with intervals.",
        _evaluate_arguments,
        _evaluate_model,
    ),
    "compare": Command("Compare result files, and check whether they are comparable.", _compare_arguments, _compare),
    "targets": Command("List the named Snakemake targets of a suite.", _suite_arguments, _targets),
    "doctor": Command("Check in seconds whether this machine can run a suite.", _doctor_arguments, _doctor),
    "replay": Group("Replay recorded episodes and compare every observation.", _replays),
    "mirror": Group("List or verify the external files and models that a suite needs.", lambda: {"commands": MIRROR}),
    "completion": Command("Print a shell's completion script.", _completion_arguments, _completion),
    "import": Command(
        "Unpack IPR's data archives (InterCodeSQL) and print their paths and hashes.", _import_arguments, _import_ipr
    ),
}
COEVOLVE = Group(
    "Plan a suite and examine its results. Run it with Snakemake: `snakemake --profile smoke --config suite=smoke`.",
    lambda: {"commands": MAIN, "also": ALSO},
)
