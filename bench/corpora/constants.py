"""Constant tensors made of core operators: numbers, identity matrices, kernels that copy or average.

There is no operator without operands, so a constant is the padding beside one element of any tensor, the seed.
"""

from __future__ import annotations

from bench.corpora.taso_values import Constant, Shape, refuse
from egraph.rule import Tensor
from egraph.rule_operators import expand, pad, reduce_mean, reshape, slice_


def number(seed: Tensor, value: float) -> Tensor:
    """Return a number as a tensor without axes: the padding beside one element of any tensor."""
    unit = seed if seed.rank == 0 else slice_(seed, starts=(0,) * seed.rank, ends=(1,) * seed.rank, steps=(1,) * seed.rank)
    padded = pad(reshape(unit, shape=(1,)), before=(1,), after=(0,), mode="constant", value=float(value))
    return reshape(slice_(padded, starts=(0,), ends=(1,), steps=(1,)), shape=())


def filled(seed: Tensor, value: float, shape: Shape) -> Tensor:
    """Return a tensor of one number."""
    return expand(number(seed, value), shape=tuple(shape))


def centred(x: Tensor, kernel: Shape) -> Tensor:
    """Return a convolution weight padded with zeros around its centre: floor((k2 - k1) / 2) before."""
    before, after = [0, 0], [0, 0]
    for have, want in zip(x.shape[2:], kernel, strict=True):
        if have > want:
            refuse("enlarge: the kernel is larger already")
        odd = have % 2 == want % 2  # asked, so that both sizes are known as even or odd
        low = (want - have) // 2 if odd else (want - have - 1) // 2
        before.append(low)
        after.append(want - have - low)
    return pad(x, before=tuple(before), after=tuple(after), mode="constant", value=0.0)


def identity_matrix(seed: Tensor, size: int) -> Tensor:
    """Return I: rows of a one and ``size`` zeros, written without gaps, have the ones on the diagonal."""
    row = pad(filled(seed, 1.0, (size, 1)), before=(0, 0), after=(0, size), mode="constant", value=0.0)
    flat = slice_(reshape(row, shape=(size * (size + 1),)), starts=(0,), ends=(size * size,), steps=(1,))
    return reshape(flat, shape=(size, size))


def identity_kernel(seed: Tensor, kernel: Shape) -> Constant:
    """Return the convolution weight that copies every channel: dense where it meets a dense weight, else one tap per channel."""

    def build(shape: Shape) -> Tensor:
        outputs, width = shape[0], shape[1]
        if isinstance(width, int) and width == 1:
            taps = filled(seed, 1.0, (outputs, 1, 1, 1))
        else:
            if outputs != width:
                refuse("the identity kernel has as many outputs as inputs")
            taps = reshape(identity_matrix(seed, outputs), shape=(outputs, outputs, 1, 1))
        return centred(taps, kernel)

    return Constant(build)


def pooling_kernel(seed: Tensor, kernel: Shape) -> Constant:
    """Return the weight that averages every channel: 1 / (kh kw), the mean of a kernel with a single one."""

    def build(shape: Shape) -> Tensor:
        if shape[1] != 1:
            refuse("the pooling kernel has one input channel a group")
        mean = reduce_mean(centred(filled(seed, 1.0, (shape[0], 1, 1, 1)), kernel), axes=(2, 3))
        return expand(mean, shape=(shape[0], 1, *kernel))

    return Constant(build)
