"""Shapes of a pass in which every token gets the same bits, found by trial.

The last bits of a row of a matrix product do not depend on the other rows, but they may depend on the shape of the
product: a library chooses its kernel, and so the order of additions, by the number of rows. Which numbers of rows give
equal bits depends on the machine, the number of threads and the layout of the weights. The same holds for the number of
positions that attention spans: masked positions have weight 0, and only the order of the others' sum can differ.
"""

import bisect
from collections.abc import Callable, Iterable, Sequence

import torch
from torch.nn.functional import linear, scaled_dot_product_attention

#: Numbers of rows to choose from.
ROWS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256)
_STEP = 64
_MAX_CANDIDATES = 16
_DISTINCT = 3

#: From rows [N, in] to rows [N, out].
RowFunction = Callable[[torch.Tensor], torch.Tensor]


def exact_rows(functions: Iterable[tuple[RowFunction, int]], largest: int, like: torch.Tensor) -> list[int]:
    """Ascending numbers of rows for which the `functions` give a row the same bits as among the most rows.

    Each function comes with the size of its input rows; a linear layer is tried as :func:`cancelling`. The last number
    is the first of `ROWS` that is not less than `largest`, or `largest` itself. `like` has the device and type of the
    rows; on a device other than a CPU, where bits are not promised, all numbers.
    """
    numbers = [n for n in ROWS if n < largest]
    numbers.append(next((n for n in ROWS if n >= largest), largest))
    if like.device.type == "cpu":
        for function, size in functions:
            tried = cancelling(function) if isinstance(function, torch.nn.Linear) else function
            numbers = _same_rows(tried, size, numbers, like)
    return numbers


def cancelling(layer: torch.nn.Linear) -> RowFunction:
    """The linear layer with weights of the same layout whose products with the rows of :func:`exact_rows` cancel.

    What is left is the rounding of the sums, so another order of additions shows in nearly every result. With ordinary
    weights it is lost where results are rounded to bfloat16: a few in 100,000 differ.
    """
    order, half = _halves(layer.in_features)
    values = torch.randn((layer.out_features, half), generator=torch.Generator().manual_seed(1)).to(layer.weight.dtype)
    weight = torch.zeros_like(layer.weight)  # keeps the strides
    weight[:, order[:half]] = values
    weight[:, order[half : 2 * half]] = -values
    bias = None if layer.bias is None else torch.zeros_like(layer.bias)
    return lambda rows: linear(rows, weight, bias)


def exact_spans(
    heads: tuple[int, int], head_dim: int, width: int, queries: int, scale: float, like: torch.Tensor
) -> list[int]:
    """Ascending numbers of positions over which attention of `queries` tokens is exact; the last is the `width`.

    `heads`: the numbers of query heads and of KV heads. `like` and other devices as in `exact_rows`.
    """
    step = -(-width // (_STEP * _MAX_CANDIDATES)) * _STEP
    candidates = range(step, width, step)
    if like.device.type != "cpu":
        return [*candidates, width]
    generator = torch.Generator().manual_seed(0)
    query = torch.randn((1, heads[0], queries, head_dim), generator=generator).to(like.dtype)
    keys, values = torch.randn((2, 1, heads[1], width, head_dim), generator=generator).to(like.dtype)

    def attended(start: int, span: int) -> torch.Tensor:
        mask = torch.arange(span) <= torch.arange(start, start + queries)[:, None]
        return attend(query, keys[:, :, :span], values[:, :, :span], mask, scale)

    def same(span: int) -> bool:
        starts = {max(0, span - queries), max(0, span - queries - 7)}
        return all(torch.equal(attended(start, span), attended(start, width)) for start in starts)

    return [*filter(same, candidates), width]


def attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """Attention of `query` [R, heads, C, head_dim] to `keys` and `values` [R, KV heads, span, head_dim]."""
    grouped = query.shape[1] != keys.shape[1]
    return scaled_dot_product_attention(query, keys, values, mask, scale=scale, enable_gqa=grouped)


def shortest(numbers: Sequence[int], length: int) -> int:
    """The smallest of the ascending `numbers` that is not less than `length`."""
    return numbers[bisect.bisect_left(numbers, length)]


def _same_rows(function: RowFunction, size: int, numbers: Sequence[int], like: torch.Tensor) -> list[int]:
    """The `numbers` of rows for which `function` gives every row the bits that it has among the most rows."""
    order, half = _halves(size)
    rows = torch.randn((_DISTINCT, size), generator=torch.Generator().manual_seed(0)).to(like.dtype)
    rows[:, order[half : 2 * half]] = rows[:, order[:half]]
    cycle = torch.arange(numbers[-1]) % _DISTINCT
    expected = function(rows[cycle])[:_DISTINCT]
    return [n for n in numbers if n == numbers[-1] or torch.equal(function(rows[cycle[:n]]), expected[cycle[:n]])]


def _halves(size: int) -> tuple[torch.Tensor, int]:
    """The places of a row in a random order, and how many of them are its first half; an odd one is in neither."""
    return torch.randperm(size, generator=torch.Generator().manual_seed(2)), size // 2
