"""The key-door world as the stages enter an environment, with a policy from nothing and jobs that play there."""

import contextlib
import functools
import sys
from types import SimpleNamespace

from rollout.keydoor import KeyDoor, gold, recorded, tasks

from coevolve.config.loading import load_suite
from coevolve.config.suite import Suite
from coevolve.envs.section import EnvSection
from coevolve.methods.recipes import AgentRecipe
from coevolve.methods.settings import PairingConfig, PairWeights, SelectionConfig, StepsConfig
from coevolve.pipeline.branch import Branch
from coevolve.pipeline.job import Job
from coevolve.records.episodes import Sampling, Trajectory
from coevolve.records.pairs import PairKind
from coevolve.rollout import EvaluationConfig, RolloutConfig, rollout
from coevolve.storage import jsonl, policy_dir
from coevolve.train import tiny_model
from coevolve.train.settings import DpoConfig, ObjectiveConfig, SftConfig, TinyArchitecture

CONTEXT = 512
#: Stages find an environment by the name of its module.
sys.modules["coevolve.envs.keydoor.domain"] = sys.modules[__name__]
TASKS = tasks(3)
OPTIMISER = {
    "epochs": 1, "batch_size": 4, "micro_batch": 4, "warmup": 0.0, "schedule": "constant", "weight_decay": 0.0,
    "max_grad_norm": 1.0, "save_steps": 1000, "layout": "flat",
}  # fmt: skip


@contextlib.contextmanager
def pool(setup, n):
    """What `coevolve.envs.registry.Domain` asks for."""
    yield [KeyDoor() for _ in range(n)]


def experts(folder):
    """The gold trajectories of `TASKS`."""
    journal = jsonl.Journal(folder / "gold.jsonl", Trajectory)
    found = rollout(
        TASKS, recorded({f"door{number}": gold(number) for number in range(len(TASKS))}), [KeyDoor()], samples=1,
        sampling=Sampling(temperature=0.0), seed=0, agent="expert", protocol="fixed", retries=0, journal=journal,
    )  # fmt: skip
    journal.close()
    return [expert.model_copy(update={"policy": None, "sampling": None}) for expert in found]


def policy(folder, seed=1):
    """The file of a policy that knows the world's words, and nothing else."""
    texts = [text for number in range(3) for text in gold(number)]
    architecture = TinyArchitecture(vocab_size=280, hidden_size=32, layers=2, heads=2, intermediate_size=64)
    tiny_model.build(architecture, context=CONTEXT, texts=texts, seed=seed, out=folder, name="tiny")
    return folder / policy_dir.REF_NAME


@functools.cache
def protocols():
    """The protocols that every suite has."""
    return load_suite("smoke").protocols


def suite(**sections):
    """What a job may read, every section with a small default."""
    weights = {PairKind.EXPERT_TARGET: PairWeights(dpo=1.0, sft=0.5), PairKind.EXPERT_STEP: PairWeights(dpo=1.0, sft=0)}
    agents = {"target": AgentRecipe(base="target", explores=True, trains_on=weights)}
    rates = {"learning_rate": [1e-3], "beta": [0.1], "reference": "base", "nll": "mean", "precompute_reference": True}
    dpo = ObjectiveConfig(name="dpo")
    defaults = {
        "models": {"tiny": SimpleNamespace(context=CONTEXT, lora=None, endpoint=None, training_dtype=None)},
        "envs": {"keydoor": EnvSection.model_construct(kind="keydoor", workers=4)},
        "recipes": {"method": SimpleNamespace(agents=agents)},
        "protocol": "fixed",
        "protocols": protocols(),
        "sampler": SimpleNamespace(engine="transformers", dtype=None),
        "rollout": RolloutConfig(k=2, top_p=1.0, max_new_tokens=12, retries=0),
        "pairing": PairingConfig(expert_beaten="drop", max_extra_turns=None, within=False, hard_negative=None),
        "evaluation": EvaluationConfig(),
        "selection": SelectionConfig(min_reward=1.0, per_task=None, with_experts=True, experts="sft"),
        "steps": StepsConfig(samples=2, temperature=1.0, margin=0.01, every=1),
        "sft": SftConfig(learning_rate=1e-3, **OPTIMISER),
        "dpo": DpoConfig(**OPTIMISER | rates, objective=dpo),
    }
    return Suite.model_construct(**{**defaults, **sections})


def job(stage, folder, sections, **inputs):
    """A job of the target agent in the first iteration of `method`; `inputs` are files."""
    (folder / "work").mkdir(parents=True, exist_ok=True)
    branch = Branch("method", 0, 1)
    wildcards = {"model": "tiny", "env": "keydoor", "branch": str(branch), "agent": "target"}
    files = {name: [path] for name, path in inputs.items()}
    return Job(stage, sections, files, wildcards, folder / "work", threads=1, branch=branch)
