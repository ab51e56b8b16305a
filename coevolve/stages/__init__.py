"""Stages: read files, call a floor below, write files. One module a stage, each with one `run(job, out) -> notes`."""
