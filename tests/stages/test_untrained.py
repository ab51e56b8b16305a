"""The chat template of a base model that is a checkpoint."""

import pytest
from stages import corridor
from templates.models import qwen3, tokenizer

from coevolve.config.loading import load_suite
from coevolve.config.models import ModelConfig
from coevolve.pipeline.stages import untrained
from coevolve.policies.loading import load_tokenizer
from coevolve.storage import policy_dir


def test_the_policy_has_the_configured_template_and_the_checkpoint_keeps_its_own(tmp_path):
    qwen3().save_pretrained(tmp_path / "own")
    tokenizer("qwen3").save_pretrained(tmp_path / "own")
    own = load_tokenizer(tmp_path / "own").chat_template
    for case, (keys, template) in enumerate(
        (
            ({}, own),
            ({"chat_template": "{{ messages }}"}, "{{ messages }}"),
        )
    ):
        out = tmp_path / f"policy{case}"
        out.mkdir()
        model = ModelConfig(label="Own", context=512, path=str(tmp_path / "own"), parameters=1e5, **keys)
        untrained.run(corridor.job("untrained", tmp_path / f"job{case}", corridor.suite(models={"tiny": model})), out)
        assert load_tokenizer(out).chat_template == template
        assert policy_dir.describe(out).sha256 == policy_dir.digest(out)
    assert load_tokenizer(tmp_path / "own").chat_template == own
    (tmp_path / "own/chat_template.jinja").unlink()  # as of older checkpoints and of base models
    (tmp_path / "bare").mkdir()
    job = corridor.job("untrained", tmp_path / "job", corridor.suite(models={"tiny": model}))
    untrained.run(job, tmp_path / "bare")
    assert load_tokenizer(tmp_path / "bare").chat_template == "{{ messages }}"


@pytest.mark.parametrize("suite", ["agent_data", "reviewer"])
def test_models_that_think_by_default_are_started_after_an_empty_thought(suite):
    """Whose turns of 256 tokens would otherwise end inside the thought."""
    (model,) = load_suite(suite).models.values()
    thinker = tokenizer("qwen3")
    messages = [{"role": "user", "content": "Go."}, {"role": "assistant", "content": "Done."}]
    prompt = thinker.apply_chat_template(
        messages[:1], chat_template=model.chat_template, add_generation_prompt=True, tokenize=False
    )
    assert prompt.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    history = thinker.apply_chat_template(messages, chat_template=model.chat_template, tokenize=False)
    assert history == prompt + "Done.<|im_end|>\n"
