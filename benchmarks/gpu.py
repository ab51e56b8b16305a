"""The part of the benchmarks that wants one GPU, in one table each, in minutes. Not run here: there was no GPU.

    python benchmarks/gpu.py

1. `coevolve.train.varlen_attention`: PyTorch's kernel against one segment at a time, forward and backward.
2. DPO on pairs of 4,096 tokens a side, a Llama of 1.1 billion random weights: TRL's defaults, and the kit's layouts.
   The goals: an MFU (6 N operations a token against the data sheet) of 45 %, and twice the tokens per second of TRL.
3. Rollout of 64 episodes at once with kept keys and values, against one after the other re-encoded.

`--small` runs the second and third part with tiny shapes, on a CPU too: it tests this script, not a machine.
"""

from __future__ import annotations

import argparse

import rollout
import torch
import train
from tabulate import tabulate

from coevolve.train import varlen_attention

#: TinyLlama's: 1.1 billion parameters with as many heads for keys as for queries.
SHAPE = (2048, 22, 32, 5632, 32000)
#: bfloat16 without sparsity, as the data sheet of H100 and H200 (SXM) has it.
PEAK = 989e12
LARGE = train.Setting(SHAPE, pairs=16, length=4096, alike=0.3, batch=2, epochs=3, threads=8, peak=PEAK)
SMALL = train.Setting((64, 2, 2, 128, 900), pairs=8, length=96, alike=0.3, batch=2, epochs=3, threads=1, peak=None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="tiny shapes, also on a CPU")
    small, on_gpu = parser.parse_args().small, torch.cuda.is_available()
    if not (small or on_gpu):
        parser.error("PyTorch sees no GPU here; `--small` tests the script without one.")
    if on_gpu:
        print(f"{torch.cuda.get_device_name()}: attention differs by {difference():.1e} (bfloat16 rounds at 8e-3)\n")
    setting = SMALL if small else LARGE
    print(tabulate(train.table(train.measure(setting), setting), headers=train.HEADERS), "\n")
    shape = rollout.Shape(*setting.shape)
    where = {"device": "cuda", "dtype": "bfloat16"} if on_gpu else {}
    episodes = 4 if small else 64
    print(tabulate(rollout.measure(shape, episodes=episodes, envs=episodes, baseline=4, **where), headers="keys"))


def difference() -> float:
    """The largest difference of what the kernel and one stretch at a time give, and of their gradients."""
    generator = torch.Generator("cuda").manual_seed(0)
    # The second stretch goes on after 200 tokens of the first.
    ends = [torch.tensor(side, dtype=torch.int32).cuda() for side in ((0, 700, 1000, 1001), (0, 700, 1200, 1201))]
    index = torch.cat([torch.arange(700), torch.arange(200), torch.arange(700, 1000), torch.tensor([1000])]).cuda()
    states = [torch.randn(1, heads, 1001, 64, device="cuda", generator=generator) for heads in (8, 4, 4)]
    found = []
    for dtype in (torch.bfloat16, torch.float32):
        query, key, value = own = [state.to(dtype).requires_grad_() for state in states]
        seen, _ = varlen_attention.attend(
            torch.nn.Module(),
            query,
            key,
            value,
            None,
            scaling=0.125,
            cu_seq_lens_q=ends[0],
            cu_seq_lens_k=ends[1],
            max_length_q=700,
            max_length_k=700,
            key_index=index,
        )
        found.append([seen.float(), *(gradient.float() for gradient in torch.autograd.grad(seen.float().sum(), own))])
    return max((ours - theirs).abs().max().item() for ours, theirs in zip(*found, strict=True))


if __name__ == "__main__":
    main()
