"""A rollout of a random policy in the key-door world; run as a program, it is there to be killed."""

import sys
from pathlib import Path

import torch
from rollout.keydoor import KeyDoor, tasks
from rollout.playing import play
from templates.models import llama, tokenizer

from coevolve.policies.hf import TransformersPolicy
from coevolve.records.episodes import PolicyRef, Sampling

REF = PolicyRef(name="random", sha256="0" * 64)
SAMPLING = Sampling(temperature=1.0, top_p=0.9, max_new_tokens=10)
TASKS = tasks(10)
SAMPLES = 2


def run(path, *, slots=8, delay=0.0, envs=5, **changes):
    """`SAMPLES` episodes of each of `TASKS`, journal in `path`; `wrap` changes the policy."""
    torch.set_num_threads(1)
    wrap = changes.pop("wrap", lambda policy: policy)
    policy = TransformersPolicy(
        llama(), tokenizer("tiny"), changes.pop("ref", REF), slots=slots, context=384, long_prompt="end"
    )
    settings = {"samples": SAMPLES, "sampling": SAMPLING, "seed": 7, "retries": 1}
    return play(
        path, [KeyDoor(delay) for _ in range(envs)], changes.pop("tasks", TASKS), wrap(policy), **settings | changes
    )


if __name__ == "__main__":
    run(Path(sys.argv[1]), delay=0.05)
