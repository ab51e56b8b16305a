"""Holds the only session of an OpenEnv server until it is told to step; prints what came back.

Runs in the environment of envs_setup/openenv.lock: `python openenv_held.py URL`.
"""

import sys

from coevolve.adapters.openenv_client import CoevolveClient, TurnAction


def refusal(env):
    """The sentence with which a turn is refused."""
    try:
        env.step(TurnAction(text="Action: search[cup]"))
    except RuntimeError as error:
        return str(error)


with CoevolveClient(base_url=sys.argv[1]).sync() as env:
    first = refusal(env)
    env.reset(split="train", index=0)
    sys.stdout.write(f"{first}\nheld\n")
    sys.stdout.flush()
    sys.stdin.readline()
    sys.stdout.write(f"{refusal(env)}\n")
