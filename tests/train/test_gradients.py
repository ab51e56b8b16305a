"""Gradients by pair kind: those of eq. 9 written out once more in float64, and those that a training computes."""

import math
from dataclasses import replace

import pytest
import torch
from stages import corridor
from train.equations import CONTEXT, STEPS, equation_9, knowing, load, random_pairs
from train.key_door import computed_in, paired, scored, sources
from train.settings import ADAPTERS, dpo_config

from coevolve.errors import UserError
from coevolve.pipeline.stages import gradients as stage
from coevolve.pipeline.stages import train
from coevolve.records.gradients import GradientReport
from coevolve.records.pairs import PairKind
from coevolve.train import dpo, gradients
from coevolve.train.dataset import cut_to_context
from coevolve.train.policy_io import TrainingRun
from coevolve.train.settings import GradientsConfig

LORA = pytest.mark.parametrize("lora", [None, ADAPTERS], ids=["full", "lora"])
CONFIG = dpo_config(**STEPS, nll="sum")


@pytest.fixture(scope="module")
def pairs(llama, other):
    """Pairs of three kinds, and the reference log-probs of another policy than the one that is trained."""
    return knowing(cut_to_context(random_pairs(9), CONTEXT).examples, other)


def measured(pairs, start, work, lora=None, limit=100, config=CONFIG, reference=None, seed=5):
    run = TrainingRun(start, work / "out", work, seed, lora)
    options = {"limit": limit, "iteration": 1, "reference": reference, "progress": lambda *_: None}
    return gradients.measure(pairs, config, run, **options)


def float64_trainer(pairs, path, lora, work):
    """A trainer whose adapters are not those that a training starts with, so that all of them have a gradient."""
    options = {"config": CONFIG, "iteration": 1, "run": TrainingRun(path, work / "out", work, 5, lora)}
    trainer = dpo.PreferenceTrainer(pairs, list(range(len(pairs))), model=load(path), reference=None, **options)
    with torch.no_grad():
        for weight in trainer.model.parameters():
            weight += 0.02 * torch.randn(weight.shape, dtype=weight.dtype) * weight.requires_grad
    return trainer


def of_equation_9(trainer, start, reference, pairs, lora):
    """The gradient of the sum over the pairs, by automatic differentiation of the plain loops."""
    model = load(start, lora)
    model.load_state_dict(trainer.model.state_dict())
    loss = len(pairs) * equation_9(model, reference, pairs, CONFIG.beta[0], CONFIG.nll)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    return torch.cat([gradient.flatten() for gradient in torch.autograd.grad(loss, weights, materialize_grads=True)])


def flat(gradient):
    return torch.cat([tensor.flatten() for tensor in gradient])


@pytest.mark.usefixtures("exact_norms")
@LORA
def test_each_kinds_gradient_and_its_parts_are_those_of_equation_9(pairs, llama, other, lora, tmp_path):
    trainer, reference = float64_trainer(pairs, llama, lora, tmp_path), load(other)
    sums = gradients.gradient_sums(trainer, [pair.kind for pair in pairs], 2, lambda *_: None)
    assert list(sums) == [PairKind.EXPERT_TARGET, PairKind.EXPERT_FAILURE, PairKind.FAILURE_FAILURE]
    for kind, of_kind in sums.items():
        first, second, _ = [pair for pair in pairs if pair.kind is kind]
        assert (of_kind.pairs, of_kind.measured_pairs) == (3, 2)
        for part, drop in (("dpo", {"lambda_sft": 0.0}), ("sft", {"lambda_dpo": 0.0}), ("loss", {})):
            used = [replace(pair, **drop) for pair in (first, second)]
            expected = of_equation_9(trainer, llama, reference, used, lora)
            torch.testing.assert_close(flat(of_kind.parts[part]), expected, rtol=1e-9, atol=1e-9)
            total = of_kind.total_norm(part)
            assert total == pytest.approx(float(expected.norm()) / 2 * 3), "of the three pairs, two are measured"
        assert bool(flat(of_kind.parts["sft"]).any()) == (kind is not PairKind.FAILURE_FAILURE)


