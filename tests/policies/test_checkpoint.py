"""Checkpoints that are not whole, as others' tools write them: one sentence each, wherever weights are loaded."""

import ast
import contextlib
import io
import json
import re
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file, save_file
from templates.models import llama, qwen3, tokenizer
from transformers import ByT5Tokenizer, Gemma3Config

from coevolve.errors import UserError
from coevolve.policies import checkpoint, loading
from coevolve.train import policy_io

DOWN = "model.layers.0.mlp.down_proj.weight"


@pytest.fixture
def saved(tmp_path):
    llama().save_pretrained(tmp_path)
    tokenizer("tiny").save_pretrained(tmp_path)
    return tmp_path


def rewrite(folder, change):
    """The weights of a folder as `change` makes them of a dictionary."""
    file = folder / "model.safetensors"
    save_file(change(load_file(file)), file, metadata={"format": "pt"})


def with_config(**keys):
    def change(folder):
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | keys))

    return change


def without(*names):
    return lambda weights: {name: weight for name, weight in weights.items() if name not in names}


def prefixed(prefix):
    return lambda weights: {prefix + name: weight for name, weight in weights.items()}


def taller(weights):
    return weights | {DOWN: torch.zeros(65, 128)}


def deeper(weights):
    own = {name.replace("layers.1.", "layers.2."): weight.clone() for name, weight in weights.items()}
    return own | weights


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (without(DOWN), rf"\(missing: {DOWN}\); give a whole checkpoint"),
        (without("lm_head.weight"), r"\(missing: lm_head\.weight\)"),
        (prefixed("module."), r"missing: lm_head.weight, .* and \d+ more; unexpected: .*wrapper `module\.`"),
        (prefixed("_orig_mod."), r"unexpected: _orig_mod\.lm_head\.weight, .*wrapper `_orig_mod\.`"),
        (deeper, r"\(unexpected: model\.layers\.2\..* and 6 more\)"),
        (taller, rf"\(of another shape: {DOWN} \(65, 128\) instead of \(64, 128\)\)"),
    ],
)
def test_weights_that_are_not_the_models_are_named(saved, change, sentence):
    rewrite(saved, change)
    for load in (loading.load_model, policy_io.load, checkpoint.require_whole):
        with pytest.raises(UserError, match=sentence):
            load(saved)


def test_what_a_model_computes_or_ties_is_not_missing_or_unexpected(saved, tmp_path):
    rewrite(saved, lambda weights: weights | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)})
    assert torch.equal(loading.load_model(saved).lm_head.weight, llama().lm_head.weight)
    tied = tmp_path / "tied"
    qwen3().save_pretrained(tied)
    assert "lm_head.weight" not in load_file(tied / "model.safetensors")
    assert torch.equal(loading.load_model(tied).lm_head.weight, qwen3().lm_head.weight)
    with_config(tie_word_embeddings=False)(tied)
    with pytest.raises(UserError, match=r"missing: lm_head\.weight"):
        loading.load_model(tied)


def shard(folder):
    """Divide the weights, and remove the second file."""
    (folder / "model.safetensors").unlink()
    llama().save_pretrained(folder, max_shard_size="200KB")
    loading.load_model(folder)
    sorted(folder.glob("*.safetensors"))[1].unlink()


def damage(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-9])


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (shard, r"model-00002-of-\d+\.safetensors of model\.safetensors\.index\.json missing"),
        (damage, r"model\.safetensors: damaged"),
        (lambda folder: (folder / "model.safetensors").unlink(), "policy directory without weights; put"),
        (lambda folder: (folder / "adapter_config.json").touch(), r"has adapter_config\.json; merge the adapters"),
        (with_config(quantization_config={"quant_method": "gptq", "bits": 4}), r"weights are quantised \(gptq\)"),
        (
            with_config(quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True}),
            r"quantised \(bitsandbytes\)",
        ),
        (with_config(model_type="no_such_model"), r"config\.json: .*no_such_model"),
        (with_config(num_attention_heads=7), r"config\.json: "),
    ],
)
def test_files_that_the_kit_cannot_load_are_one_sentence(saved, spoil, sentence):
    spoil(saved)
    with pytest.raises(UserError, match=sentence) as refused:
        loading.load_model(saved)
    assert "\n" not in str(refused.value)


def test_a_tokenizer_that_is_missing_or_larger_than_the_model_is_named(saved):
    grown = tokenizer("tiny").__class__.from_pretrained(saved)
    rows = llama().config.vocab_size
    grown.add_tokens([f"<extra{number}>" for number in range(rows - len(grown) + 1)])
    grown.save_pretrained(saved)
    with pytest.raises(UserError, match=rf"the tokenizer has {rows + 1} tokens, the model {rows}"):
        loading.load_tokenizer(saved)
    described = json.loads((saved / "tokenizer.json").read_text())
    vocabulary = described["model"]["vocab"]
    vocabulary["\x1b[31m"] = vocabulary.pop(list(vocabulary)[-1])  # which a merge names
    (saved / "tokenizer.json").write_text(json.dumps(described))
    with pytest.raises(UserError, match=r"no tokenizer can be loaded .*out of vocabulary"):
        loading.load_tokenizer(saved)
    for file in saved.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(UserError, match="no tokenizer can be loaded"):
        loading.load_tokenizer(saved)


