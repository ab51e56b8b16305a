"""Episodes of any policy in any environments, and what of them must be equal in two runs."""

from contextlib import closing

from coevolve.records.episodes import Sampling, Trajectory
from coevolve.rollout import rollout
from coevolve.storage import jsonl


def play(path, envs, tasks, policy, **settings):
    """The episodes of `tasks`, journal in `path`; by default one of each task, sampled greedily, without retries."""
    greedy = {"samples": 1, "sampling": Sampling(temperature=0.0), "seed": 1, "retries": 0}
    with closing(jsonl.Journal(path, Trajectory)) as journal:
        return rollout(
            tasks, policy, envs, journal=journal, **{"agent": "target", "protocol": "fixed"} | greedy | settings
        )


def content(trajectories, *, but=()):
    """Each episode as JSON, without what was measured and the fields `but`."""
    return [trajectory.model_dump_json(exclude={*Trajectory.measured, *but}) for trajectory in trajectories]
