"""Derivations over a spread of signatures: no program of the golden list is lost, and no search sees more states than listed."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from bench.searches import convolution
from egraph.derive.search import derive, search
from egraph.derive.targets import BAND, TARGETS
from egraph.tensor import Node, walk
from egraph.tensor.ops.reference import meaning
from tests.support.paths import GOLDEN

EXPECTED = GOLDEN / "derivations.json"
TRANSPOSED = "ConvTranspose"
SPREAD: dict[str, Callable[[], Node]] = {
    "3x3": lambda: convolution((1, 64, 28, 28), (64, 64, 3, 3), pads=(1,) * 4),
    "5x5": lambda: convolution((1, 16, 28, 28), (16, 16, 5, 5), pads=(2,) * 4),
    "1x7": lambda: convolution((1, 64, 17, 17), (64, 64, 1, 7), pads=(0, 3, 0, 3)),
    "7x7 stride 2": lambda: convolution((1, 3, 224, 224), (64, 3, 7, 7), pads=(3,) * 4, strides=(2, 2)),
    "grouped 3x3": lambda: convolution((1, 64, 28, 28), (64, 8, 3, 3), pads=(1,) * 4, group=8),
    "grouped 3x3 stride 2, channels last": lambda: convolution(
        (1, 28, 28, 64), (64, 8, 3, 3), pads=(1,) * 4, group=8, strides=(2, 2), layout="NHWC"
    ),
    "depthwise 5x5 stride 2": lambda: convolution((1, 32, 28, 28), (32, 1, 5, 5), pads=(2,) * 4, group=32, strides=(2, 2)),
    "dilated 2": lambda: convolution((1, 64, 14, 14), (64, 64, 3, 3), pads=(2,) * 4, dilations=(2, 2)),
    "dilated 2 stride 3": lambda: convolution((1, 16, 15, 15), (16, 16, 3, 3), dilations=(2, 2), strides=(3, 3)),
    "1-D": lambda: convolution((1, 16, 100), (32, 16, 5), pads=(2, 2)),
    "3-D": lambda: convolution((1, 8, 8, 14, 14), (16, 8, 3, 3, 3), pads=(1,) * 6),
    "transposed 3x3 stride 2": lambda: convolution(
        (1, 32, 14, 14), (32, 16, 3, 3), TRANSPOSED, strides=(2, 2), pads=(1,) * 4, output_padding=(1, 1)
    ),
    "transposed grouped 3x3 stride 2 dilated 2": lambda: convolution(
        (1, 32, 14, 14), (32, 16, 3, 3), TRANSPOSED, strides=(2, 2), dilations=(2, 2), group=2
    ),
}


def told(node: Node) -> list[str]:
    """Return each derivation's name with the costly operators of its program."""
    costly = ("Conv", "ConvTranspose", "MatMul")
    return sorted(f"{d.name}: {', '.join(f'{n.op} {n.type}' for n in walk((d.program,)) if n.op in costly)}" for d in derive(node))


def states(node: Node) -> dict[str, int]:
    return {target.name: search(meaning(node), target)[1].seen for target in TARGETS if target is not BAND}


@pytest.mark.parametrize("name", SPREAD)
def test_programs_stay_and_searches_do_not_grow(name: str) -> None:
    node, golden = SPREAD[name](), json.loads(EXPECTED.read_text())[name]
    assert not set(golden["programs"]) - set(told(node)), "lost"
    for target, seen in states(node).items():
        assert seen <= golden["states"][target], target


def test_every_signature_is_in_the_golden_list() -> None:
    golden = json.loads(EXPECTED.read_text())
    assert list(golden) == list(SPREAD) and all(one["programs"] for one in golden.values())


if __name__ == "__main__":  # python -m tests.egraph.derive.test_derive_spread rewrites the list
    rows = {name: {"programs": told(make()), "states": states(make())} for name, make in SPREAD.items()}
    EXPECTED.write_text(json.dumps(rows, indent=1) + "\n")
