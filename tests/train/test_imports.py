"""What a job imports: seconds of CPU for each of the many jobs of a suite."""

import json
import subprocess
import sys

from train.settings import dpo_config, sft_config

MODEL = (
    "evaluate", "gradients", "pretrain", "reference", "rft_train", "rollout", "sft", "shard", "steps", "train",
    "untrained",
)  # fmt: skip
SFT = sft_config(batch_size=2, save_steps=1)
DPO = dpo_config(batch_size=2, save_steps=1, layout="flat", precompute_reference=False)
#: Both trainings, with checkpoints, and a reference model that runs in every step.
TRAININGS = """
from pathlib import Path
from coevolve.chat.chat_template import TokenizedTrajectory
from coevolve.config.sections import DpoConfig, SftConfig
from coevolve.train import dpo, sft
from coevolve.train.dataset import TokenizedPair
from coevolve.train.policy_io import TrainingRun
from coevolve.config.names import PairKind

start, out = map(Path, sys.argv[1:3])
sides = [TokenizedTrajectory(tuple(range(k, k + 9)), (0,) * 4 + (1,) * 5) for k in range(5, 9)]
pairs = [TokenizedPair(PairKind.EXPERT_TARGET, *both, 1.0, 1.0) for both in (sides[:2], sides[2:])]
run = TrainingRun(start, out / "sft", out / "w1", seed=1)
sft.run_sft(sides, SftConfig.model_validate_json(sys.argv[3]), run)
run = TrainingRun(start, out / "dpo", out / "w2", seed=1)
dpo.run_dpo(pairs, DpoConfig.model_validate_json(sys.argv[4]), run, iteration=1, reference=None)
"""


def packages_after(code, *arguments):
    """The top-level packages that a new process has imported after `code`."""
    code = f"import sys, json\n{code}\nprint(json.dumps(sorted({{name.partition('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def importing(stages):
    return "import coevolve.cli.stage, " + ", ".join(f"coevolve.pipeline.stages.{stage}" for stage in stages)


def test_training_and_playing_import_no_trl(llama, tmp_path):
    """TRL is for GRPO, for GPUs (its tiled head) and for launches (a sharded reference model)."""
    configs = (SFT.model_dump_json(), DPO.model_dump_json())
    packages = packages_after(importing(MODEL) + TRAININGS, str(llama), str(tmp_path), *configs)
    assert (tmp_path / "dpo/policy.json").exists()
    assert "torch" in packages and not packages & {"trl", "openai", "datasets", "scipy", "pandas"}
