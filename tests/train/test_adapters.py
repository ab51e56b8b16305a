"""Policies of adapters on disk: a chain from the base model over SFT and two DPO trainings."""

import shutil

import pytest
import torch
from command_line import exit_status
from peft import PeftModel
from safetensors.torch import load_file
from train.settings import ADAPTERS, dpo_config, sft_config
from transformers import AutoModelForCausalLM

from coevolve.chat.chat_template import TokenizedTrajectory
from coevolve.config.loading import load_suite
from coevolve.config.models import trained_parameters
from coevolve.errors import UserError
from coevolve.policies import loading
from coevolve.records.pairs import PairKind
from coevolve.storage import policy_dir, pruned
from coevolve.train import dpo, sft
from coevolve.train.dataset import TokenizedPair
from coevolve.train.policy_io import TrainingRun

SFT, DPO = sft_config(epochs=2, learning_rate=2e-2), dpo_config(learning_rate=[2e-2])
ROWS = [
    TokenizedTrajectory(tuple(ids), (0,) * 8 + (1,) * 12)
    for ids in torch.randint(5, 300, (12, 20), generator=torch.Generator().manual_seed(0)).tolist()
]
PAIRS = [TokenizedPair(PairKind.EXPERT_TARGET, ROWS[i], ROWS[i + 6], 0.5, 0.5) for i in range(6)]
NAMES = ("base/untrained", "base/sft", "seed/one/dpo", "seed/two/dpo")


def step(home, number, pairs=PAIRS, lora=ADAPTERS, **more):
    """The training that makes policy `number` of the chain in `home`."""
    start, out = home / NAMES[number - 1], home / NAMES[number]
    run = TrainingRun(start, out, home / f"work{number}", number, lora, **more)
    if number == 1:
        return sft.run_sft(ROWS, SFT, run)
    return dpo.run_dpo(pairs, DPO, run, iteration=number - 1, reference=None)


@pytest.fixture(scope="module")
def chain(llama, tmp_path_factory):
    """A folder with the policies `NAMES`."""
    home = tmp_path_factory.mktemp("chain")
    shutil.copytree(llama, home / NAMES[0])
    for number in (1, 2, 3):
        step(home, number)
    return home


@pytest.fixture
def moved(chain, tmp_path):
    """A copy of it elsewhere."""
    return shutil.copytree(chain, tmp_path / "elsewhere/chain")


def weights(path):
    return loading.load_model(path).state_dict()


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_chain_of_adapters_is_to_the_bit_what_peft_merges_one_after_the_other(chain, moved):
    """In float32, also in a folder that was moved."""
    model = loading.load_model(chain / NAMES[0], torch.float32)
    for name in NAMES[1:]:
        before = {key: weight.clone() for key, weight in model.state_dict().items()}
        model = PeftModel.from_pretrained(model, chain / name).merge_and_unload()
        assert equal(weights(moved / name), model.state_dict()) and not equal(before, model.state_dict())
        assert not (chain / name / "model.safetensors").exists()
    assert policy_dir.describe(moved / NAMES[3]).name == "tiny+sft+dpo1+dpo2"


def test_their_number_is_the_one_that_disk_is_planned_with(chain, llama):
    sizes = "{vocab_size: 300, hidden_size: 16, layers: 2, heads: 2, intermediate_size: 32}"  # those of `llama`
    lora = "{rank: 2, alpha: 4, dropout: 0.0, target_modules: all-linear}"
    model = load_suite("smoke", [f"models.tiny.tiny={sizes}", f"models.tiny.lora={lora}"]).models["tiny"]
    for stage, policy in (("sft", NAMES[1]), ("pretrain", NAMES[0])):
        written = [weight for file in (chain / policy).glob("*.safetensors") for weight in load_file(file).values()]
        matrices = sum(weight.numel() for weight in written if weight.dim() > 1)
        assert matrices == trained_parameters(model, stage)


def test_other_programs_get_one_checkpoint_of_them(chain, tmp_path, capsys):
    assert exit_status("export", "checkpoint", chain / NAMES[3], "--out", tmp_path / "merged") == 0
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert theirs.dtype == torch.float32 and equal(theirs.state_dict(), weights(chain / NAMES[3]))
    assert policy_dir.describe(tmp_path / "merged").name == policy_dir.describe(chain / NAMES[3]).name
    assert exit_status("export", "checkpoint", chain / NAMES[3], "--out", tmp_path / "merged") == 2
    assert "merged: exists; name a new folder." in capsys.readouterr().err
    with loading.checkpoint(chain / NAMES[3], torch.bfloat16) as folder:
        theirs = AutoModelForCausalLM.from_pretrained(folder)
        assert theirs.dtype == torch.bfloat16
        assert equal(theirs.state_dict(), loading.load_model(chain / NAMES[3], torch.bfloat16).state_dict())
        assert loading.load_tokenizer(folder).get_vocab() == loading.load_tokenizer(chain / NAMES[0]).get_vocab()
    assert not folder.exists()
    with loading.checkpoint(chain / NAMES[0], torch.bfloat16) as folder:
        assert folder == chain / NAMES[0]


def test_without_pairs_the_copy_names_the_same_start_policy(moved):
    """The copy lies at another depth."""
    shutil.rmtree(moved / NAMES[2])
    step(moved, 2, pairs=[])
    assert policy_dir.describe(moved / NAMES[2]) == policy_dir.describe(moved / NAMES[1])
    assert equal(weights(moved / NAMES[2]), weights(moved / NAMES[1]))


def test_their_sha256_covers_the_policy_that_they_were_trained_on(moved):
    last, base = moved / NAMES[3], moved / NAMES[0]
    start = policy_dir.start_of(last)
    assert (start.folder, start.sha256) == (
        moved / NAMES[2],
        policy_dir.read_ref(moved / NAMES[2] / "policy.json").sha256,
    )
    before = policy_dir.digest(last)
    policy_dir.write_start(last, start.folder, "0" * 64)
    assert policy_dir.digest(last) != before
    policy_dir.write_start(last, start.folder, start.sha256)
    pruned.prune(base, policy_dir.WEIGHTS, "the command")
    with pytest.raises(UserError, match=r"base/untrained: its weights were deleted .*; `the command` makes them again"):
        policy_dir.describe(last)


def test_adapters_of_a_policy_that_was_trained_again_are_refused(moved):
    shutil.rmtree(moved / NAMES[1])
    step(moved, 1, lora=ADAPTERS.model_copy(update={"alpha": 8}))
    with pytest.raises(
        UserError, match="base/sft is not the policy that its adapters were trained on; rerun its stage"
    ):
        policy_dir.describe(moved / NAMES[2])
