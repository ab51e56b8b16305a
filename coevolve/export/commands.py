"""The commands `coevolve export ...`: their arguments, and the functions that run them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

Write = Callable[[str], None]
UNSENT = "Nothing was uploaded."


def inspect_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `inspect_log`."""
    parser.add_argument("evaluation", type=Path, metavar="FOLDER", help="folder of an evaluation (.../eval)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of Inspect logs")


def inspect_log(options: argparse.Namespace, write: Write) -> int:
    """Writes an evaluation as a log of Inspect."""
    from coevolve.export import inspect_log

    path = inspect_log.write(options.evaluation, options.out)
    write(f"{path}; `inspect view start --log-dir {options.out}` shows it. {UNSENT}")
    return 0


def dataset_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `dataset`."""
    parser.add_argument(
        "folders", type=Path, nargs="+", metavar="FOLDER", help="folders of pairs, rollouts and evaluations"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="output folder; replaced as a whole")


def dataset(options: argparse.Namespace, write: Write) -> int:
    """Writes pairs and trajectories as a data set of Hugging Face's `datasets`."""
    from coevolve.export import dataset

    names = dataset.write(options.folders, options.out)
    write(f"{', '.join(names)}: load with `datasets.load_dataset('{options.out}', '{names[0]}')`. {UNSENT}")
    return 0


def traces_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `traces`."""
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help="folders of rollouts and evaluations")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="output folder; replaced as a whole")


def traces(options: argparse.Namespace, write: Write) -> int:
    """Writes episodes as sessions for the trace viewer of Hugging Face's hub."""
    from coevolve.export import traces

    count = traces.write(options.folders, options.out)
    write(f"{count} sessions in {options.out / 'sessions'}. {UNSENT}")
    return 0


def trl_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `trl`."""
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help="folders of pairs (.../pairs/target)")
    parser.add_argument("--tokenizer", type=Path, metavar="POLICY", help="write token ids of this policy's tokenizer")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="output folder; replaced as a whole")


def trl(options: argparse.Namespace, write: Write) -> int:
    """Writes pairs for TRL, as conversations or pre-tokenised."""
    from coevolve.export import trl

    names = trl.write(options.folders, options.out, options.tokenizer)
    write(f"{', '.join(names)} in {options.out}; README.md says how to train on them. {UNSENT}")
    return 0


def model_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `model_card`."""
    parser.add_argument("policy", type=Path, metavar="FOLDER", help="folder of a policy in a suite's results")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the card, README.md of a model folder")


def model_card(options: argparse.Namespace, write: Write) -> int:
    """Writes a policy's model card."""
    from coevolve.export import model_card

    write(f"{model_card.write(options.policy, options.out)}. {UNSENT}")
    return 0
