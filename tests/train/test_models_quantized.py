"""Adapters beside a model in 4 bits: what is trained, against what, and what of it is written."""

import shutil
from importlib.util import find_spec
from types import SimpleNamespace

import accelerate
import pytest
import torch
from peft import get_peft_model
from train.settings import ADAPTERS, dpo_config, sft_config
from transformers import AutoModelForCausalLM

from coevolve.chat.chat_template import TokenizedTrajectory
from coevolve.config.names import PairKind
from coevolve.errors import UserError
from coevolve.storage import files, policy_dir
from coevolve.train import dpo, policy_io, sft
from coevolve.train import trainer as training
from coevolve.train.dataset import TokenizedPair
from coevolve.train.policy_io import TrainingRun

SFT = sft_config(epochs=4, save_steps=3)
DPO = dpo_config(epochs=4, layout="flat", precompute_reference=False)
QUANTISED = ADAPTERS.model_copy(update={"quantize": "nf4"})
needs_bitsandbytes = pytest.mark.skipif(not find_spec("bitsandbytes"), reason="the extra `qlora` is not installed")


def row(seed):
    ids = torch.randint(5, 300, (20,), generator=torch.Generator().manual_seed(seed))
    return TokenizedTrajectory(tuple(ids.tolist()), (0,) * 8 + (1,) * 12)


PAIRS = [TokenizedPair(PairKind.EXPERT_TARGET, row(i), row(100 + i), 1.0, 0.0) for i in range(8)]
IDS = torch.tensor([row(0).input_ids, row(1).input_ids])


def run_sft(start, folder, name="out", **settings):
    run = TrainingRun(start, folder / name, folder / f"work-{name}", 1, QUANTISED)
    sft.run_sft([row(seed) for seed in range(8)], SFT.model_copy(update=settings), run)
    return folder / name


def run_dpo(start, folder):
    run = TrainingRun(start, folder / "out", folder / "work", 1, QUANTISED)
    return dpo.run_dpo(PAIRS, DPO, run, iteration=1, reference=None)


def adapted(model):
    torch.manual_seed(0)
    model = get_peft_model(model, policy_io.adapter_config(QUANTISED, model))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # which begin as zeros, and would leave the others without a gradient
            parameter.data.normal_(std=0.1)
    return model


def gradients(model):
    loss = torch.nn.functional.cross_entropy(model(input_ids=IDS).logits.flatten(0, 1), IDS.flatten())
    loss.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


@needs_bitsandbytes
def test_matrices_are_in_4_bits_and_what_is_trained_in_32(llama, tmp_path):
    model = policy_io.load(llama, QUANTISED)
    dtypes = {name: parameter.dtype for name, parameter in model.named_parameters()}
    assert dtypes["model.layers.0.self_attn.q_proj.weight"] == torch.uint8
    assert dtypes["model.embed_tokens.weight"] == dtypes["model.norm.weight"] == torch.float32
    exact = policy_io.load(llama)(input_ids=IDS).logits
    off = (model(input_ids=IDS).logits - exact).abs().max() / exact.abs().max()
    assert 1e-3 < off < 0.5
    run = TrainingRun(llama, tmp_path / "out", tmp_path, 1, QUANTISED)
    trainer = sft.SupervisedTrainer([row(0)] * 4, [0, 1, 2, 3], model=model, config=SFT, run=run)
    policy_io.require_full_precision(trainer.model)
    trained = {name for name, parameter in trainer.model.named_parameters() if parameter.requires_grad}
    assert trained and all("lora_" in name for name in trained)


@needs_bitsandbytes
def test_on_a_gpu_passes_are_in_bfloat16_and_the_weights_on_the_processs_own(llama, monkeypatch):
    """What transformers is given: no GPU is here."""
    given = {}
    monkeypatch.setattr(accelerate, "PartialState", lambda: SimpleNamespace(device=torch.device("cuda:1")))
    load = AutoModelForCausalLM.from_pretrained

    def on_cpus(path, *, quantization_config, device_map, **options):
        given.update(quantization_config.to_dict(), **device_map)
        return load(path, **options)

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", on_cpus)
    policy_io.load(llama, QUANTISED)
    assert given["load_in_4bit"] and given["bnb_4bit_use_double_quant"] and given["bnb_4bit_quant_type"] == "nf4"
    assert given["bnb_4bit_compute_dtype"] == "bfloat16" and given[""] == torch.device("cuda:1")


@needs_bitsandbytes
def test_gradients_are_those_of_the_same_weights_in_32_bits(llama):
    model = policy_io.load(llama, QUANTISED)
    with torch.no_grad():
        model(input_ids=IDS)  # as for reference log-probs, before the first step
    wide = policy_io.load(llama, QUANTISED).dequantize().float()
    assert not any(parameter.dtype == torch.uint8 for parameter in wide.parameters())
    narrow, wide = gradients(adapted(model)), gradients(adapted(wide))
    trained = {name for name in wide if "lora_" in name}
    assert trained and {name for name in narrow if "lora_" in name} == trained
    for name in trained:
        assert wide[name].abs().max() > 1e-6
        torch.testing.assert_close(narrow[name], wide[name], rtol=1e-4, atol=1e-6)


@needs_bitsandbytes
def test_the_reference_is_quantised_alike_and_adapters_go_into_the_float32_weights(llama, tmp_path):
    report = run_dpo(llama, tmp_path)
    assert report.first_loss == pytest.approx(torch.log(torch.tensor(2.0)).item(), abs=1e-6)
    assert report.last_loss < report.first_loss - 0.01
    before, after = (policy_io.load(path).state_dict() for path in (llama, tmp_path / "out"))
    assert after.keys() == before.keys()
    for name, tensor in after.items():
        moved = tensor - before[name]
        if "_proj" in name:  # from dequantised weights it would differ in every direction
            assert 1 <= torch.linalg.matrix_rank(moved, atol=1e-5) <= QUANTISED.rank
        else:
            assert not moved.any()
    assert policy_dir.describe(tmp_path / "out").name == "tiny+dpo1"


@needs_bitsandbytes
def test_a_training_that_was_cut_off_ends_in_the_same_bytes(llama, tmp_path):
    whole = run_sft(llama, tmp_path, "whole")
    run_sft(llama, tmp_path, "half", epochs=2.0)
    checkpoint = training.last_checkpoint(tmp_path / "work-whole")
    shutil.copytree(checkpoint, tmp_path / "work-again" / checkpoint.name)
    again = run_sft(llama, tmp_path, "again")
    assert files.sha256(again) == files.sha256(whole) != files.sha256(tmp_path / "half")


def test_without_the_package_it_is_one_sentence(llama, monkeypatch):
    monkeypatch.setattr(policy_io, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"`lora\.quantize` needs the package bitsandbytes; install the extra `qlora`"):
        policy_io.load(llama, QUANTISED)


def test_fsdp_is_refused_weights_in_4_bits(llama, monkeypatch):
    monkeypatch.setattr(policy_io, "find_spec", lambda name: True)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(UserError, match=r"FSDP cannot divide 4-bit weights; launch with configs/accelerate/ddp\.yaml"):
        policy_io.load(llama, QUANTISED)
