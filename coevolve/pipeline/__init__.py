"""The DAG: stages, the files of their jobs, and the plan of a suite. Imports no torch, so a dry run is quick."""
