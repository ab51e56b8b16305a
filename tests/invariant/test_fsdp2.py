"""PyTorch's FSDP2 on two processes, by hand: accelerate refuses it on CPUs, the batches and the head do not mind it."""

import os
import socket

import pytest
import torch
from torch import multiprocessing
from torch.distributed import barrier, init_process_group
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from trl.trainer.utils import add_fused_lm_head

from coevolve.chat.chat_template import TokenizedTrajectory
from coevolve.records.pairs import PairKind
from coevolve.train import policy_io, varlen_attention
from coevolve.train.collate import PairCollator, token_logps
from coevolve.train.dataset import TokenizedPair
from coevolve.train.online import Player
from coevolve.train.policy_io import TrainingRun

PROCESSES = 2
#: The second process has no pair: it must take part all the same.
SLOTS = ([0, 1], [-1])


def some_pairs():
    alike = tuple(range(20, 32))
    rows = [TokenizedTrajectory((*alike, *range(40 + k, 52 + 2 * k)), (0,) * 8 + (1,) * (16 + k)) for k in range(4)]
    return [TokenizedPair(PairKind.EXPERT_TARGET, rows[k], rows[k + 1], 0.5, 0.5) for k in (0, 2)]


def loss_of(model, rank, fused):
    batch = PairCollator(some_pairs(), "shared")(SLOTS[rank])
    return token_logps(model, batch, tiled=fused).square().sum()


def work(rank, path, port, fused, folder):
    torch.set_num_threads(1)
    init_process_group("gloo", init_method=f"tcp://localhost:{port}", rank=rank, world_size=PROCESSES)
    model = varlen_attention.enable(policy_io.load(path))
    if fused:
        add_fused_lm_head(model)
    mesh = init_device_mesh("cpu", (PROCESSES,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    loss_of(model, rank, fused).backward()
    player = Player(TrainingRun(path, folder, folder, seed=1), torch.float32)
    with torch.no_grad():
        for weight in model.parameters():
            weight *= 2
    player.refresh(model)  # from the parts of all ranks
    torch.save(player.causal_lm.state_dict(), folder / f"player{rank}")
    gradients = {name: weight.grad.full_tensor() for name, weight in model.named_parameters()}
    if rank == 0:
        torch.save(gradients, folder / "gradients")
    barrier()
    os._exit(0)  # gloo's threads sometimes abort a process that takes itself down in order


@pytest.mark.slow
@pytest.mark.parametrize("fused", [False, True], ids=["plain head", "tiled head"])
@pytest.mark.parametrize("policy", ["llama", "qwen"])
def test_gradients_are_those_of_one_process_and_the_player_gets_whole_weights(policy, fused, request, tmp_path):
    path = request.getfixturevalue(policy)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(work, (path, port, fused, tmp_path), nprocs=PROCESSES)
    model = varlen_attention.enable(policy_io.load(path))
    (loss_of(model, 0, fused=False) / PROCESSES).backward()
    found = torch.load(tmp_path / "gradients")
    for name, weight in model.named_parameters():
        torch.testing.assert_close(found[name], weight.grad, rtol=1e-4, atol=1e-4 * weight.grad.abs().max().item())
        assert weight.grad.abs().max() > 0
        for rank in range(PROCESSES):
            assert torch.equal(torch.load(tmp_path / f"player{rank}")[name], 2 * weight)
