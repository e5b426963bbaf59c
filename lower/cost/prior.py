"""The prior: the time of a kernel before it is measured, as a multiple of its roofline, by a regression on measured kernels.

A kernel is described by what it computes, never by where it stands: its work, its bytes, the length of its sums, the kinds of operators
that it fuses, and whose kernel it is. ``python -m bench.prior`` learns the weights from profile databases.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from egraph.tensor import Node, walk
from egraph.tensor.ops import OPS
from lower.roofline import Work

FILE = Path(__file__).with_name("prior.json")
FURTHEST = 6.0
"""The largest power of two by which a kernel may differ from its roofline. Kernels further off are reference implementations, which say
nothing of others."""
SMALL = 14.0
"""The binary logarithm of the bytes of a small kernel; sizes count from there."""


def described(fragment: Node, implementation: str, amount: Work) -> dict[str, float]:
    """Return the features that describe a kernel."""
    nodes = [node for node in walk((fragment,)) if node.op != "Placeholder"]
    category = [OPS[node.op].category if node.op in OPS else "other" for node in nodes]
    elements = max(1, fragment.type.elements) if fragment.type.is_static else 1
    sums, size = math.log2(1 + amount.flops / elements), math.log2(1 + amount.size_bytes) - SMALL
    convolutions = [node for node in nodes if node.op in ("Conv", "ConvTranspose")]
    is_grouped = any(dict(node.attributes).get("group", 1) != 1 for node in convolutions)
    is_first = any(dict(node.attributes).get("layout") == "NCHW" for node in convolutions)
    kind = implementation.partition("@")[0]
    values = {
        "one": 1.0, "sums": sums, "bytes": size, "arithmetic": math.log2(1 + amount.intensity), "operators": math.log2(1 + len(nodes)),
        "functions": amount.functions / (1 + amount.flops), "contracts": float(amount.contracts),
        "movements": float(category.count("movement") > 0), "reductions": float(category.count("reduction") > 0),
        "expressions": float(any(node.op == "Expression" for node in nodes)), "grouped": float(is_grouped),
        "channels first": float(is_first),
    }  # fmt: skip
    return {f"{kind} {name}": value for name, value in values.items() if value} | {name: value for name, value in values.items() if value}


@dataclass(frozen=True)
class Prior:
    """Weights of the features of kernels; the weighted sum is the power of two by which a kernel takes longer than its roofline."""

    weights: Mapping[str, float]

    @cached_property
    def libraries(self) -> frozenset[str]:
        """Return the libraries whose kernels it was learnt on."""
        return frozenset(name.partition(".")[0] for name in self.weights if "." in name)

    def factor(self, fragment: Node, implementation: str, amount: Work) -> float:
        """Return the factor by which a kernel is expected to take longer than its roofline; 1 for libraries that it was not learnt on.

        The factors of other libraries would keep kernels of a new library from being tried at all.
        """
        library, _, kernel = implementation.partition("@")[0].partition(".")
        if kernel and library not in self.libraries:
            return 1.0
        power = math.fsum(self.weights.get(name, 0.0) * value for name, value in described(fragment, implementation, amount).items())
        return float(2.0 ** max(-FURTHEST, min(FURTHEST, power)))


IGNORANT = Prior({})
"""The prior without weights: kernels take what their roofline says."""


@cache
def shipped(target: str) -> Prior:
    """Return the prior that ships for a kind of target; ``IGNORANT`` for those that it was not learnt on."""
    learnt = json.loads(FILE.read_text(encoding="utf-8"))
    return Prior(learnt["weights"]) if learnt["target"] == target else IGNORANT
