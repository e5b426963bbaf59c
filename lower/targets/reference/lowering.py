"""How programs become plans for the reference: each kernel is its fragment as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from egraph.tensor import Implementation, Node, Target, format_fragment, walk
from egraph.tensor.ops import OPS
from lower.candidates.eoperator_tiles import eoperator_tiles
from lower.candidates.tile import Tile, Tiling
from lower.targets import Generator, Lowering

EVALUATED = frozenset({"bool", *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)), "float16", "float32", "float64"})
"""Element types whose values float64 can hold, except the largest integers, which the device refuses."""


def supports(fragment: Node) -> str | None:
    """Return why a fragment cannot be evaluated; None if it can."""
    for node in walk((fragment,)):
        if node.op != "Placeholder" and node.op not in OPS:
            return f"{node.op} has no meaning to evaluate"
        if not node.type.is_static or node.type.dtype not in EVALUATED:
            return f"{node.type} has unknown sizes, or elements that float64 does not hold"
    return None


def reference_tiles(
    tiling: Tiling, supports: Callable[[Node], str | None], implementation: Implementation
) -> Iterator[tuple[int, Tile]]:
    """Yield every operator as a kernel of its own, and the fusions of generated kernels."""
    for number, nodes in tiling.frozen.classes.items():
        for node in nodes:
            fragment = tiling.over_leaves(number, node)
            if number not in tiling.leaves and node.op in OPS and supports(fragment) is None:
                yield number, Tile(fragment, (node,), implementation)
    yield from eoperator_tiles(tiling, supports, implementation)


TARGET = Target("reference")
EVALUATOR = Implementation.parse("reference", TARGET)
LOWERING = Lowering(
    TARGET,
    EVALUATOR,
    Generator(reference_tiles, supports, lambda fragment: frozenset(), lambda request: {"fragment": format_fragment(request.fragment)}),
    libraries=(),
    contraction=EVALUATOR,
)
