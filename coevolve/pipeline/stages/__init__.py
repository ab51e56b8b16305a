"""One module per stage, each with `run(job, out) -> notes`: it reads the job's inputs and writes files to `out`."""
