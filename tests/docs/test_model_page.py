"""The page on adding a model is true: a checkpoint built here is put where it says, and asked."""

import contextlib
import io

import pytest
import torch
import yaml
from templates.models import qwen3, tokenizer

from coevolve.chat.chat_template import read_template
from coevolve.config.loading import load_suite
from coevolve.errors import UserError

OWN = "results/own/own/webshop/base/untrained/policy/target"
BAD = {
    "has no chat template": "",
    "rejects a plain conversation": "{{ raise_exception('only one question') }}",
    "drops, repeats": "{{ messages[-1]['content'] }}<|im_end|>",
    "differently from a new one": (
        "{%- for m in messages -%}{%- if m['role'] == 'user' -%}<|im_start|>{{ m['content'] }}<|im_end|>"
        "{%- elif loop.index > 2 -%}!{{ m['content'] }}<|im_end|>{%- else -%}{{ m['content'] }}<|im_end|>{%- endif -%}"
        "{%- endfor -%}"
    ),
    "writes today's date": (
        "{{ strftime_now('%d') }}{%- for m in messages -%}{{ m['content'] }}<|im_end|>{%- endfor -%}"
    ),
    "without a special token": "{%- for m in messages -%}{{ m['role'] }}: {{ m['content'] }}\n{%- endfor -%}",
}


@pytest.fixture(scope="module")
def page(read):
    return read("add_a_model")


@pytest.fixture(scope="module")
def suite(page, kit):
    """A copy of the kit with the page's configs, and a checkpoint."""
    model, suite, _, lora = page.blocks("yaml")
    kit.write("configs/models/own.yaml", model)
    kit.write("configs/own.yaml", suite)
    kit.write("configs/adapted.yaml", f"extends: own.yaml\n{lora}")
    qwen3(max_position_embeddings=2048).save_pretrained(kit.folder / "checkpoints/own")
    tokenizer("qwen3").save_pretrained(kit.folder / "checkpoints/own")
    return kit


@pytest.fixture(scope="module")
def policy(page, suite):
    """The suite after the page's last command."""
    suite.shell(page.commands[2])
    return suite


def test_the_other_commands_run(page, suite, console, monkeypatch):
    monkeypatch.chdir(suite.folder)
    assert len(page.commands) == 3
    assert console(page.commands[0]).splitlines()[-3].strip() == "checkpoints/own"
    assert "Suite own on nodes of 8 H100" in console(page.commands[1])


def test_the_policy_says_what_the_model_says_by_itself(page, policy):
    linked = policy.folder / OWN / "model.safetensors"
    assert linked.samefile(policy.folder / "checkpoints/own/model.safetensors")
    (code,) = page.blocks("python")
    with contextlib.chdir(policy.folder), contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, {})
    said = [int(number) for number in printed.getvalue().split()]
    asked = tokenizer("qwen3").apply_chat_template(
        [{"role": "user", "content": "Open the red door."}], add_generation_prompt=True, return_tensors="pt"
    )["input_ids"]
    whole = qwen3().generate(asked, max_new_tokens=8, do_sample=False, attention_mask=torch.ones_like(asked))
    assert said == whole[0, asked.shape[1] :].tolist()


def test_adapters_are_one_more_key(suite):
    assert load_suite(suite.folder / "configs/adapted.yaml").models["own"].lora.rank == 16


def test_the_model_of_the_hub_is_the_one_in_the_kit(page, root):
    shown = yaml.safe_load(page.blocks("yaml")[2])
    whole = yaml.safe_load((root / "configs/models/qwen3-4b.yaml").read_text())
    assert shown["models"]["qwen3-4b"].items() < whole["models"]["qwen3-4b"].items()


@pytest.mark.parametrize("problem", BAD)
def test_each_sentence_about_a_template_is_said(page, problem):
    sentences = page.blocks("text")[0].splitlines()
    assert len(sentences) == len(BAD)
    other = tokenizer("qwen3").__class__(tokenizer_object=tokenizer("qwen3").backend_tokenizer, eos_token="<|im_end|>")
    other.name_or_path, other.chat_template = "checkpoints/own", BAD[problem]
    with pytest.raises(UserError, match=problem) as raised:
        read_template(other)
    assert str(raised.value) in sentences
