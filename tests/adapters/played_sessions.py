"""Episodes played directly, as scripts of turns with what came back: what an adapter has to give byte for byte."""

from coevolve.adapters.sessions import open_sessions
from coevolve.envs.webshop import scripted_expert


def shop_script(session, split, index, noise):
    """An episode of WebShop's scripted expert; `noise`: one turn without an action first."""
    observation = session.reset(split, index)
    expert = scripted_expert.scripted_expert(observation)
    seen, texts, text = [[observation, 0.0, False]], [], "no action" if noise else next(expert)
    while not seen[-1][2]:
        step = session.step(text)
        texts.append(text)
        seen.append([step.observation, step.reward, step.done or step.truncated])
        try:
            text = next(expert) if noise and len(texts) == 1 else expert.send(step.observation)
        except StopIteration:
            break
    return {"split": split, "index": index, "texts": texts, "seen": seen, "total": session.total}


def shop_scripts(n, places=None):
    """Scripts of `n` episodes of the small WebShop, of the tasks at `places`."""
    with open_sessions("webshop-small", 1) as pool:
        session = pool.acquire()
        places = places or [("test" if i % 2 else "train", i) for i in range(n)]
        return [shop_script(session, split, index, noise=index == 2) for split, index in places], pool.tasks
