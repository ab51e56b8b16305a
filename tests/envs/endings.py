"""A process that starts another program and ends in a given way."""

import contextlib
import subprocess
import sys

PROGRAM = """
import os, signal, sys, time

# The strictest mask a user may have must not hide files from a server.
os.umask(0o077)
# A test run in the background ignores Ctrl-C, and so would its children.
signal.signal(signal.SIGINT, signal.default_int_handler)
ending, *arguments = sys.argv[1:]
{start}
print(started.pid, flush=True)
if ending == "close":
    started.close()
elif ending == "exception":
    raise RuntimeError("on purpose")
elif ending != "exit":
    time.sleep(3600)
"""


@contextlib.contextmanager
def ending(start, how, *arguments):
    """A process that ends by itself or by a signal, and the process id of what it `started`; killed with the block."""
    command = [sys.executable, "-c", PROGRAM.format(start=start), how, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        yield process, int(process.stdout.readline())
        process.kill()
