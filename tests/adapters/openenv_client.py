"""Plays scripts of turns through an OpenEnv server, all of them side by side; prints what came back as JSON.

Runs in the environment of envs_setup/openenv.lock: `python openenv_client.py URL SCRIPTS.json`. Odd episodes use the
generic client, the others the typed one.
"""

import asyncio
import json
import sys
from pathlib import Path

from openenv import GenericEnvClient

from coevolve.adapters.openenv_client import CoevolveClient, TurnAction


async def play(url, script, generic):
    async with (GenericEnvClient if generic else CoevolveClient)(base_url=url) as env:
        result = await env.reset(split=script["split"], index=script["index"])
        seen = [[text_of(result, generic), 0.0, result.done]]
        for text in script["texts"]:
            result = await env.step({"text": text} if generic else TurnAction(text=text))
            seen.append([text_of(result, generic), result.reward, result.done])
        state = await env.state()
        return {"seen": seen, "state": state if generic else state.model_dump()}


def text_of(result, generic):
    return result.observation["text"] if generic else result.observation.text


async def refused(url):
    """The sentence that a task beyond the split is refused with, and the text of the first task right after."""
    async with CoevolveClient(base_url=url) as env:
        try:
            await env.reset(split="train", index=1_000_000)
            sentence = ""
        except RuntimeError as error:
            sentence = str(error)
        result = await env.reset(split="train", index=0)
        return [sentence, result.observation.text]


async def main(url, path):
    scripts = json.loads(Path(path).read_text())
    episodes = await asyncio.gather(*(play(url, script, number % 2) for number, script in enumerate(scripts)))
    sys.stdout.write(json.dumps({"episodes": episodes, "refused": await refused(url)}))


asyncio.run(main(*sys.argv[1:]))
