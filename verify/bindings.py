"""Symbolic bindings of a rule: the matches that its left side admits, variable by variable, as choices of a path.

Ranks, layouts, modes, axes and permutations are chosen, and every choice is a path of its own. Sizes, strides, pads, offsets
and float attributes are unknowns. The pattern is filled operand by operand, so that a choice that an operator refuses is
discarded before the next one is made.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from egraph.errors import TypeMismatch
from egraph.rewrite.terms import Pattern, Variable
from egraph.tensor import Attributes, attributes
from egraph.tensor.ops import OPS
from egraph.tensor.ops.dtypes import BYTES
from verify.fragments import SymbolicTerm, Workshop
from verify.numbers import Quotient, SymbolicNumber, Unsettled
from verify.paths import LeftOut, Path
from verify.random_binding import operand_type
from verify.solved import Ended
from verify.symbolic import integer

TYPES = tuple(sorted(frozenset[str]().union(*(spec.dtypes for spec in OPS.values()))))
"""Element types that at least one operator accepts."""
WINDOWED = ("Conv", "ConvTranspose", "MaxPool", "AveragePool")
@dataclass(frozen=True)
class Fixed:
    """The settings of a run of a rule beyond its pattern."""

    ranks: tuple[int, ...] = (0, 1, 2, 3, 4, 5)
    """Ranks that free variables and free shapes may have."""
    windowed: tuple[int, ...] = (3, 4, 5)
    """Ranks of the data operands of convolutions, pools and instance normalisations."""
    numbers: Mapping[str, float | Quotient] = field(default_factory=dict)
    """Constants of one number, with the number that the rule asked for."""
    values: Mapping[tuple[str, str], float | Quotient] = field(default_factory=dict)
    """Attributes (bundle, name) with the one value that the rule asked for."""
    sets: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Attributes by name whose entries are enumerated over small sets instead of being unknown."""
    looks_at_types: bool = False
    """Whether the rule reads element types. If so, each existing type is a choice."""
    tells_bytes_apart: bool = True
    """Whether an operator or the rule itself may treat int8 and uint8 differently. If not, a case holds with the two exchanged as well, so
    that the first variable of bytes has one type."""
    opaque: bool = False
    """Whether functions of integers stay uninterpreted."""


@dataclass(frozen=True)
class Step:
    """A part of a pattern; the operands of an operator are filled before it."""

    term: Pattern | Variable
    dtype: str = "float32"
    ranks: Sequence[int] | None = None
    """Ranks that a variable may have, if its place does not determine them."""
    above: str = ""
    """The operator of which the part is an operand, and the position of the operand."""
    position: int = 0


def steps_of(term: Pattern | Variable, dtype: str = "float32", above: str = "", position: int = 0) -> Iterator[Step]:
    """Yield the parts of a pattern in the order in which they are filled."""
    if isinstance(term, Pattern):
        for number, operand in enumerate(term.operands):
            yield from steps_of(operand, operand_type(term.op, number, dtype), term.op, number)
    yield Step(term, dtype, None, above, position)


