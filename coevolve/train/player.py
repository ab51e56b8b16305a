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

    Its weights are those of the last `refresh`. `start`: the sha256 of the policy that training starts from. The copy
    is loaded before the launch divides models over the ranks.
    """

    def __init__(self, run: TrainingRun, dtype: torch.dtype, start: str) -> None:
        self._start = start
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
        for name, weight in model.named_parameters():
            if weight.requires_grad:
                copies = copies or dict(self._model.to(weight.device).named_parameters())
                with _whole(weight) as whole:
                    copies[name.replace(_RECOMPUTED, "")].copy_(whole)

    def digest(self) -> str:
        """sha256 over the weights that are trained, which names the policy at this step."""
        frozen = {name for name, weight in self._trainable() if not weight.requires_grad}
        digest = hashlib.sha256(self._start.encode() if frozen else b"")
        for name, weight in self._model.state_dict().items():
            if name not in frozen:
                digest.update(name.encode() + weight.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def _trainable(self) -> Iterator[tuple[str, Any]]:
        named: Iterator[tuple[str, Any]] = self._model.named_parameters(remove_duplicate=False)
        return named


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
