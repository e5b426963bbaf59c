"""Cut two models at their common tensors, and settle each part by the strongest method that fits.

The parts are processed in execution order. Earlier operators are covered by parts of their own, so a part's operands are
free: the same placeholder on both sides. These methods are tried in order:

* structure: both sides are the same operators on the same operands and constants;
* proof: both have the same normal form (``verify.equality``), as real functions of their operands and of common constants;
* exact: both are rational, and equal in F_p on random residues (constants are exact fractions);
* float64: equal up to rounding, by the operators' meanings, on random operands of both signs;
* float32: equal up to rounding in onnxruntime, on the values of the whole models. This method is for opaque operators, parts too
  large for the methods before, and parts that agree only on values that occur.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from egraph.errors import EinsatError
from egraph.optimize.check_noise import relative_error
from egraph.tensor import Graph, Node, attributes, make, placeholder, rewrite, walk
from egraph.tensor.expr.evaluate import Field
from egraph.tensor.expr.functions import PRIME
from egraph.tensor.ops import OPS
from egraph.tensor.ops.reference import evaluate, fragment_expression
from verify.assumptions import Assumptions
from verify.equality import Equal, prove_equal
from verify.random_testing import RATIONAL

Method: TypeAlias = Literal["structure", "proof", "exact", "float64", "float32", "follows", "differs"]
METHODS: tuple[Method, ...] = ("structure", "proof", "exact", "float64", "float32", "follows", "differs")
"""``follows``: the values differ because the values that the part reads differ; on free operands one of the methods shows it equal."""
MOST_OPERATORS = 12
"""Most operators of a side for which a proof is tried."""
COST: Mapping[Field, float] = {"prime": 2e7, "float64": 4e8}
"""Most multiplications and additions of a part; larger parts are left to onnxruntime."""


@dataclass(frozen=True)
class Part:
    """One common tensor, with the method that settled it from the common tensors before it."""

    tensor: str
    method: Method
    operators: tuple[int, int]
    error: float | None = None
    """Largest relative error that onnxruntime found on the whole models' values; None if it was not run."""
    rules: frozenset[str] = frozenset()


def common_tensors(a: Graph, b: Graph) -> dict[str, tuple[Node, Node]]:
    """Return the tensors of equal name and type in both models, including outputs, in the first model's execution order."""
    named = {name: node for node, name in b.names.items()} | dict(b.outputs)
    position = {node: i for i, node in enumerate(walk(a.roots))}
    alive = set(walk(b.roots))
    names = {name: node for node, name in a.names.items()} | dict(a.outputs)
    ours = sorted(names.items(), key=lambda item: (position.get(item[1], -1), item[0]))
    computed = ((name, node) for name, node in ours if node in position and node.op not in ("Input", "Constant"))
    pairs = {name: (node, named[name]) for name, node in computed if named.get(name) in alive}
    return {name: (node, twin) for name, (node, twin) in pairs.items() if node.type == twin.type}


def aligned(graph: Graph, like: Graph) -> Graph:
    """Return a graph over the other graph's inputs, matched by name or, if names differ, by position."""
    by_name = {node.string("name"): node for node in like.inputs}
    pairs = dict(zip(graph.inputs, like.inputs, strict=True))
    if all(node.string("name") in by_name for node in graph.inputs):
        pairs = {node: by_name[node.string("name")] for node in graph.inputs}
    new = rewrite(graph.roots, lambda old, below: pairs[old] if old in pairs else make(old.op, below, old.attributes, old.type))
    return Graph(
        graph.name, like.inputs, tuple((name, new[node]) for name, node in graph.outputs), graph.tensors,
        {new[node]: names for node, names in graph.origins.items() if node in new}, graph.context,
        {new[node]: name for node, name in graph.names.items() if node in new},
    )  # fmt: skip


@dataclass(frozen=True)
class Settled:
    """A common tensor, how it was settled, and the number of operators that make it on either side."""

    tensor: str
    method: Method
    operators: tuple[int, int]


def settle(a: Graph, b: Graph, errors: Mapping[str, float], tolerance: float) -> Iterator[Settled]:
    """Yield each common tensor as it is settled; ``errors`` are the errors of the whole models, which count as differences above the
    tolerance."""
    settled: dict[Node, Node] = {}
    theirs: dict[Node, Node] = {}
    differing: set[Node] = set()
    for name, (left, right) in common_tensors(a, b).items():
        ours, inside = _region(left, settled), _region(right, theirs)
        first, second = _cut(ours, settled).get(left, left), _cut(inside, theirs).get(right, right)
        method = _method(first, second, a, b, tolerance)
        if not errors.get(name, 0.0) <= tolerance:
            reads = differing.intersection(walk((first, second)))
            method = "follows" if reads and method != "float32" else "differs"
        yield Settled(name, method, (_operators(first), _operators(second)))
        if left not in settled and right not in theirs:
            leaf = make("Input", (), attributes(name=f"common {name}"), left.type)
            settled[left], theirs[right] = leaf, leaf
            differing |= {leaf} if method in ("follows", "differs") else set()