def test_of_several_chat_templates_the_default_is_used(saved):
    file = saved / "tokenizer_config.json"
    plain = json.loads(file.read_text())
    (saved / "chat_template.jinja").unlink(missing_ok=True)
    named = [{"name": name, "template": f"of {name}"} for name in ("default", "tool_use")]
    file.write_text(json.dumps(plain | {"chat_template": named}))
    assert loading.load_tokenizer(saved).chat_template == "of default"
    file.write_text(json.dumps(plain | {"chat_template": named[1:]}))
    assert loading.load_tokenizer(saved).chat_template is None


def test_a_tokenizer_without_a_fast_form_is_refused(saved):
    for file in saved.glob("tokenizer*"):
        file.unlink()
    ByT5Tokenizer().save_pretrained(saved)
    with pytest.raises(UserError, match="its tokenizer has no `tokenizer"):
        loading.load_tokenizer(saved)


def test_the_tokens_of_a_model_with_a_config_for_its_text_are_counted_there(tmp_path):
    """As in models that also see images: their config has no `vocab_size` of its own."""
    tokenizer("tiny").save_pretrained(tmp_path)
    rows = len(tokenizer("tiny"))
    for size, fits in ((rows, True), (rows - 1, False)):
        Gemma3Config(text_config={"vocab_size": size}).save_pretrained(tmp_path)
        with contextlib.nullcontext() if fits else pytest.raises(UserError, match=f"the model {size}"):
            assert len(loading.load_tokenizer(tmp_path)) == rows


@pytest.fixture
def coded(saved):
    """A checkpoint whose architecture and tokenizer need a module of its own, which leaves a file when it is run."""
    (saved / "code.py").write_text(
        f"open({str(saved / 'was_run')!r}, 'w')\nclass Config: pass\nModel = Tokens = Config\n"
    )
    names = {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}
    with_config(model_type="of_its_own", auto_map=names)(saved)
    return saved


def need_code_of_tokenizer(folder):
    """The checkpoint's architecture is transformers' own, and its tokenizer is not."""
    with_config(model_type="llama")(folder)
    about = {"tokenizer_class": "Tokens", "auto_map": {"AutoTokenizer": ["code.Tokens", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))


LOADERS = {
    "read_config": checkpoint.read_config,
    "require_whole": checkpoint.require_whole,
    "load_model": loading.load_model,
    "load_tokenizer": loading.load_tokenizer,
    "policy_io.load": policy_io.load,
    "longest": lambda folder: policy_io.TrainingRun(folder, folder, folder, 0).longest,
}


@pytest.mark.parametrize("answer", ["y\n", ""])
@pytest.mark.parametrize("loader", LOADERS)
def test_code_of_a_checkpoint_is_never_run_and_never_asked_for(coded, loader, answer, monkeypatch, capsys):
    if loader == "load_tokenizer":
        need_code_of_tokenizer(coded)
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    began = time.monotonic()
    with pytest.raises(UserError, match=r"needs code of its own \(`auto_map`\), which is never run; give a model"):
        LOADERS[loader](coded)
    assert time.monotonic() - began < 10 and not (coded / "was_run").exists()
    assert "[y/N]" not in capsys.readouterr().out


def test_evaluate_model_refuses_a_checkpoint_with_code_at_once(coded, root, tmp_path):
    words = ("evaluate-model", str(coded), "--env", "webshop-small", "--root", str(tmp_path / "out"))
    run = subprocess.run(
        [sys.executable, "-m", "coevolve", *words], input="y\n", capture_output=True, text=True, cwd=root, check=False
    )
    assert run.returncode == 2 and "needs code of its own" in run.stderr and "[y/N]" not in run.stdout + run.stderr
    assert len(run.stderr.splitlines()) == 1 and not (coded / "was_run").exists() and not (tmp_path / "out").exists()


def test_a_checkpoint_that_names_code_and_does_not_need_it_is_loaded_without(saved):
    with_config(auto_map={"AutoModelForCausalLM": "missing.Model"})(saved)
    assert type(loading.load_model(saved)).__name__ == "LlamaForCausalLM"


def test_every_loader_of_transformers_is_called_without_trust(root):
    calls = {}
    for path in sorted((root / "coevolve").rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match call:
                case ast.Call(func=ast.Attribute(attr="from_pretrained" | "from_config" | "LLM")):
                    calls[f"{path.name}:{call.lineno}"] = ast.unparse(call)
    trusting = {
        line: call for line, call in calls.items() if not re.search("trust_remote_code=False|[*]{2}LOCAL", call)
    }
    assert len(calls) >= 9 and trusting == {}
