"""The DAG: stages, file names, costs, jobs."""