def length_of_the_sum(point):
    """The norm of the sum over kinds, from the norms and cosines of a file."""
    norms = {kind.kind: kind.loss.total_norm for kind in point.kinds}
    squares = [norm**2 for norm in norms.values()]
    products = [2 * norms[each.first] * norms[each.second] * each.loss for each in point.cosines]
    return math.sqrt(math.fsum(squares + products))


@LORA
def test_norms_and_cosines_are_those_of_the_trainings_first_step(pairs, llama, lora, tmp_path):
    config = dpo_config(**STEPS, nll="sum", batch_size=10)
    run = TrainingRun(llama, tmp_path / "policy", tmp_path / "work", 5, lora)
    (step,) = dpo.run_dpo(pairs, config, run, iteration=1, reference=None).history
    start, end = (measured(pairs, policy, tmp_path, lora, config=config) for policy in (llama, run.out))
    assert length_of_the_sum(start) / len(pairs) == pytest.approx(step["grad_norm"], rel=1e-4)
    assert length_of_the_sum(end) != pytest.approx(length_of_the_sum(start), rel=0.02)
    assert math.fsum(kind.loss.share for kind in start.kinds) == pytest.approx(1.0)
    assert [kind.sft.share for kind in start.kinds][-1] == 0.0 and start.kinds[-1].dpo_sft_cosine is None
    for kind in start.kinds[:2]:
        squares = kind.dpo.mean_norm**2 + kind.sft.mean_norm**2
        cosine = (kind.loss.mean_norm**2 - squares) / (2 * kind.dpo.mean_norm * kind.sft.mean_norm)
        assert kind.dpo_sft_cosine == pytest.approx(cosine, abs=1e-3)
        assert kind.loss.total_norm == pytest.approx(3 * kind.loss.mean_norm)


def test_a_reference_policy_gives_the_numbers_of_its_log_probs(pairs, llama, other, tmp_path):
    plain = [replace(pair, reference_logps=None) for pair in pairs]
    known, on_the_fly = measured(pairs, llama, tmp_path), measured(plain, llama, tmp_path, reference=other)
    for one, two in zip(known.kinds, on_the_fly.kinds, strict=True):
        assert two.loss.total_norm == pytest.approx(one.loss.total_norm, rel=1e-4)


def test_dropout_is_off_and_no_pair_has_no_gradient(pairs, llama, tmp_path):
    wet = ADAPTERS.model_copy(update={"dropout": 0.5})
    assert measured(pairs, llama, tmp_path, wet) == measured(pairs, llama, tmp_path, ADAPTERS)
    assert measured([], llama, tmp_path).kinds == ()


def test_measured_pairs_are_evenly_spaced():
    assert gradients.evenly_spaced(range(10), 4) == [0, 2, 5, 7]
    assert gradients.evenly_spaced([3, 8], 4) == [3, 8]


@pytest.fixture
def here(base, tmp_path):
    """A stage's job with the pairs, their scores and the sections of the key-door world, with adapters."""
    start = base / "policy/policy.json"
    scores = scored(tmp_path, start, **sources(base))

    def job(name, limit=100, **inputs):
        sections = computed_in(None, gradients=GradientsConfig(pairs=limit))
        sections.models["tiny"].lora = ADAPTERS
        given = {"pairs": paired(base), "scores": scores, "start": start, **inputs}
        return corridor.job(name, tmp_path / name, sections, **given)

    return job


def test_the_stage_measures_before_and_after_the_training_of_its_branch(here, tmp_path):
    (step,) = train.run(here("train"), tmp_path / "policy").history
    (tmp_path / "out").mkdir()
    notes = stage.run(here("gradients", policy=tmp_path / "policy/policy.json"), tmp_path / "out")
    report = GradientReport.model_validate_json((tmp_path / "out/gradients.json").read_bytes())
    assert notes == {"measured_pairs": 3} and report.adapters
    (start,), (end,) = report.start.kinds, report.end.kinds
    assert start.loss.mean_norm == pytest.approx(step["grad_norm"], rel=1e-4), "with the adapters of the training"
    assert end.loss.mean_norm != pytest.approx(start.loss.mean_norm, rel=1e-3)


def test_a_stage_without_a_number_of_pairs_is_refused(here, tmp_path):
    with pytest.raises(UserError, match=r"`gradients\.pairs` is null; set it to the number of pairs"):
        stage.run(here("gradients", limit=None), tmp_path / "out")
