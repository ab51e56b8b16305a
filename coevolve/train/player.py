"""The policy that plays while another copy of it is trained."""

import contextlib
import hashlib
from collections.abc import Iterator
from typing import Any

import torch
from accelerate.utils import is_peft_model  # type: ignore[import-untyped]
from torch.distributed.tensor import DTensor

from coevolve import seeds
from coevolve.policies import loading
from coevolve.train import policy_io
from coevolve.train.policy_io import TrainingRun

#: In the names of weights whose activations FSDP recomputes.
_RECOMPUTED = "_checkpoint_wrapped_module."


class Player:
    """A copy of the policy in training that only plays: whole on every rank, in `dtype`, without dropout.

    Its weights are those of the last `refresh`. It is loaded before the launch divides models over the ranks.
    """

    def __init__(self, run: TrainingRun, dtype: torch.dtype) -> None:
        model = loading.load_model(run.start, dtype)
        if run.lora:
            with seeded(run.seed, "adapters"):  # replaced by the trained ones
                model = policy_io.add_adapters(model, run.lora).eval()
        self._model = model

    @property
    def causal_lm(self) -> Any:
        """The causal language model, without the wrapper of its adapters if it has any."""
        return self._model.get_base_model() if is_peft_model(self._model) else self._model

    @torch.no_grad()
    def refresh(self, model: Any) -> None:
        """Take the trained weights of `model`; where they are divided over ranks, all ranks call this together."""
        copies: Any = None
        for name, weight in _trained(model):
            copies = copies or dict(self._model.to(weight.device).named_parameters())
            copies[name].copy_(weight)


@torch.no_grad()
def digest(model: Any, start: str) -> str:
    """Names the policy in training by its weights, which all ranks that hold a part of them read together.

    It is the sha256 of `start`, that of the policy that training starts from, and of a hash of each row of the weights
    that are trained. Rows are hashed where they are: 27 GB on a GPU take less than copying them to the CPU.
    """
    whole = hashlib.sha256(start.encode())
    for name, weight in _trained(model):
        whole.update(name.encode() + torch.hash_tensor(weight, dim=-1).cpu().numpy().tobytes())
    return whole.hexdigest()


def _trained(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights that are trained, whole, by their names in a model that no launch divides."""
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            with _whole(weight) as whole:
                yield name.replace(_RECOMPUTED, ""), whole


@contextlib.contextmanager
def _whole(weight: torch.Tensor) -> Iterator[torch.Tensor]:
    """The whole of a weight that ZeRO-3 or FSDP divides over the ranks."""
    if hasattr(weight, "ds_id"):
        import deepspeed  # type: ignore[import-untyped]  # an extra of the package

        with deepspeed.zero.GatheredParameters([weight]):
            yield weight
    else:
        yield weight.full_tensor() if isinstance(weight, DTensor) else weight


@contextlib.contextmanager
def seeded(seed: int, *names: str | int) -> Iterator[None]:
    """Derive torch's random numbers (dropout, new adapters) from `seed` inside the block; restore its state after."""
    # Adapters are made on the CPU, before a process has chosen its device.
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seeds.derive(seed, *names))
        yield
