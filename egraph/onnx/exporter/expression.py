"""Expressions as standard ONNX nodes: gathered operands, constant tables and Einsum, or elementwise operators if that does not fit.

Iterators are split into digits first. A read is one Gather for each group of axes that share iterators, its guards a border of
zeros. A sum of products is an Einsum, which contracts factor by factor. If tables multiply one read, as in the transforms of fast
convolutions, their outer product is one matrix, and the sum a MatMul. Everything else is computed element by element over the whole
grid and reduced. Results that are too long are cut at the end.
"""

from __future__ import annotations

import math
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from egraph.onnx.exporter.emitter import Emitter
from egraph.onnx.types import element_type
from egraph.tensor import Node
from egraph.tensor.expr.digits import Digits, split_digits
from egraph.tensor.expr.evaluate import Evaluator
from egraph.tensor.expr.functions import CONVERSIONS
from egraph.tensor.expr.index import Index, Iterator, atoms, known, length
from egraph.tensor.expr.products import Product, sum_of_products
from egraph.tensor.expr.scope import Apply, Compare, Guarded, IndexNumber, Number, Read, Reduction, Scalar, Table, Tensor
from egraph.tensor.ops import OPS

EINSUM_SINCE = 12
ONNX = {
    "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "neg": "Neg", "reciprocal": "Reciprocal", "max": "Max", "min": "Min",
    "pow": "Pow", "abs": "Abs", "sign": "Sign", "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "erf": "Erf", "tanh": "Tanh", "sin": "Sin",
    "cos": "Cos", "floor": "Floor", "ceil": "Ceil", "round": "Round",
}  # fmt: skip
COMPARISONS = {"less": "Less", "less_equal": "LessOrEqual", "greater": "Greater", "greater_equal": "GreaterOrEqual", "equal": "Equal"}
MATRIX_ELEMENTS = 4096
"""Largest number of elements of the outer product of tables, as of 8 x 8 results from 8 x 8 values. One product with a matrix of 36 x 36
multiplies three times as often as one with each table, but an Einsum transposes its operands for each: onnxruntime took 0.68 s to
transform 3 x 3 weights of 512 x 2,048 channels to 6 x 6, and 0.18 s with a MatMul."""
LOGIC = {"and_": "And", "or_": "Or", "not_": "Not"}


@dataclass(frozen=True)
class Part:
    """A named value with one axis for each of its iterators."""

    name: str
    iterators: tuple[Iterator, ...]


def expression(e: Emitter, node: Node, operands: Sequence[str], output: str) -> None:
    """Append the nodes of an Expression."""
    tensors = [Tensor(str(k), operand.type.sizes, operand.type.dtype) for k, operand in enumerate(node.inputs)]
    scope = OPS[node.op].meaning(tensors, dict(node.attributes))
    digits = split_digits(scope)
    writer = _Writer(e, tuple(operands), node.type.dtype, (*digits.outer, *digits.summation))
    products = sum_of_products(digits.body) if scope.reduction == "sum" and e.opset >= EINSUM_SINCE else None
    name = writer.reduced(digits, scope.reduction) if products is None else writer.summed(digits, products)
    sizes = [math.prod(map(length, axis)) for axis in digits.traversal]
    cut = [k for k, (size, target) in enumerate(zip(sizes, node.type.sizes, strict=True)) if size != target]
    padded = e.add("Reshape", [name, e.integers(sizes)], output="" if cut else output)
    for k in cut:
        chosen = e.integers(range(node.type.sizes[k]))
        padded = e.add("Gather", [padded, chosen], axis=k, output=output if k == cut[-1] else "")


