"""The results of a suite as tidy tables: `coevolve.results.episodes("smoke")` is a pandas frame, one row an episode."""

from coevolve.results.read import episodes, jobs, pairings, pairs, trainings

__all__ = ["episodes", "jobs", "pairings", "pairs", "trainings"]
