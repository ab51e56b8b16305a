"""Episodes of one policy in the key-door environment."""

from rollout.keydoor import KeyDoor, tasks

from coevolve.records.episodes import Sampling, Trajectory
from coevolve.rollout import rollout
from coevolve.storage import jsonl


def play(policy, path, max_new_tokens):
    """Six episodes, four at a time, greedily; without the fields that depend on where the policy runs."""
    episodes = jsonl.Journal(path, Trajectory)
    played = rollout(
        tasks(6),
        policy,
        [KeyDoor() for _ in range(4)],
        samples=1,
        sampling=Sampling(temperature=0.0, max_new_tokens=max_new_tokens),
        seed=7,
        agent="target",
        protocol="fixed",
        retries=0,
        journal=episodes,
    )
    episodes.close()
    return [episode.model_copy(update={"policy": None, "seconds": 0.0}) for episode in played]
