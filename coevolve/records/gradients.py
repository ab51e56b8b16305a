"""The gradients of pair kinds."""

from typing import Literal

from coevolve.records.base import SCHEMA_VERSION, Record
from coevolve.records.pairs import PairKind


class GradientSize(Record):
    """Size of a gradient over the pairs of one kind.

    `mean_norm`: L2 norm of the mean gradient of a measured pair. `total_norm`: the same times the number of all pairs,
    an estimate if not all are measured. `share`: of the sum of the total norms over kinds, None if that is 0.
    """

    mean_norm: float
    total_norm: float
    share: float | None


class KindGradient(Record):
    """The gradient of eq. 9 over the `pairs` pairs of a kind; `measured_pairs` of them, evenly spaced, are measured.

    `loss` is the whole of eq. 9, `dpo` its preference part with lambda_DPO, `sft` its NLL part with lambda_SFT;
    `dpo_sft_cosine` is the cosine between these two. A cosine with a gradient of 0 is None.
    """

    kind: PairKind
    pairs: int
    measured_pairs: int
    loss: GradientSize
    dpo: GradientSize
    sft: GradientSize
    dpo_sft_cosine: float | None


class GradientCosine(Record):
    """The cosines between the gradients of two pair kinds, of the whole loss and of each part."""

    first: PairKind
    second: PairKind
    loss: float | None
    dpo: float | None
    sft: float | None


class PointGradients(Record):
    """The gradients of the pair kinds at one policy, with respect to its trainable parameters."""

    trainable_parameters: int
    kinds: tuple[KindGradient, ...]
    cosines: tuple[GradientCosine, ...]


class GradientReport(Record):
    """`gradients.json`: the gradients at the policy that a preference training starts from and at the trained one.

    `adapters`: the parameters are those of new adapters on either policy, else all weights.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    adapters: bool
    start: PointGradients
    end: PointGradients
