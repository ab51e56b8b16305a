"""Snakemake's logger plugin `coevolve`, which the profiles select; Snakemake finds it by the name of this package.

It imports nothing of the kit: Snakemake loads it before the Snakefile, whose folder decides which kit is used.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

from snakemake.logging import ColorizingTextHandler, DefaultFormatter
from snakemake_interface_logger_plugins.base import LogHandlerBase


class LogHandler(LogHandlerBase):
    """Hands Snakemake's log records to `receive`, which the Snakefile sets; before that, it prints warnings.

    A dry run without an error, and a run with `--verbose`, `--printshellcmds` or `--debug-dag`, print what Snakemake
    prints.
    """

    receive: Callable[[logging.LogRecord], None] | None = None

    def __post_init__(self) -> None:
        options = self.common_settings
        self._plain = ColorizingTextHandler(options.nocolor, sys.stdout if options.stdout else sys.stderr)
        self._plain.setFormatter(DefaultFormatter(options.quiet, options.show_failed_logs))
        self.is_plain: bool = options.dryrun or options.verbose or options.printshellcmds or options.debug_dag

    @property
    def writes_to_stream(self) -> bool:
        """It replaces what Snakemake prints."""
        return True

    @property
    def writes_to_file(self) -> bool:
        """Snakemake's log file stays as it is."""
        return False

    @property
    def has_filter(self) -> bool:
        """Snakemake's filter applies, and so do `--quiet` and its choices."""
        return False

    @property
    def has_formatter(self) -> bool:
        """It formats records itself."""
        return True

    @property
    def needs_rulegraph(self) -> bool:
        """It reads no graph of rules."""
        return False

    def emit(self, record: logging.LogRecord) -> None:
        """Print what a person needs of one record."""
        of_dry_run = self.common_settings.dryrun and not self.common_settings.verbose
        if self.receive and (not self.is_plain or (of_dry_run and record.levelno >= logging.ERROR)):
            self.receive(record)
        elif self.is_plain or record.levelno >= logging.WARNING:
            self._plain.emit(record)
