"""Evaluate scopes with numpy: in float64, or exactly in the prime field F_p.

Every iterator gets an axis; a scalar becomes an array with size 1 on the axes it does not depend on. A sum of a
product is contracted factor by factor (einsum), so a convolution is gathered once and multiplied by BLAS.
A read outside its tensor where the guards hold raises: padding must be explicit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal, TypeAlias

import numpy as np

from egraph.errors import EinsatError
from egraph.tensor.expr.functions import FUNCTIONS, PRIME, prime_power, surrogate
from egraph.tensor.expr.index import DataIndex, Floor, Index, Iterator, Modulo, Size, Symbol, index
from egraph.tensor.expr.scope import Apply, Compare, Guarded, IndexNumber, Number, Read, Scalar, Scope, Table, Tensor

Array = np.ndarray
Field: TypeAlias = Literal["float64", "prime"]
CHUNK_ELEMENTS = 1 << 24
KEPT_ELEMENTS = 1 << 16
"""The most elements of an index's values that are cached for reuse."""


class EvaluationError(EinsatError):
    """An expression reads outside a tensor, or a size is unknown."""


def evaluate(scope: Scope, operands: Mapping[str, Array], field: Field = "float64", symbols: Mapping[Symbol, int] | None = None) -> Array:
    """Return the tensor that ``scope`` denotes; ``operands`` by tensor name (float64, or int64 residues)."""
    return Evaluator(operands, field, dict(symbols or {})).tensor(scope)


class Places(dict[Iterator, Array]):
    """The values of iterators, and of the indices computed from them: guards and reads use the same indices several times."""

    __slots__ = ("known",)

    def __init__(self, values: Mapping[Iterator, Array]) -> None:
        super().__init__(values)
        self.known: dict[Index, Array] = {}


