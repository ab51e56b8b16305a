"""Equations 2, 5, 7 and 9 with plain loops in float64, pairs to train on, and what a training does step by step."""

from dataclasses import dataclass, field, replace

import numpy as np
import peft
import torch
from transformers import TrainerCallback

from coevolve.chat.chat_template import TokenizedTrajectory
from coevolve.policies import loading
from coevolve.records.pairs import PairKind
from coevolve.train import policy_io
from coevolve.train import trainer as training
from coevolve.train.dataset import TokenizedPair

#: Some sides of the pairs are longer.
CONTEXT = 24
#: A rate and a beta for each iteration; gradients are not clipped, so that they can be compared.
STEPS = {"learning_rate": [1e-2, 1e-3], "beta": [0.1, 0.5], "max_grad_norm": 1e9}


def log_likelihood(model, row):
    """Eq. 2."""
    ids = torch.tensor([row.input_ids])
    logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0]
    total = torch.zeros((), dtype=torch.float64)
    for k in range(1, len(row.input_ids)):
        if row.action_mask[k]:
            total = total + torch.log_softmax(logits[k - 1], dim=-1)[row.input_ids[k]]
    return total


def equation_9(model, reference, pairs, beta, nll):
    """The mean over pairs; with weights (1, 0) it is eq. 7."""
    total = torch.zeros((), dtype=torch.float64)
    for pair in pairs:
        chosen, rejected = log_likelihood(model, pair.chosen), log_likelihood(model, pair.rejected)
        with torch.no_grad():
            ref_chosen, ref_rejected = log_likelihood(reference, pair.chosen), log_likelihood(reference, pair.rejected)
        ratio = beta * (chosen - ref_chosen) - beta * (rejected - ref_rejected)
        per_token = sum(pair.chosen.action_mask[1:]) if nll == "mean" else 1
        total = total - pair.lambda_dpo * torch.log(1 / (1 + torch.exp(-ratio))) - pair.lambda_sft * chosen / per_token
    return total / len(pairs)


def equation_5(model, rows, nll=None):
    """Summed over trajectories, per action token; with `nll` "sum" per trajectory."""
    items = len(rows) if nll == "sum" else sum(sum(row.action_mask[1:]) for row in rows)
    return -sum(log_likelihood(model, row) for row in rows) / items


@dataclass
class Step:
    weights: dict
    loss: float = 0.0
    gradients: dict = field(default_factory=dict)


class Witness(TrainerCallback):
    """Takes down, step by step, the weights, the loss in full precision, and the gradients the optimiser gets."""

    def __init__(self, trainer):
        self.steps, self.trainer, self.training_step = [], trainer, trainer.training_step
        trainer.training_step = self.watched
        trainer.add_callback(self)

    def watched(self, *args, **kwargs):
        loss = self.training_step(*args, **kwargs)
        self.steps[-1].loss += loss.item()
        return loss

    def on_step_begin(self, args, state, control, **_):
        self.steps.append(Step({k: v.clone() for k, v in self.trainer.model.state_dict().items()}))

    def on_pre_optimizer_step(self, args, state, control, **_):
        named = self.trainer.model.named_parameters()
        self.steps[-1].gradients = {name: p.grad.clone() for name, p in named if p.requires_grad}


def load(path, lora=None):
    model = loading.load_model(path, dtype=torch.float64)
    return peft.get_peft_model(model, policy_io.adapter_config(lora, model)) if lora else model


def observe(trainer, work):
    witness = Witness(trainer)
    training.train(trainer, work)
    return witness.steps


def random_row(rng, low, high):
    """Several turns: prompt, then actions and observations of random lengths."""
    length = int(rng.integers(low, high))
    mask = [0] * 4 + [int(bit) for bit in np.repeat(rng.integers(0, 2, length), rng.integers(1, 4, length))][
        : length - 4
    ]
    mask[5:7] = [1, 1]
    return TokenizedTrajectory(tuple(rng.integers(5, 300, len(mask)).tolist()), tuple(mask))


def random_pairs(n=7, seed=0):
    """Mixed kinds with mixed weights; some sides are longer than `CONTEXT`, and some begin alike."""
    rng = np.random.default_rng(seed)
    kinds = [
        (PairKind.EXPERT_TARGET, 0.5, 0.5),
        (PairKind.EXPERT_FAILURE, 0.3, 0.7),
        (PairKind.FAILURE_FAILURE, 1.0, 0.0),
    ]
    pairs = []
    for index in range(n):
        kind, lambda_dpo, lambda_sft = kinds[index % 3]
        chosen, rejected = random_row(rng, 10, 40), random_row(rng, 10, 40)
        alike = int(rng.integers(0, 10))
        rejected = TokenizedTrajectory(chosen.input_ids[:alike] + rejected.input_ids[alike:], rejected.action_mask)
        pairs.append(TokenizedPair(kind, chosen, rejected, lambda_dpo, lambda_sft))
    return pairs


def knowing(pairs, path):
    """The pairs with the log-probs of their sides under the policy in `path`."""
    model = load(path)
    with torch.no_grad():
        return [
            replace(pair, reference_logps=(all_logps(model, pair.chosen), all_logps(model, pair.rejected)))
            for pair in pairs
        ]


def all_logps(model, row):
    """Of every token but the first."""
    logps = torch.log_softmax(model(input_ids=torch.tensor([row.input_ids])).logits[0, :-1], dim=-1)
    return logps[torch.arange(len(row.input_ids) - 1), list(row.input_ids[1:])]