class Binder:
    """Binds the variables of a pattern on one path."""

    def __init__(self, path: Path, workshop: Workshop, fixed: Fixed) -> None:
        self.path, self.workshop, self.fixed = path, workshop, fixed
        self.leaves: dict[str, SymbolicTerm] = {}
        self.bundles: dict[str, Attributes] = {}
        self._operands: list[SymbolicTerm] = []
        """Filled parts that are not yet operands of an operator."""

    def saved(self) -> Any:
        """Return the argument of ``restore``."""
        return dict(self.leaves), dict(self.bundles), list(self._operands), self.workshop.saved()

    def restore(self, saved: Any) -> None:
        leaves, bundles, operands, built = saved
        self.leaves, self.bundles, self._operands = dict(leaves), dict(bundles), list(operands)
        self.workshop.restore(built)

    def fill(self, step: Step) -> None:
        """Bind a variable, or build an operator over the operands filled before; raise ``Ended`` if the operator refuses them."""
        term = step.term
        if isinstance(term, Variable):
            ranks = step.ranks
            if ranks is None and step.above:
                ranks = self._ranks(step.above, self._operands[len(self._operands) - step.position :])
            self._operands.append(self._leaf(term, self.fixed.ranks if ranks is None else ranks, step.dtype))
            return
        first = len(self._operands) - len(term.operands)
        operands = self._operands[first:]
        if term.op in ("Pad", "Slice") and not operands[0].shape:
            raise Ended("scalars have no axes")
        bundle = term.attributes
        if isinstance(bundle, str):
            if bundle not in self.bundles:
                self.bundles[bundle] = self._bundle(term.op, bundle, operands)
            bundle = self.bundles[bundle]
        try:
            self._operands[first:] = [self.workshop.apply(term.op, operands, bundle)]
        except TypeMismatch as error:
            raise Ended(error.what) from error

    def _leaf(self, variable: Variable, ranks: Sequence[int], dtype: str) -> SymbolicTerm:
        name = variable.name
        if name not in self.leaves:
            rank = self.path.choose(f"rank of {name}", ranks)
            if variable.dtype is not None:
                dtype = variable.dtype
            elif self.fixed.looks_at_types:
                dtype = self.path.choose(f"type of {name}", TYPES)
            elif dtype in BYTES:  # saturation depends on the type
                kinds = tuple(sorted(BYTES))
                is_first = not any(leaf.dtype in BYTES for leaf in self.leaves.values())
                dtype = self.path.choose(f"type of {name}", kinds[:1] if is_first and not self.fixed.tells_bytes_apart else kinds)
            shape = tuple(integer(self.path, self.path.symbol(f"{name}{axis}")) for axis in range(rank))
            self.leaves[name] = self.workshop.leaf(name, dtype, shape)
            self.workshop.numbers[name] = self._number(self.fixed.numbers.get(name))
        return self.leaves[name]

    def _ranks(self, op: str, before: list[SymbolicTerm]) -> Sequence[int] | None:
        """Return the ranks that the next operand may have."""
        allowed, position = self.fixed.ranks, len(before)
        match op:
            case "MaxPool" | "AveragePool" | "Conv" | "ConvTranspose" | "InstanceNormalization" if position == 0:
                return self.fixed.windowed
            case "Conv" | "ConvTranspose":
                return (len(before[0].shape),)
            case "InstanceNormalization":
                return (1,)
            case "Concat" if position:
                return (len(before[0].shape),)
            case "Quantize" | "Dequantize" if position:  # one number, or of the rank of the tensor that they scale
                return sorted({0, len(before[0].shape)})
            case "LayerNormalization" | "PRelu" if position:
                return [rank for rank in allowed if rank <= len(before[0].shape)]
        if OPS[op].category == "elementwise" or op in ("Reshape", "Expand", "Transpose"):
            return None
        return [rank for rank in allowed if rank >= 1]

    def _bundle(self, op: str, name: str, operands: list[SymbolicTerm]) -> Attributes:
        shape = operands[0].shape
        values: dict[str, Any] = {}
        for attribute in OPS[op].attributes:
            fixed = self.fixed.values.get((name, attribute))
            values[attribute] = self._value(op, name, attribute, shape) if fixed is None else self._number(fixed)
        if op == "Pad" and values["mode"] != "constant":
            values["value"] = 0.0
        return attributes(**values)

    def _value(self, op: str, bundle: str, attribute: str, shape: tuple[Any, ...]) -> Any:
        rank, space = len(shape), len(shape) - 2
        label = f"{bundle}.{attribute}"
        match attribute:
            case "strides" | "dilations" | "kernel_shape":
                return self._unknowns(bundle, attribute, space, 1)
            case "output_padding":
                return self._unknowns(bundle, attribute, space, 0)
            case "pads":
                return self._unknowns(bundle, attribute, 2 * space, 0)
            case "before" | "after":
                return self._unknowns(bundle, attribute, rank, 0)
            case "group" | "size":
                return self._unknowns(bundle, attribute, 1, 1)[0]
            case "layout":
                return self.path.choose(label, ("NCHW", "NHWC"))
            case "count_include_pad":
                return self.path.choose(label, (0, 1))
            case "approximate":
                return self.path.choose(label, ("none", "tanh"))
            case "mode":
                return self.path.choose(label, ("constant", "reflect", "edge", "wrap"))
            case "axis":
                return self.path.choose(label, range(rank))
            case "axes":
                return self.path.choose(label, [s for n in range(1, rank + 1) for s in itertools.combinations(range(rank), n)])
            case "perm":
                return self.path.choose(label, tuple(itertools.permutations(range(rank))))
            case "shape":
                ranks = self.fixed.ranks if op == "Reshape" else [r for r in self.fixed.ranks if r >= rank]
                return self._unknowns(bundle, attribute, self.path.choose(f"rank of {label}", ranks), 1)
            case "starts" | "ends" | "steps":
                return self._cut(bundle, rank)[attribute]
            case "min" | "max" | "value":
                return Unsettled(self.path, label)
            case "alpha" | "beta" | "gamma" | "bias" | "epsilon" | "cubic_coeff_a":
                return SymbolicNumber(self.path, self.path.real(label))
        raise LeftOut(f"{op} with attribute {attribute}")

    def _unknowns(self, bundle: str, attribute: str, count: int, minimum: int) -> tuple[Any, ...]:
        values = self.fixed.sets.get(attribute)
        if values is not None:
            return tuple(self.path.choose(f"{bundle}.{attribute}[{i}]", values) for i in range(count))
        return tuple(integer(self.path, self.path.symbol(f"{bundle}_{attribute}{i}", minimum)) for i in range(count))

    def _number(self, value: float | Quotient | None) -> Any:
        return SymbolicNumber(self.path, value.above, value.below, value.roundings, value.key) if isinstance(value, Quotient) else value

    def _cut(self, bundle: str, rank: int) -> dict[str, tuple[Any, ...]]:
        """Return starts, ends and steps: ``count`` positions from ``start`` on, ``step`` apart, upwards or downwards."""
        starts, ends, steps = [], [], []
        for axis in range(rank):
            start = integer(self.path, self.path.symbol(f"{bundle}_start{axis}", 0))
            count = integer(self.path, self.path.symbol(f"{bundle}_count{axis}"))
            step = integer(self.path, self.path.signed_symbol(f"{bundle}_step{axis}", f"{bundle} goes down axis {axis}"))
            starts.append(start)
            steps.append(step)
            ends.append(start + count * step)
        return {"starts": tuple(starts), "ends": tuple(ends), "steps": tuple(steps)}

