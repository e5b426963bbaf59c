"""DequantizeBlocks: numbers of a few bits each, packed into bytes, with a scale and a zero point for each block of neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from random import Random

from egraph.tensor.expr.index import Index, Size, index
from egraph.tensor.expr.scope import Scalar, Scope, Tensor, number, table
from egraph.tensor.expr.scope import apply as call
from egraph.tensor.ops.sampling import Sample, draw_shape
from egraph.tensor.ops.scopes import multiply, pointwise, read
from egraph.tensor.ops.sizes import at_least, refuse, same, show_shape
from egraph.tensor.ops.spec import OpSpec, Shape, Values

BITS = (2, 4, 8)
"""The allowed bits of one number; each divides the bits of a byte."""


def _shape(shapes: Sequence[Shape], a: Values) -> Shape:
    packed, scales, zeros = shapes
    if a["bits"] not in BITS:
        refuse(f"bits must be one of {', '.join(map(str, BITS))}, got {a['bits']}")
    if len(packed) < 2:
        refuse(f"the bytes {show_shape(packed)} must have an axis of blocks and one of the bytes of a block")
    a_byte = 8 // a["bits"]
    *lead, blocks, width = packed
    zero_bytes = blocks if a_byte == 1 else (blocks + a_byte - 1) // a_byte
    for name, shape, expected in (("scales", scales, (*lead, blocks)), ("zero points", zeros, (*lead, zero_bytes))):
        if len(shape) != len(expected):
            refuse(f"the {name} {show_shape(shape)} must have {len(expected)} axes")
        for axis, (left, right) in enumerate(zip(shape, expected, strict=True)):
            same(left, right, f"the {name} do not belong to the bytes {show_shape(packed)}, axis {axis}")
    before = (blocks - 1) * width * a_byte
    at_least(a["size"] - before, 1, "the last block must hold at least one of the numbers")
    at_least(before + width * a_byte - a["size"], 0, "the blocks must hold all numbers: what is left must be at least 0")
    return (*lead, a["size"])


def _number(byte: Scalar, bits: int, place: Index) -> Scalar:
    """floor(b / 2^s) - 2^bits floor(b / 2^(s + bits)),  s = bits * place"""
    value = call("to_float32", byte)
    if bits == 8:
        return value
    exponents = [bits * each for each in range(8 // bits)]
    lower, upper = (
        call("floor", multiply(value, table([Fraction(1, 2 ** (shift + more)) for shift in exponents], place))) for more in (0, bits)
    )
    return call("sub", lower, multiply(number(2**bits), upper))


def _meaning(operands: Sequence[Tensor], a: Values) -> Scope:
    """(number - zero point) * scale"""
    packed, scales, zeros = operands
    bits, a_byte = a["bits"], 8 // a["bits"]
    block: Size = packed.shape[-1] * a_byte

    def body(indices: tuple[Index, ...]) -> Scalar:
        *lead, i = indices
        of_block = i // block
        value = _number(read(packed, (*lead, of_block, index(i % block) // a_byte)), bits, i % a_byte)
        zero = _number(read(zeros, (*lead, of_block // a_byte)), bits, of_block % a_byte)
        return multiply(call("sub", value, zero), read(scales, (*lead, of_block)))

    return pointwise("i", _shape([each.shape for each in operands], a), body)


def _dtype(dtypes: Sequence[str]) -> str:
    if dtypes[1] != "float32" or dtypes[2] != "uint8":
        refuse(f"the scales must be float32 and the zero points uint8, got {', '.join(dtypes[1:])}")
    return "float32"


def _sample(random: Random) -> Sample:
    bits, lead = random.choice(BITS), draw_shape(random, 1, 2)
    blocks, width, a_byte = random.choice((1, 2, 3, 5)), random.choice((1, 2, 3, 4)), 8 // bits
    size = (blocks - 1) * width * a_byte + random.randint(1, width * a_byte)
    return ((*lead, blocks, width), (*lead, blocks), (*lead, -(-blocks // a_byte))), {"bits": bits, "size": size}


BLOCKS: tuple[OpSpec, ...] = (
    OpSpec(
        "DequantizeBlocks", 3, "unpacking", _shape, _meaning, _sample, attributes=("bits", "size"), dtype=_dtype,
        dtypes=frozenset({"uint8"}), sample_dtypes=("uint8", "float32", "uint8"),
        notes="bytes [..., blocks, bytes], scales [..., blocks], zero points packed like numbers; the lowest bits of a byte come first",
    ),
)  # fmt: skip
