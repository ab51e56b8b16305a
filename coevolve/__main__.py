"""`python -m coevolve` is `coevolve`, but a job server, if Snakemake has started one, runs the stages with a model."""

import os
import sys

from coevolve.pipeline import job_server

if __name__ == "__main__":
    status = job_server.forward(os.environ.pop(job_server.VARIABLE, ""), sys.argv[1:])
    if status is not None:
        sys.exit(status)
    from coevolve.cli import main

    main()
