"""One iteration of co-evolving agents on one page of code, without the DAG: a tiny model in the WebShop environment.

`python examples/one_iteration.py [FOLDER]` needs a minute or two on a CPU. The suites do the same with stages, which
can be killed, resumed and traced; the settings here are those of the suite `smoke`, with fewer tasks and other batches.
"""

import functools
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from coevolve.chat.chat_template import Renderer
from coevolve.chat.prompts import prompt_messages
from coevolve.config.loading import load_suite
from coevolve.config.suite import exploration_temperature, quirks
from coevolve.envs.base import Setup
from coevolve.envs.registry import domain
from coevolve.envs.workers import environments
from coevolve.methods.pairing import pair
from coevolve.pipeline.stages.parts.training import texts, tokenize
from coevolve.pipeline.stages.parts.training_pairs import tokenized_pairs
from coevolve.policies import loading
from coevolve.policies.hf import TransformersPolicy
from coevolve.records.episodes import Agent, Sampling, Task, Trajectory
from coevolve.rollout import rollout
from coevolve.storage.jsonl import Journal
from coevolve.train import tiny_model
from coevolve.train.dpo import run_dpo
from coevolve.train.policy_io import TrainingRun
from coevolve.train.sft import run_pretrain, run_sft

SETTINGS = (
    "envs.webshop.tasks.sft=16", "envs.webshop.tasks.explore=12", "envs.webshop.tasks.evaluate=8",
    "models.tiny.pretrain.batch_size=2", "sft.batch_size=2",  # few experts: small batches give enough steps
)  # fmt: skip
SUITE = load_suite("smoke", SETTINGS)
MODEL, RECIPE = SUITE.models["tiny"], SUITE.recipes["coevolve"]


class Experiment:
    """The tasks and experts of the environment, and a folder for policies and journals."""

    def __init__(self, folder: Path) -> None:
        self.folder, webshop = folder, domain(SUITE.envs["webshop"])
        shop = Setup(SUITE.envs["webshop"], "envs.webshop", SUITE.protocol, quirks(SUITE), folder / "shop")
        (folder / "shop").mkdir(parents=True, exist_ok=True)
        webshop.prepare(shop, folder / "shop")  # the products, and an index to search them
        self.setup, self.tasks = shop, webshop.select(shop)
        self.experts = webshop.experts(shop, self.tasks.training).trajectories
        instruction = self.experts[0].prompt[0].content
        self.prompt = functools.partial(prompt_messages, instruction=instruction)

    def experts_of(self, tasks: Sequence[Task]) -> list[Trajectory]:
        """The expert trajectories of the tasks."""
        names = {task.task_id for task in tasks}
        return [expert for expert in self.experts if expert.task.task_id in names]

    def run(self, start: Path, name: str, seed: int) -> TrainingRun:
        """A training from the policy in `start` to the folder's policy `name`."""
        (self.folder / name).mkdir()
        work = self.folder / f".work-{name}"
        return TrainingRun(start, self.folder / name, work, seed, context=MODEL.context)

    def pretrained(self) -> Path:
        """The model that both agents start from: random weights, which learn the language of the experts."""
        experts, start = self.experts_of(self.tasks.sft), self.folder / "random"
        tiny_model.build(MODEL.tiny, context=MODEL.context, texts=texts(experts), seed=0, out=start, name="tiny")
        pretrained = self.run(start, "pretrained", seed=0)
        run_pretrain(tokenize(experts, Renderer(loading.load_tokenizer(start))), MODEL.pretrain, pretrained)
        return pretrained.out

    def base(self, start: Path, agent: Agent, seed: int) -> Path:
        """Section 4.1: an agent's base policy, fine-tuned on the experts alone; agents differ by their seed."""
        experts = tokenize(self.experts_of(self.tasks.sft), Renderer(loading.load_tokenizer(start)))
        fine_tuned = self.run(start, f"{agent}_base", seed)
        run_sft(experts, SUITE.sft, fine_tuned)  # eq. 3 to 5
        return fine_tuned.out

    def play(self, policy: Path, agent: Agent, tasks: Sequence[Task], temperature: float) -> list[Trajectory]:
        """One episode of each task; `temperature` 0 is greedy."""
        quirk, journal = quirks(SUITE).long_prompt, self.folder / f"{policy.name}_{temperature}.jsonl"
        player = TransformersPolicy.load(policy, slots=8, context=MODEL.context, long_prompt=quirk)
        sampling = Sampling(temperature=temperature, max_new_tokens=SUITE.rollout.max_new_tokens)
        with environments(self.setup, 8) as envs:
            return rollout(
                tasks, player, envs, samples=1, sampling=sampling, seed=0, agent=agent, protocol=SUITE.protocol,
                retries=1, journal=Journal(journal, Trajectory), prompt=self.prompt,
            )  # fmt: skip

    def train(self, agent: Agent, start: Path, rollouts: dict[Agent, list[Trajectory]]) -> Path:
        """Eq. 7 for the failure agent, eq. 9 for the target: the weights stand with each pair."""
        experts = self.experts_of(self.tasks.explore)
        paired = pair(RECIPE.agents[agent], SUITE.pairing, self.tasks.explore, experts, rollouts)  # eq. 6 and 8
        print(f"{agent}: {len(paired.pairs)} pairs, {len(paired.drops)} candidates without one")
        training = self.run(start, f"{agent}_1", seed=1)
        run_dpo(tokenized_pairs(paired.pairs, start, None, MODEL.context), SUITE.dpo, training, iteration=1,
                reference=start)  # fmt: skip
        return training.out

    def reward(self, policy: Path) -> float:
        """The mean reward of greedy episodes on the evaluation tasks."""
        episodes = self.play(policy, "target", self.tasks.evaluate, temperature=0.0)
        return sum(episode.reward for episode in episodes) / len(episodes)


def main(folder: Path) -> dict[str, float]:
    """Run one iteration; returns the target's mean reward before and after it."""
    torch.set_num_threads(1)  # for so small a model a second one costs more time than it saves
    experiment, temperature = Experiment(folder), exploration_temperature(SUITE)
    start, seeds = experiment.pretrained(), (("target", 0), ("failure", 1))
    agents: dict[Agent, Path] = {agent: experiment.base(start, agent, seed) for agent, seed in seeds}
    explored = {a: experiment.play(p, a, experiment.tasks.explore, temperature) for a, p in agents.items()}
    experiment.train("failure", agents["failure"], explored)  # it explores with this policy in the next iteration
    target = experiment.train("target", agents["target"], explored)
    return {"before": experiment.reward(agents["target"]), "after": experiment.reward(target)}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        print(main(Path(sys.argv[1] if len(sys.argv) > 1 else temporary)))
