"""Plays scripts of turns through an OpenEnv server, all of them side by side; prints what came back as JSON.

Runs in the environment of envs_setup/openenv.lock: `python openenv_client.py URL SCRIPTS.json`.
"""

import asyncio
import json
import sys
from pathlib import Path

from openenv import GenericEnvClient


async def play(url, script):
    async with GenericEnvClient(base_url=url) as env:
        result = await env.reset(split=script["split"], index=script["index"])
        seen = [[result.observation["text"], 0.0, result.done]]
        for text in script["texts"]:
            result = await env.step({"text": text})
            seen.append([result.observation["text"], result.reward, result.done])
        state = await env.state()
        return {"seen": seen, "steps": state["step_count"]}


async def main(url, path):
    scripts = json.loads(Path(path).read_text())
    sys.stdout.write(json.dumps(await asyncio.gather(*(play(url, script) for script in scripts))))


asyncio.run(main(*sys.argv[1:]))
