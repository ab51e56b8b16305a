"""A program that runs upstream's WebShop in the user's environment (Python 3.8 or later), without imports of this kit.

Reads requests, a JSON object a line, from standard input, and writes an answer a line to standard output.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from random import seed as seed_upstream
from typing import Any, TextIO


def main(checkout: str, seed: str, human: str, products: str) -> None:
    """Build upstream's text environment and answer requests until standard input ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    # Upstream prints its progress to standard output.
    sys.stdout = sys.stderr
    sys.path.insert(0, checkout)
    module: Any = importlib.import_module("web_agent_site.envs.web_agent_text_env")
    # The first call of upstream's print function draws a random number, which must not shift the prices.
    importlib.import_module("web_agent_site.engine.engine").print("seeded")
    seed_upstream(int(seed))
    environment = module.WebAgentTextEnv(
        observation_mode="text", human_goals=human == "human", num_products=int(products)
    )
    server = environment.server
    utils: Any = importlib.import_module("web_agent_site.utils")
    files = [utils.DEFAULT_FILE_PATH, utils.DEFAULT_ATTR_PATH, utils.HUMAN_ATTR_PATH]
    write(answers, {"files": files, "prices": server.product_prices, "goals": server.goals})
    for line in sys.stdin:
        write(answers, answer(environment, json.loads(line)))


def answer(environment: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Upstream's answer to one request; an exception of its server is also an answer."""
    if "nouns" in request:
        goal: Any = importlib.import_module("web_agent_site.engine.goal")
        return {"nouns": [t.text.lower() for t in goal.nlp(request["nouns"]) if t.pos_ in ("NOUN", "PROPN")]}
    try:
        if "reset" in request:
            observation, reward, done = environment.reset(request["reset"])[0], 0.0, False
        else:
            observation, reward, done, _ = environment.step(request["step"])
    except Exception as error:  # noqa: BLE001 - any exception of upstream is a result
        return {"error": repr(error)}
    clickables = environment.get_available_actions()["clickables"]
    details = environment.server.user_sessions[environment.session].get("verbose_info") if done else None
    return {"obs": observation, "reward": reward, "done": done, "clickables": clickables, "details": details}


def write(answers: TextIO, content: dict[str, Any]) -> None:
    """Write one answer."""
    answers.write(json.dumps(content) + "\n")
    answers.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
