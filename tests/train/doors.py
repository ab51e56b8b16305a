"""The key-door world for online training, a policy that can act there, and its trainings."""

from contextlib import closing

import pytest
import torch
from rollout.keydoor import KeyDoor, gold, tasks

from coevolve import seeds
from coevolve.chat.chat_template import Renderer
from coevolve.chat.prompts import parse_action, prompt_messages, write_action
from coevolve.policies import loading
from coevolve.policies.base import ScriptedPolicy
from coevolve.policies.hf import TransformersPolicy
from coevolve.records.episodes import Sampling, Trajectory
from coevolve.rollout import rollout
from coevolve.storage import jsonl
from coevolve.train import grpo, ppo, sft, tiny_model
from coevolve.train.online import OnlineSetup
from coevolve.train.policy_io import TrainingRun
from coevolve.train.settings import GrpoConfig, PpoConfig, SftConfig, TinyArchitecture

CONTEXT = 320
TASKS = tasks(2)
ARCHITECTURE = TinyArchitecture(vocab_size=340, hidden_size=48, layers=2, heads=4, intermediate_size=96)
SAMPLING = Sampling(temperature=1.0, max_new_tokens=16)
ACTIONS = ("go left", "go right", "take key", "open door")
SFT = SftConfig(
    epochs=6, batch_size=8, micro_batch=8, warmup=0.0, schedule="constant", weight_decay=0.0, max_grad_norm=1.0,
    save_steps=1000, layout="flat", learning_rate=5e-3,
)  # fmt: skip
PPO = PpoConfig(
    epochs=8, rollouts=16, passes=2, batch_size=8, micro_batch=4, learning_rate=1e-3, weight_decay=0.0,
    max_grad_norm=1.0, clip=0.2, value_clip=0.2, value_weight=0.5, kl=0.05, discount=0.97, gae_lambda=0.9,
)  # fmt: skip
GRPO = GrpoConfig(
    epochs=4, batch_size=8, micro_batch=4, group=4, learning_rate=2e-3, warmup=0.0, schedule="constant",
    weight_decay=0.0, max_grad_norm=1.0, save_steps=1, clip=0.2, beta=0.05,
)  # fmt: skip
METHODS = {"ppo": (ppo.run_ppo, PPO), "grpo": (grpo.run_grpo, GRPO)}
RULES = {"agent": "target", "protocol": "fixed", "retries": 0}


def world(envs=16, tasks=TASKS):
    return OnlineSetup(
        tasks=tasks,
        envs=[KeyDoor() for _ in range(envs)],
        prompt=prompt_messages,
        protocol="fixed",
        long_prompt="end",
        max_new_tokens=16,
        retries=0,
    )


def stroll(conversation):
    """Now the expert's action, now any of the world's."""
    turn = len(conversation.turns)
    rng = seeds.generator(5, conversation.key, turn)
    expert = [parse_action(text) for text in gold(int(conversation.key[len("door")]))]
    return write_action(expert[turn] if turn < len(expert) and rng.random() < 0.75 else str(rng.choice(ACTIONS)))


@pytest.fixture(scope="session")
def half(tmp_path_factory):
    """The directory of a policy that knows what can be done in the world, and not what is good to do."""
    return taught(tmp_path_factory.mktemp("half"), ARCHITECTURE)


def taught(folder, architecture):
    """The directory of such a policy."""
    with closing(jsonl.Journal(folder / "shown.jsonl", Trajectory)) as journal:
        shown = rollout(
            TASKS, ScriptedPolicy(stroll), [KeyDoor()], samples=32, sampling=SAMPLING, seed=0, journal=journal, **RULES
        )
    texts = [message.content for episode in shown for message in (*episode.prompt, *episode.completion)]
    start, out = folder / "random", folder / "half"
    tiny_model.build(architecture, context=CONTEXT, texts=texts, seed=1, out=start, name="tiny")
    renderer = Renderer(loading.load_tokenizer(start))
    rows = [renderer.render(episode.prompt, episode.completion) for episode in shown]
    sft.run_sft(rows, SFT, TrainingRun(start, out, folder / "work", seed=1))
    return out


def mean_reward(policy, folder, samples=40, seed=99):
    """Over `samples` episodes of each task at temperature 1, all at once: a pass takes as long for 80 as for 20."""
    torch.set_num_threads(1)
    slots = samples * len(TASKS)
    player = TransformersPolicy.load(policy, slots=slots, context=CONTEXT, long_prompt="end")
    with closing(jsonl.Journal(folder / f"{policy.name}-played.jsonl", Trajectory)) as journal:
        envs = [KeyDoor() for _ in range(slots)]
        played = rollout(TASKS, player, envs, samples=samples, sampling=SAMPLING, seed=seed, journal=journal, **RULES)
    return sum(episode.reward for episode in played) / len(played)


def train(method, start, folder, name, lora=None, where=None, seed=3, **settings):
    """The report and the policy of a training with `settings` beside those of `METHODS`."""
    out, work = folder / name, folder / f"work-{name}"
    work.mkdir(exist_ok=True)
    run, config = METHODS[method]
    return run(where or world(), config.model_copy(update=settings), TrainingRun(start, out, work, seed, lora)), out


class CutOffError(Exception):
    pass


def interrupt(where, after):
    """The same world, out of order after so many steps of its environments."""
    left = iter(range(after))
    for env in where.envs:
        step = env.step

        def dying(action, step=step):
            if next(left, None) is None:
                raise CutOffError
            return step(action)

        env.step = dying
    return where