def _region(root: Node, settled: Mapping[Node, Node]) -> tuple[Node, ...]:
    """Return the nodes below ``root`` down to the known ones, operands first."""
    nodes: dict[Node, None] = {}
    stack = [(root, False)]
    while stack:
        node, ready = stack.pop()
        if ready:
            nodes[node] = None
        elif node not in settled and node not in nodes:
            stack.append((node, True))
            stack += [(operand, False) for operand in node.inputs]
    return tuple(nodes)


def _cut(region: Sequence[Node], settled: Mapping[Node, Node]) -> dict[Node, Node]:
    """Return the nodes of a region rebuilt over common leaves for the tensors settled before."""
    new: dict[Node, Node] = dict(settled)
    for node in region:
        operands = tuple(new[operand] for operand in node.inputs)
        new[node] = make(node.op, operands, node.attributes, node.type) if operands else node
    return new


def _operators(root: Node) -> int:
    return sum(node.op not in ("Input", "Constant") for node in walk((root,)))


def _method(left: Node, right: Node, a: Graph, b: Graph, tolerance: float) -> Method:
    if left is right:
        return "structure"
    operators = {node.op for node in walk((left, right))} - {"Input", "Constant"}
    if not operators <= set(OPS):
        return "float32"
    if _is_proved(left, right):
        return "proof"
    arrays = {**a.tensors, **b.tensors}
    if operators <= RATIONAL and _agree(left, right, arrays, "prime", 0.0):
        return "exact"
    return "float64" if _agree(left, right, arrays, "float64", tolerance) else "float32"


def _is_proved(left: Node, right: Node) -> bool:
    """Return whether both are proved equal, as functions of operands and of common constants."""
    leaves = [node for node in walk((left, right)) if node.op in ("Input", "Constant")]
    if max(_operators(left), _operators(right)) > MOST_OPERATORS:
        return False
    numbers = {leaf: i for i, leaf in enumerate(leaves)}

    def free(old: Node, below: tuple[Node, ...]) -> Node:
        return placeholder(numbers[old], old.type) if old in numbers else make(old.op, below, old.attributes, old.type)

    new = rewrite((left, right), free)
    try:
        return isinstance(prove_equal(fragment_expression(new[left]), fragment_expression(new[right]), Assumptions()), Equal)
    except (EinsatError, RecursionError, ValueError):
        return False  # outside the prover's reach: the other methods decide


def _agree(first: Node, second: Node, arrays: Mapping[str, np.ndarray], field: Field, tolerance: float) -> bool:
    nodes = [node for node in walk((first, second)) if node.op not in ("Input", "Constant")]
    if sum(_cost(node) for node in nodes) > COST[field]:
        return False
    leaves = [node for node in walk((first, second)) if node.op in ("Input", "Constant")]
    if any(leaf.op == "Input" and not leaf.type.dtype.startswith("float") for leaf in leaves):
        return False  # the integers that occur are unknown here
    for seed in range(2):
        values = {leaf: _value(leaf, arrays, field, seed) for leaf in leaves}
        try:
            with np.errstate(all="ignore"):
                left, right = evaluate((first, second), values, field)
        except (EinsatError, ValueError, MemoryError):
            return False
        if field == "prime":
            if not np.array_equal(left, right):
                return False
        elif not _close(left, right, tolerance):
            return False
    return True


def _close(left: np.ndarray, right: np.ndarray, tolerance: float) -> bool:
    finite = np.isfinite(left)
    return bool(finite.any()) and np.array_equal(finite, np.isfinite(right)) and relative_error(left, right) <= tolerance


def _cost(node: Node) -> float:
    flops = OPS[node.op].flops
    return flops([operand.type.sizes for operand in node.inputs], dict(node.attributes)) if flops else float(node.type.elements)


def _value(leaf: Node, arrays: Mapping[str, np.ndarray], field: Field, seed: int) -> np.ndarray:
    if leaf.op == "Constant":
        array = np.asarray(arrays[leaf.string("digest")], np.float64)
        return array if field == "float64" else residues(array)
    text = f"{seed} {dict(leaf.attributes)!r}"
    generator = np.random.default_rng(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big"))
    sizes = leaf.type.sizes
    return np.asarray(generator.integers(0, PRIME, sizes) if field == "prime" else generator.standard_normal(sizes))


def residues(array: np.ndarray) -> np.ndarray:
    """Return finite floats in F_p, as the exact fractions ``m * 2^e``; 2 has the order 31 there."""
    if not np.isfinite(array).all():
        raise EinsatError("infinities are no residues")
    mantissas, exponents = np.frexp(array)
    whole = np.ldexp(mantissas, 53).astype(np.int64) % PRIME
    return np.asarray(whole * (np.int64(1) << ((exponents.astype(np.int64) - 53) % 31)) % PRIME)


def covered(parts: Sequence[Part]) -> dict[Method, int]:
    """Return the number of tensors that each method settled, strongest method first, without methods that settled none."""
    return {method: count for method in METHODS if (count := sum(part.method == method for part in parts))}

