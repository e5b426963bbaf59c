"""Products of bytes by the library: which it takes, on which processors, and what it computes of their int32 sums.

Sums of products are exact. What follows them in the same call is computed in float32, step by step as it is written, and
a byte at the end is rounded half to even and saturated. So sums of int32 with other int32 are not fused: float32 would
round each before they are added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from egraph.tensor import Node, placeholders, walk
from egraph.tensor.ops.dtypes import BYTES
from lower.calls.call import Anchor, Argument
from lower.targets.cpu.generator.library import processor
from lower.views import Reason

PRODUCTS = ("MatMul", "Conv")
X86_FEATURES = frozenset({"avx512_vnni", "avx_vnni", "amx_int8"})
"""Instructions that multiply bytes into int32. Without them the library goes through int16, which saturates: its sums are then wrong."""


@lru_cache(maxsize=1)
def multiplies_bytes() -> bool:
    """Return whether the library's sums of products of bytes are exact on this processor."""
    flags = next((line for line in processor() if line.startswith("flags")), "")
    return not flags or bool(X86_FEATURES & set(flags.split()))


def is_integer(fragment: Node) -> bool:
    """Return whether a fragment holds anything but float32."""
    return any(node.type.dtype != "float32" for node in walk((fragment,)))


def unsuitable(fragment: Node) -> Reason | None:
    """Return why no call of the library computes a fragment that is not of float32 alone."""
    products = [node for node in walk((fragment,)) if node.op in PRODUCTS]
    if not products or any(operand.type.dtype not in BYTES for node in products for operand in node.inputs):
        kinds = sorted({node.type.dtype for node in walk((fragment,))} - {"float32"})
        return f"the library is used for float32 and for products of bytes only, not for {', '.join(kinds)}"
    if not multiplies_bytes():
        return f"the processor has none of {', '.join(sorted(X86_FEATURES))}, without which the library's sums of bytes saturate"
    for node in walk((fragment,)):
        if node.type.dtype == "int32" and node.op not in (*PRODUCTS, "Placeholder", "Reshape", "Transpose"):
            return f"{node.op} of int32 after a product: the library would compute it in float32"
    return None


def unsuitable_arguments(fragment: Node, anchor: Anchor, arguments: Sequence[Argument]) -> Reason | None:
    """Return why the library does not take a product's operands in these roles."""
    dtypes: Mapping[int, str] = {leaf.integer("index"): leaf.type.dtype for leaf in placeholders(fragment)}
    if dtypes[arguments[1].operand] != "int8":
        return "the library multiplies by signed bytes only"
    if anchor.primitive not in ("matmul", "convolution"):
        return f"the library's {anchor.primitive} takes no bytes"
    return None
