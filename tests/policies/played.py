"""Episodes of one policy in the key-door environment, here and behind an endpoint."""

from dataclasses import replace

from rollout import playing
from rollout.keydoor import KeyDoor, tasks

from coevolve.policies.hf import TransformersPolicy
from coevolve.policies.settings import EndpointConfig
from coevolve.records.episodes import Sampling

ENDPOINT = EndpointConfig(
    model="served",
    price_in=0.0,
    price_out=0.0,
    concurrency=4,
    timeout_seconds=60.0,
    retries=2,
    seeds=True,
    length="max_tokens",
)


class Local(TransformersPolicy):
    """A policy whose turns are tokenised again from text, as an endpoint's are."""

    def complete(self, conversations, sampling):
        """Completions without token ids."""
        return [replace(completion, token_ids=()) for completion in super().complete(conversations, sampling)]


def play(policy, path, max_new_tokens):
    """Six episodes, four at a time, greedily; without the fields that depend on where the policy runs."""
    sampling, envs = Sampling(temperature=0.0, max_new_tokens=max_new_tokens), [KeyDoor() for _ in range(4)]
    played = playing.play(path, envs, tasks(6), policy, sampling=sampling, seed=7)
    return [episode.model_copy(update={"policy": None, "seconds": 0.0}) for episode in played]