@dataclass
class _Writer:
    """A writer of one expression; ``grid`` holds all iterators, those of the result first."""

    e: Emitter
    operands: tuple[str, ...]
    dtype: str
    grid: tuple[Iterator, ...]

    def summed(self, digits: Digits, products: Sequence[Product]) -> str:
        """Return the sum of products over all digits of the result."""
        total = ""
        for product in products:
            part = self.contracted(digits, product)
            name = self.spread(part, digits.outer)
            total = self.e.add("Add", [total, name]) if total else name
        return total

    def contracted(self, digits: Digits, product: Product) -> Part:
        """Return one product, summed, over those digits of the result that it depends on."""
        open_conditions = list(dict.fromkeys(product.conditions))
        parts: list[Part] = []
        tables: list[tuple[np.ndarray, tuple[Iterator, ...]]] = []
        for factor in product.factors:
            if isinstance(factor, Read):
                parts.append(self.read(factor, open_conditions))
            else:
                iterators = self.iterators(factor.indices)
                tables.append((self.table(factor, iterators), iterators))
        for condition in open_conditions:
            iterators = self.iterators((condition.left, condition.right))
            tables.append((self.holds((condition,), iterators).astype(np.float64), iterators))
        covered = {i for part in parts for i in part.iterators}.union(*(iterators for _, iterators in tables))
        repeats = math.prod(length(i) for i in digits.summation if i not in covered)
        coefficient = float(product.coefficient) * repeats
        result = tuple(i for i in digits.outer if i in covered)
        transformed = self.transformed(parts[0], tables, result) if len(parts) == 1 else None
        parts += [Part(self.constant(values), iterators) for values, iterators in tables] if transformed is None else []
        if not parts:
            return Part(self.constant(np.asarray(coefficient)), ())
        if transformed is not None:
            name = self.ordered(transformed, result)
        elif len(parts) == 1 and set(parts[0].iterators) == set(result):
            name = self.ordered(parts[0], result)
        else:
            name = self.e.add("Einsum", [part.name for part in parts], equation=self.equation([p.iterators for p in parts], result))
        if coefficient != 1:
            name = self.e.add("Mul", [name, self.constant(np.asarray(coefficient))])
        return Part(name, result)

    def equation(self, terms: Iterable[Sequence[Iterator]], result: Sequence[Iterator]) -> str:
        letters = dict(zip(self.grid, string.ascii_letters, strict=False))
        return ",".join("".join(letters[i] for i in term) for term in terms) + "->" + "".join(letters[i] for i in result)

    def transformed(
        self, part: Part, tables: Sequence[tuple[np.ndarray, tuple[Iterator, ...]]], result: Sequence[Iterator]
    ) -> Part | None:
        """Return a matrix of the tables times ``part``, or None if they share a digit of the result, or the matrix would be too large."""
        made = [i for i in result if i not in part.iterators]
        summed = [i for i in part.iterators if i not in result]
        kept = [i for i in result if i in part.iterators]
        used = {i for _, iterators in tables for i in iterators}
        if not summed or used != {*made, *summed} or math.prod(map(length, used)) > MATRIX_ELEMENTS:
            return None
        equation = self.equation([iterators for _, iterators in tables], [*made, *summed])
        rows, columns, rest = (math.prod(map(length, some)) for some in (made, summed, kept))
        matrix = np.einsum(equation, *(values for values, _ in tables)).reshape(rows, columns)
        flat = self.e.add("Reshape", [self.ordered(part, [*summed, *kept]), self.e.integers([columns, rest])])
        product = self.e.add("MatMul", [self.constant(matrix), flat])
        return Part(self.e.add("Reshape", [product, self.e.integers(list(map(length, [*made, *kept])))]), (*made, *kept))

    def reduced(self, digits: Digits, reduction: Reduction) -> str:
        """Return the body computed over the whole grid, reduced over the summed digits."""
        name = self.e.add("Expand", [self.scalar(digits.body, ()), self.e.integers([length(i) for i in self.grid])])
        axes = list(range(len(digits.outer), len(self.grid)))
        if not axes:
            return name
        op = reduction.operator
        if self.e.opset >= 18 or (self.e.opset >= 13 and op == "ReduceSum"):
            return self.e.add(op, [name, self.e.integers(axes)], keepdims=0)
        return self.e.add(op, [name], axes=axes, keepdims=0)

    def scalar(self, body: Scalar, conditions: tuple[Compare, ...]) -> str:
        """Return a scalar of the body as a value with one axis per iterator of the grid, of size 1 if it does not depend on it."""
        e = self.e
        match body:
            case Number(value):
                return self.constant(np.full([1] * len(self.grid), float(value)))
            case IndexNumber(value):
                iterators = self.iterators((value,))
                return self.aligned(Part(self.constant(self.index(value, iterators).astype(np.float64)), iterators))
            case Table():
                iterators = self.iterators(body.indices)
                return self.aligned(Part(self.constant(self.table(body, iterators)), iterators))
            case Read():
                return self.aligned(self.read(body, list(conditions)))
            case Guarded(own_conditions, then, otherwise):
                iterators = self.iterators([side for c in own_conditions for side in (c.left, c.right)])
                mask = Part(e.constant(self.holds(own_conditions, iterators), "bool"), iterators)
                branches = [self.scalar(then, conditions + own_conditions), self.scalar(otherwise, conditions)]
                return e.add("Where", [self.aligned(mask), *branches])
            case Apply("where", (condition, then, otherwise)):
                chosen = self.truth(self.scalar(condition, conditions))
                return e.add("Where", [chosen, self.scalar(then, conditions), self.scalar(otherwise, conditions)])
            case Apply(function, arguments):
                values = [self.scalar(argument, conditions) for argument in arguments]
                if function in CONVERSIONS:
                    return e.add("Cast", values, to=element_type(CONVERSIONS[function]))
                if function in ONNX:
                    return e.add(ONNX[function], values)
                if function in LOGIC:
                    return self.number(e.add(LOGIC[function], list(map(self.truth, values))))
                return self.number(self.compared(function, values))

    def compared(self, function: str, values: Sequence[str]) -> str:
        if function == "is_nan":
            return self.e.add("IsNaN", values)
        if function.endswith("_equal") and self.e.opset < EINSUM_SINCE:
            return self.e.add("Or", [self.e.add(COMPARISONS[function.removesuffix("_equal")], values), self.e.add("Equal", values)])
        return self.e.add(COMPARISONS[function], values)

    def truth(self, name: str) -> str:
        return self.e.add("Cast", [name], to=element_type("bool"))

    def number(self, name: str) -> str:
        return self.e.add("Cast", [name], to=element_type(self.dtype))

    def read(self, read: Read, conditions: list[Compare]) -> Part:
        """Return the elements of a read. Remove from ``conditions`` those that a border of zeros enforces."""
        assert isinstance(read.source, Tensor)
        name, sizes = self.operands[int(read.source.name)], [known(size) for size in read.source.shape]
        groups = self._groups(read.indices)
        order = [axis for group in groups for axis in group]
        if order != list(range(len(order))):
            name = self.e.add("Transpose", [name], perm=order)
        lengths = [math.prod(sizes[axis] for axis in group) for group in groups]
        if len(groups) < len(sizes):
            name = self.e.add("Reshape", [name, self.e.integers(lengths)])
        shapes = [[size] for size in lengths]
        owners = [self.iterators([read.indices[axis] for axis in group]) for group in groups]
        for k in reversed(range(len(groups))):
            iterators = owners[k]
            positions = np.zeros([length(i) for i in iterators], np.int64)
            for axis in groups[k]:
                positions = positions * sizes[axis] + np.clip(self.index(read.indices[axis], iterators), 0, sizes[axis] - 1)
            granted = [c for c in conditions if set(self.iterators((c.left, c.right))) <= set(iterators)] if iterators else []
            conditions[:] = [c for c in conditions if c not in granted]
            inside = self.holds(granted, iterators)
            if not inside.all():
                positions = np.where(inside, positions, lengths[k])
                name = self._bordered(name, sum(map(len, shapes)), k)
            shapes[k] = [length(i) for i in iterators]
            if positions.size == lengths[k] and inside.all() and (positions.reshape(-1) == np.arange(lengths[k])).all():
                if positions.ndim != 1:
                    name = self.e.add("Reshape", [name, self.e.integers([size for shape in shapes for size in shape])])
            else:
                name = self.e.add("Gather", [name, self.e.constant(positions, "int64")], axis=k)
        return Part(name, tuple(i for iterators in owners for i in iterators))

    def _bordered(self, name: str, rank: int, axis: int) -> str:
        """Return a value with one more element, a zero, at the end of an axis."""
        pads = [0] * (2 * rank)
        pads[rank + axis] = 1
        if self.e.opset >= 11:
            return self.e.add("Pad", [name, self.e.integers(pads)], mode="constant")
        return self.e.add("Pad", [name], pads=pads, mode="constant")

    def _groups(self, indices: Sequence[Index]) -> list[list[int]]:
        """Return the axes of a read in groups that share no iterator, in order of their first axes."""
        groups: list[tuple[set[Iterator], list[int]]] = []
        for axis, coordinate in enumerate(indices):
            iterators = set(self.iterators((coordinate,)))
            meeting = [group for group in groups if group[0] & iterators]
            merged = (iterators.union(*(group[0] for group in meeting)), sorted([axis, *(a for group in meeting for a in group[1])]))
            groups = [group for group in groups if group not in meeting] + [merged]
        return sorted(axes for _, axes in groups)

    def iterators(self, values: Iterable[Index]) -> tuple[Iterator, ...]:
        """Return the iterators of indices in the grid's order."""
        used = {atom for value in values for atom in atoms(value) if isinstance(atom, Iterator)}
        return tuple(i for i in self.grid if i in used)

    def index(self, value: Index, iterators: Sequence[Iterator]) -> np.ndarray:
        return np.broadcast_to(Evaluator({}, "float64", {}).index(value, _axes(iterators)), [length(i) for i in iterators])

    def holds(self, conditions: Sequence[Compare], iterators: Sequence[Iterator]) -> np.ndarray:
        return np.broadcast_to(Evaluator({}, "float64", {}).conditions(conditions, _axes(iterators)), [length(i) for i in iterators])

    def table(self, table: Table, iterators: Sequence[Iterator]) -> np.ndarray:
        values = np.array([float(value) for value in table.values], np.float64).reshape(table.shape)
        bounded = (np.clip(self.index(i, iterators), 0, n - 1) for i, n in zip(table.indices, table.shape, strict=True))
        return np.asarray(values[tuple(bounded)])

    def constant(self, values: np.ndarray) -> str:
        return self.e.constant(values, self.dtype)

    def ordered(self, part: Part, iterators: Sequence[Iterator]) -> str:
        """Return a part with its axes in another order."""
        perm = [part.iterators.index(i) for i in iterators]
        return part.name if perm == list(range(len(perm))) else self.e.add("Transpose", [part.name], perm=perm)

    def aligned(self, part: Part) -> str:
        """Return a part with one axis per iterator of the grid, of size 1 if it does not depend on the iterator."""
        name = self.ordered(part, [i for i in self.grid if i in part.iterators])
        return self.e.add("Reshape", [name, self.e.integers([length(i) if i in part.iterators else 1 for i in self.grid])])

    def spread(self, part: Part, iterators: Sequence[Iterator]) -> str:
        """Return a part repeated along the iterators that it lacks."""
        if part.iterators == tuple(iterators):
            return part.name
        name = self.e.add("Reshape", [part.name, self.e.integers([length(i) if i in part.iterators else 1 for i in iterators])])
        return self.e.add("Expand", [name, self.e.integers([length(i) for i in iterators])])


def _axes(iterators: Sequence[Iterator]) -> dict[Iterator, np.ndarray]:
    return {i: np.arange(length(i)).reshape([-1 if j == i else 1 for j in iterators]) for i in iterators}