@dataclass
class Evaluator:
    """Evaluates scopes over operands; a subclass for another algebra overrides calls and reductions."""

    operands: Mapping[str, Array]
    arithmetic: Field
    symbols: Mapping[Symbol, int]
    inner: dict[Scope, Array] = field(default_factory=dict)

    def size(self, value: Size) -> int:
        if isinstance(value, int):
            return value
        array = self.index(index(value), {})
        return int(array)

    def tensor(self, scope: Scope) -> Array:
        if scope not in self.inner:
            self.inner[scope] = self._tensor(scope)
        return self.inner[scope]

    def _tensor(self, scope: Scope) -> Array:
        iterators = scope.traversal + scope.summation
        ranges = [range(self.size(i.low), self.size(i.high)) for i in iterators]
        outer = len(scope.traversal)
        shape = tuple(len(r) for r in ranges[:outer])
        if math.prod(shape) == 0:
            return np.zeros(shape, self.dtype)
        if self.arithmetic == "float64" and scope.summation and scope.reduction == "sum":
            return self._contract(scope, iterators, ranges)
        inner = math.prod(len(r) for r in ranges[outer:])
        if outer and len(ranges[0]) > 1 and math.prod(shape) * max(inner, 1) > CHUNK_ELEMENTS:
            rows = max(1, CHUNK_ELEMENTS // max(1, math.prod(shape[1:]) * max(inner, 1)))
            pieces = [self._block(scope, iterators, [ranges[0][i : i + rows], *ranges[1:]]) for i in range(0, len(ranges[0]), rows)]
            return np.concatenate(pieces)
        return self._block(scope, iterators, ranges)

    @property
    def dtype(self) -> type[np.generic]:
        return np.float64 if self.arithmetic == "float64" else np.int64

    def _axes(self, iterators: Sequence[Iterator], ranges: Sequence[range]) -> Places:
        rank = len(iterators)
        return Places({
            iterator: np.arange(r.start, r.stop, dtype=np.int64).reshape([-1 if k == axis else 1 for k in range(rank)])
            for axis, (iterator, r) in enumerate(zip(iterators, ranges, strict=True))
        })  # fmt: skip

    def _block(self, scope: Scope, iterators: Sequence[Iterator], ranges: Sequence[range]) -> Array:
        outer = len(scope.traversal)
        values = self.scalar(scope.body, self._axes(iterators, ranges), None)
        full = np.broadcast_to(values, [len(r) for r in ranges]) if ranges else values
        if not scope.summation:
            return np.ascontiguousarray(full, dtype=self.dtype).reshape([len(r) for r in ranges[:outer]])
        axes = tuple(range(outer, len(ranges)))
        if self.arithmetic == "prime" and scope.reduction == "sum":
            return np.asarray(np.sum(full, axis=axes, dtype=np.int64) % PRIME)
        if self.arithmetic == "prime" and scope.reduction == "prod":
            flat = full.reshape([*full.shape[:outer], -1])
            total = np.ones(flat.shape[:-1], np.int64)
            for k in range(flat.shape[-1]):
                total = total * flat[..., k] % PRIME
            return total
        return np.asarray(getattr(np, scope.reduction)(full, axis=axes))

    def _contract(self, scope: Scope, iterators: Sequence[Iterator], ranges: Sequence[range]) -> Array:
        longest = max(range(len(scope.traversal)), key=lambda axis: len(ranges[axis]), default=None)
        if longest is None or len(ranges[longest]) == 1 or math.prod(map(len, ranges)) <= CHUNK_ELEMENTS:
            return self._contracted(scope, iterators, ranges)
        whole = ranges[longest]

        def part(start: int, stop: int) -> list[range]:
            return [*ranges[:longest], whole[start:stop], *ranges[longest + 1 :]]

        of_one, of_two = (self._sizes(scope, self._axes(iterators, part(0, rows))) for rows in (1, 2))
        rows = max(1, CHUNK_ELEMENTS // max(1, *(two - one for one, two in zip(of_one, of_two, strict=True))))
        pieces = [self._contracted(scope, iterators, part(start, start + rows)) for start in range(0, len(whole), rows)]
        return np.concatenate(pieces, axis=longest)

    def _sizes(self, scope: Scope, env: Mapping[Iterator, Array]) -> list[int]:
        factors: list[Array] = []
        self._factors(scope.body, env, None, factors)
        return [factor.size for factor in factors]

    def _contracted(self, scope: Scope, iterators: Sequence[Iterator], ranges: Sequence[range]) -> Array:
        env = self._axes(iterators, ranges)
        factors: list[Array] = []
        self._factors(scope.body, env, None, factors)
        extents = [len(r) for r in ranges]
        arguments: list[Any] = []
        covered: set[int] = set()
        for factor in factors:
            factor = factor.reshape([1] * (len(extents) - factor.ndim) + list(factor.shape))
            kept = [axis for axis, size in enumerate(factor.shape) if size > 1]
            covered |= set(kept)
            arguments += [factor.reshape([factor.shape[a] for a in kept]), kept]
        outer = len(scope.traversal)
        repeat = math.prod(extents[a] for a in range(outer, len(extents)) if a not in covered)
        kept_out = [a for a in range(outer) if a in covered]
        total = np.einsum(*arguments, kept_out, optimize="greedy") * repeat
        total = np.asarray(total).reshape([extents[a] if a in covered else 1 for a in range(outer)])
        return np.ascontiguousarray(np.broadcast_to(total, extents[:outer])).reshape(extents[:outer])  # rank 0 stays rank 0

    def _factors(self, body: Scalar, env: Mapping[Iterator, Array], mask: Array | None, out: list[Array]) -> None:
        match body:
            case Apply("mul", (left, right)):
                self._factors(left, env, mask, out)
                self._factors(right, env, mask, out)
            case Guarded(conditions, then, Number(value)) if value == 0:
                holds = self.conditions(conditions, env)
                inner = holds if mask is None else holds & mask
                parts: list[Array] = []
                self._factors(then, env, inner, parts)
                # Where the guard fails, clamped reads may be inf or nan: the zero must win over them.
                parts = [self._masked(part, conditions, env) for part in parts]
                hosts = [k for k, part in enumerate(parts) if np.broadcast_shapes(part.shape, holds.shape) == part.shape]
                if hosts:  # as separate factors, the conditions would be more arrays for einsum to order
                    parts[hosts[0]] = np.where(holds, parts[hosts[0]], 0.0)
                    out += parts
                else:
                    out += [*parts, *(self.condition(c, env).astype(np.float64) for c in conditions)]
            case _:
                out.append(np.asarray(self.scalar(body, env, mask), np.float64))

    def _masked(self, values: Array, conditions: Sequence[Compare], env: Mapping[Iterator, Array]) -> Array:
        if np.isfinite(values).all():
            return values
        return np.where(self.conditions(conditions, env), values, 0.0)

    def conditions(self, conditions: Sequence[Compare], env: Mapping[Iterator, Array]) -> Array:
        result = np.asarray(True)
        for condition in conditions:
            result = result & self.condition(condition, env)
        return result

    def condition(self, condition: Compare, env: Mapping[Iterator, Array]) -> Array:
        left, right = self.index(condition.left, env), self.index(condition.right, env)
        match condition.operator:
            case "<":
                return np.asarray(left < right)
            case "<=":
                return np.asarray(left <= right)
            case "==":
                return np.asarray(left == right)
            case "!=":
                return np.asarray(left != right)

    def index(self, value: Index, env: Mapping[Iterator, Array]) -> Array:
        match value.terms:
            case ():
                return np.asarray(0, np.int64)
            case (((Iterator() as iterator,), 1),):
                return env[iterator]
        if type(env) is not Places:
            return self._index(value, env)
        known = env.known.get(value)
        if known is None:
            known = self._index(value, env)
            if known.size <= KEPT_ELEMENTS:
                env.known[value] = known
        return known

    def _index(self, value: Index, env: Mapping[Iterator, Array]) -> Array:
        total: Array = np.asarray(0, np.int64)
        for monomial, coefficient in value.terms:
            product: Array = np.asarray(coefficient, np.int64)
            for atom in monomial:
                match atom:
                    case Iterator():
                        product = product * env[atom]
                    case Symbol():
                        if atom not in self.symbols:
                            raise EvaluationError(f"size {atom.name} is unknown", fix="pass it in symbols")
                        product = product * self.symbols[atom]
                    case Floor(a, b):
                        product = product * (self.index(a, env) // self.index(b, env))
                    case Modulo(a, b):
                        product = product * (self.index(a, env) % self.index(b, env))
                    case DataIndex(read):
                        product = product * np.rint(self.scalar(read, env, None)).astype(np.int64)
            total = total + product
        return total

    def scalar(self, body: Scalar, env: Mapping[Iterator, Array], mask: Array | None) -> Array:
        match body:
            case Number(value):
                return self.number(value)
            case IndexNumber(value):
                result = self.index(value, env)
                return result.astype(np.float64) if self.arithmetic == "float64" else result % PRIME
            case Read():
                return self.read(body, env, mask)
            case Table():
                return self.table(body, env, mask)
            case Apply(name, arguments):
                return self.call(name, arguments, env, mask)
            case Guarded(conditions, then, otherwise):
                holds = self.conditions(conditions, env)
                yes = self.scalar(then, env, holds if mask is None else holds & mask)
                no = self.scalar(otherwise, env, ~holds if mask is None else ~holds & mask)
                return np.where(holds, yes, no)

    def number(self, value: Fraction | float) -> Array:
        if self.arithmetic == "float64":
            return np.asarray(float(value), np.float64)
        if isinstance(value, float):
            return surrogate(repr(value))
        inverse = int(prime_power(np.asarray(value.denominator % PRIME, np.int64), PRIME - 2))
        return np.asarray(value.numerator % PRIME * inverse % PRIME, np.int64)

    def call(self, name: str, arguments: Sequence[Scalar], env: Mapping[Iterator, Array], mask: Array | None) -> Array:
        function = FUNCTIONS[name]
        if self.arithmetic == "prime" and name == "pow" and isinstance(arguments[1], Number):
            exponent = arguments[1].value
            if isinstance(exponent, Fraction) and exponent.denominator == 1 and exponent >= 0:
                return prime_power(self.scalar(arguments[0], env, mask), int(exponent))
        values = [self.scalar(argument, env, mask) for argument in arguments]
        if self.arithmetic == "float64":
            with np.errstate(all="ignore"):
                return np.asarray(function.real(*values))
        return np.asarray(function.prime(*values) if function.prime else surrogate(name, *values))

    def read(self, read: Read, env: Mapping[Iterator, Array], mask: Array | None) -> Array:
        source = self.operands[read.source.name] if isinstance(read.source, Tensor) else self.tensor(read.source)
        return self.elements(source, read.indices, read.source.name if isinstance(read.source, Tensor) else "an inner scope", env, mask)

    def table(self, table: Table, env: Mapping[Iterator, Array], mask: Array | None) -> Array:
        values = np.array([self.number(value) for value in table.values], self.dtype).reshape(table.shape)
        return self.elements(values, table.indices, "a table", env, mask)

    def elements(self, source: Array, indices: Sequence[Index], name: str, env: Mapping[Iterator, Array], mask: Array | None) -> Array:
        if source.ndim != len(indices):
            raise EvaluationError(f"a tensor of rank {source.ndim} is read with {len(indices)} indices")
        positions: list[Array] = []
        for size, expression in zip(source.shape, indices, strict=True):
            position = self.index(expression, env)
            if isinstance(expression.atom, Iterator) and position.size and position.item(0) >= 0 and position.item(-1) < size:
                positions.append(position)  # an iterator counts upwards: its ends are its extremes
                continue
            outside = (position < 0) | (position >= size)
            if outside.any():
                if (outside if mask is None else outside & mask).any():
                    raise EvaluationError(f"{name} is read at {expression}, outside 0..{size - 1}, where no guard forbids it")
                position = np.clip(position, 0, max(size - 1, 0))
            positions.append(position)
        if source.size == 0:
            return np.zeros((), self.dtype)
        return np.asarray(source[tuple(positions)]) if positions else np.asarray(source[()])
