"""Prove that rows added to inputs do not affect the rows of outputs that are kept: f(padded x)[: n] = f(x).

The proof compares a graph at a smaller and at a larger size, node by node. A value of the larger graph *begins with* that of the smaller
one if both agree at every position of the smaller. Inputs do, because they are padded at their ends. A node's result does if its operands
do and if its definition at both sizes is the same expression up to the ends of its positions: then every element of the smaller result is
computed from the same elements, which lie inside the smaller operands, because a definition reads nowhere else. A sum over more elements, a
condition on a size, or a remainder by a size is another expression; nothing is proved then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from egraph.tensor import Attributes, Graph, Node, TensorType
from egraph.tensor.expr.index import Index, Iterator, Size, substitute
from egraph.tensor.expr.scope import Apply, Compare, Guarded, IndexNumber, Number, Read, Scalar, Scope, Table, Tensor
from egraph.tensor.ops import OPS
from egraph.tensor.ops.reference import meaning

ENDLESS = 1 << 62
"""The end of positions when expressions are compared; it occurs in none of them."""
Key: TypeAlias = tuple[str, tuple[TensorType, ...], Attributes]


@dataclass
class Padding:
    """Compares graphs of one model at two sizes; nodes of equal kinds are compared once."""

    judged: dict[tuple[Key, Key], bool] = field(default_factory=dict)

    def refusal(self, small: Graph, large: Graph) -> str:
        """Return why an output of the larger graph may not begin with that of the smaller one, or an empty text if all do."""
        if [name for name, _ in small.outputs] != [name for name, _ in large.outputs]:
            return "the outputs have other names"
        proved: set[tuple[Node, Node]] = set()
        waiting = list(zip(small.roots, large.roots, strict=True))
        while waiting:
            pair = waiting.pop()
            if pair in proved or pair[0] is pair[1]:
                continue
            if reason := self._refused(*pair, small, large):
                return reason
            proved.add(pair)
            if pair[0].op not in ("Input", "Constant"):
                waiting += zip(pair[0].inputs, pair[1].inputs, strict=True)
        return ""

    def _refused(self, small: Node, large: Node, first: Graph, second: Graph) -> str:
        """Return why a value may not begin with another although all operands do."""
        sources = second.origins.get(large, ())
        operator = f"{large.op}{f' ({sources[0]})' if sources else ''}"
        if small.op != large.op or small.type.dtype != large.type.dtype or len(small.inputs) != len(large.inputs):
            return f"{operator} is another operator at the smaller size"
        match small.op:
            case "Input":
                return "" if small.attributes == large.attributes else f"{operator} is another input"
            case "Constant":
                small_values, large_values = first.tensors[small.string("digest")], second.tensors[large.string("digest")]
                return "" if _begins_with(large_values, small_values) else f"{operator} has other values at the smaller size"
        if small.op not in OPS:
            return f"{operator} is run by onnxruntime: what it does with added rows is not known"
        if OPS[small.op].category == "recurrence":
            return f"{operator} folds along time: its last states would come after added rows"
        keys = _key(small), _key(large)
        if keys not in self.judged:
            self.judged[keys] = begins_alike(meaning(small), meaning(large))
        return "" if self.judged[keys] else f"{operator} mixes added rows with the others, or goes by the size"


def _key(node: Node) -> Key:
    return node.op, tuple(operand.type for operand in node.inputs), node.attributes


def _begins_with(large: np.ndarray, small: np.ndarray) -> bool:
    if large.ndim != small.ndim or any(n > m for n, m in zip(small.shape, large.shape, strict=True)):
        return False
    part = large[tuple(slice(n) for n in small.shape)]
    return part.tobytes() == small.tobytes()


def begins_alike(small: Scope, large: Scope) -> bool:
    """Return whether two scopes are the same expression at all positions of the smaller one."""
    iterators = [i for scope in _scopes(small) for i in scope.traversal]
    single = frozenset(i.name for i in iterators if i.high == 1) - {i.name for i in iterators if i.high != 1}
    return len(small.shape) == len(large.shape) and _reaches(small, large) and _open(small, single, {}) == _open(large, single, {})


def _reaches(small: Scope, large: Scope) -> bool:
    return all(isinstance(n, int) and isinstance(m, int) and n <= m for n, m in zip(small.shape, large.shape, strict=True))


def _scopes(scope: Scope) -> list[Scope]:
    """Return a scope and those that it reads."""
    scopes, waiting = [], [scope]
    while waiting:
        scopes.append(waiting.pop())
        waiting += _read_scopes(scopes[-1].body)
    return scopes


def _read_scopes(scalar: Scalar) -> list[Scope]:
    match scalar:
        case Read(source, _):
            return [source] if isinstance(source, Scope) else []
        case Apply(_, arguments):
            return [scope for argument in arguments for scope in _read_scopes(argument)]
        case Guarded(_, then, otherwise):
            return _read_scopes(then) + _read_scopes(otherwise)
        case _:
            return []


Names: TypeAlias = Mapping[Iterator, "Size | Iterator"]


def _open(scope: Scope, single: frozenset[str], outer: Names) -> Scope:
    """Return a scope without ends of positions; if the smaller scope has a single position, it is 0 in both."""
    traversal = tuple(Iterator(i.name, i.low, ENDLESS) for i in scope.traversal)
    names: Names = {**outer, **{i: 0 if i.name in single else j for i, j in zip(scope.traversal, traversal, strict=True)}}
    return Scope(traversal, scope.summation, scope.reduction, _opened(scope.body, single, names))


def _opened(scalar: Scalar, single: frozenset[str], names: Names) -> Scalar:
    def reindex(value: Index) -> Index:
        return substitute(value, names, read)

    def read(value: Read) -> Read:
        source = value.source
        opened = Tensor(source.name, (), source.dtype) if isinstance(source, Tensor) else _open(source, single, names)
        return Read(opened, tuple(map(reindex, value.indices)))

    match scalar:
        case Number():
            return scalar
        case IndexNumber(value):
            return IndexNumber(reindex(value))
        case Read():
            return read(scalar)
        case Table(shape, values, indices):
            return Table(shape, values, tuple(map(reindex, indices)))
        case Apply(function, arguments):
            return Apply(function, tuple(_opened(argument, single, names) for argument in arguments))
        case Guarded(conditions, then, otherwise):
            held = tuple(Compare(reindex(c.left), c.operator, reindex(c.right)) for c in conditions)
            return Guarded(held, _opened(then, single, names), _opened(otherwise, single, names))
