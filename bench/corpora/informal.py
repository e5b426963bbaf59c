"""Informal statements over tensors of given shapes: TASO's operators and the usual ones, with numbers where tensors stand.

They have what TASO's language lacks: arithmetic that broadcasts, numbers, reductions, reshapes to written shapes, SAME_UPPER
padding, equal splits. An attribute that a right side omits is the left side's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from bench.corpora.constants import number
from bench.corpora.statements import Guard
from bench.corpora.taso_operators import Operand, Reading, same_pad
from bench.corpora.taso_values import Value, plain, refuse
from bench.corpora.terms import Application, Term
from egraph.errors import RuleError, TypeMismatch
from egraph.rewrite.law import Stated
from egraph.rewrite.terms import Pattern, Variable
from egraph.rule import Binding, Mismatch, Rule, Steps, Tensor, require
from egraph.rule_operators import (
    average_pool,
    binary,
    conv,
    expand,
    log_softmax,
    maximum,
    minimum,
    pad,
    power,
    reduce_max,
    reduce_mean,
    reduce_sum,
    reshape,
    slice_,
    softmax,
    transpose,
    unary,
    where,
)
from egraph.tensor import TensorType, placeholder
from verify.random_binding import Refused

SIZES = (1, 1, 2, 3, 4, 5)
Shape = tuple[int, ...]


def integers(text: object) -> Shape | None:
    """Return the numbers of ``[2,3]``, None for anything else."""
    matched = re.fullmatch(r"\[(-?\d+(?:,-?\d+)*)\]", str(text))
    return tuple(int(entry) for entry in matched.group(1).split(",")) if matched else None


class InformalReading(Reading):
    """Evaluates informal terms; remembers the attributes of windows for right sides that omit them."""

    def __init__(self, variables: Mapping[str, Tensor], seed: Tensor) -> None:
        super().__init__(variables, seed, {})
        self.window: tuple[int, ...] = (3, 3, 1, 1, 0)

    def _operand(self, term: Term) -> Operand:
        if isinstance(term, int) or (isinstance(term, str) and re.fullmatch(r"-?\d+\.\d+", term)):
            return plain(number(self.seed, float(term)))
        return super()._operand(term)

    def _tensor(self, term: Term) -> Tensor:
        operand = self.operand(term)
        if not isinstance(operand, Value):
            raise RuleError("a constant without sizes")
        return operand.tensor

    def _application(self, operator: str, arguments: tuple[Term, ...]) -> Operand:
        match operator, arguments:
            case _, (x, y) if operator in BINARY:
                return plain(BINARY[operator](self._tensor(x), self._tensor(y)))
            case _, (x,) if operator in UNARY:
                return plain(unary(UNARY[operator], self._tensor(x)))
            case "rsqrt", (x,):
                return plain(unary("Reciprocal", unary("Sqrt", self._tensor(x))))
            case "clip" | "clamp", (x, int() | str() as low, int() | str() as high):
                return plain(minimum(maximum(self._tensor(x), self._tensor(low)), self._tensor(high)))
            case "where" | "select", (c, x, y):
                condition = self._tensor(c)
                condition = condition if condition.type.dtype == "bool" else binary("Greater", condition, number(self.seed, 0.0))
                return plain(where(condition, self._tensor(x), self._tensor(y)))
            case "softmax" | "log_softmax", (int(axis), x):
                apply = softmax if operator == "softmax" else log_softmax
                return plain(apply(self._tensor(x), axis=axis))
            case "batchnorm", (x, scale, bias, mean, variance):
                data, *rows = (self._tensor(each) for each in (x, scale, bias, mean, variance))
                s, b, m, v = (reshape(row, shape=(1, data.shape[1], *(1,) * (data.rank - 2))) for row in rows)
                return plain((data - m) * unary("Reciprocal", unary("Sqrt", v + number(self.seed, EPSILON))) * s + b)
            case "pad0" | "pad", (int(amount), x):
                tensor = self._tensor(x)
                border = tuple(amount if axis >= tensor.rank - 2 else 0 for axis in range(tensor.rank))
                return plain(pad(tensor, before=border, after=border, mode="constant", value=0.0))
            case "slice", (x, low, high) if (starts := integers(low)) is not None and (ends := integers(high)) is not None:
                return plain(slice_(self._tensor(x), starts=starts, ends=ends, steps=(1,) * len(starts)))
            case "conv2d", ("SAME" | "VALID" as padding, x, w):
                return super()._application("conv2d", (1, 1, int(padding == "VALID"), 0, x, w))
            case "conv2d", (str(stride), "SAME" | "VALID" as padding, x, w) if stride.startswith("stride="):
                step = int(stride.removeprefix("stride="))
                return super()._application("conv2d", (step, step, int(padding == "VALID"), 0, x, w))
            case "poolavg", (int(kh), int(kw), int(sh), int(sw), *words, x) if set(words) <= AVERAGING:
                self.window = (kh, kw, sh, sw, int("VALID" in words))
                return plain(self._average(self._tensor(x), counted="include_pad" in words))
            case "poolavg", (x,):
                return plain(self._average(self._tensor(x), counted=False))
            case "conv2d", (x, w):
                return super()._application("conv2d", (1, 1, 0, 0, x, w))
            case "conv2d", ("relu", x, w):
                return super()._application("conv2d", (1, 1, 0, 2, x, w))
            case "conv2d", (str(stride), "SAME_UPPER", x, w):
                return plain(_same_upper(int(stride.removeprefix("stride=")), self._tensor(x), self._tensor(w)))
            case "poolmax", (int(kh), int(kw), int(sh), int(sw), *padding, x):
                self.window = (kh, kw, sh, sw, 1 if padding == ["VALID"] else 0)
                return super()._application("poolmax", (*self.window, x))
            case "poolmax", (x,):
                return super()._application("poolmax", (*self.window, x))
            case "reduce_mean" | "reduce_sum" | "reduce_max", (int(axis), x):
                reduce = {"reduce_mean": reduce_mean, "reduce_sum": reduce_sum, "reduce_max": reduce_max}[operator]
                tensor = self._tensor(x)
                if not 0 <= axis < tensor.rank:
                    refuse(f"there is no axis {axis}")
                kept = reduce(tensor, axes=(axis,))
                return plain(reshape(kept, shape=tuple(s for i, s in enumerate(tensor.shape) if i != axis)))
            case "transpose", (x, perm) if (order := integers(perm)) is not None:
                return plain(transpose(self._tensor(x), perm=order))
            case "reshape", (x, shape) if (sizes := integers(shape)) is not None:
                return plain(reshape(self._tensor(x), shape=sizes))
            case "concat", (str() | Application(), *_):
                return super()._application("concat", (0, *arguments))
            case "split_0" | "split_1", (x,) if not isinstance(x, Application) or x.operator != "split":
                return super()._application(operator, (0, x))
            case "half_0" | "half_1", (Application("concat", (int(axis), *_)) as x,):
                return plain(_half(self._tensor(x), axis, int(operator[-1])))
        return super()._application(operator, arguments)

    def _average(self, x: Tensor, *, counted: bool) -> Tensor:
        """Return the mean over windows; ``counted``: the padding counts, as ONNX's ``count_include_pad``."""
        kh, kw, sh, sw, valid = self.window
        if x.rank != 4:
            refuse("poolavg: the operand has four axes")
        sides = (0, 0) if valid else tuple(same_pad(*each) for each in zip(x.shape[2:], (kh, kw), (sh, sw), strict=True))
        values: dict[str, Any] = {"kernel_shape": (kh, kw), "strides": (sh, sw), "dilations": (1, 1), "layout": "NCHW", "pads": sides * 2}
        return average_pool(x, **values, count_include_pad=int(counted))


AVERAGING = frozenset({"SAME", "VALID", "include_pad", "exclude_pad"})
EPSILON = 1e-5
UNARY: Mapping[str, str] = {
    "neg": "Neg", "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "abs": "Abs", "erf": "Erf", "floor": "Floor", "ceil": "Ceil", "sign": "Sign",
    "sin": "Sin", "cos": "Cos", "softplus": "Softplus", "reciprocal": "Reciprocal", "relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid",
}  # fmt: skip
BINARY: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y, "div": lambda x, y: x / y,
    "max": maximum, "min": minimum, "pow": power,
}  # fmt: skip
OPERATORS = frozenset({
    *UNARY, *BINARY, "rsqrt", "clip", "clamp", "where", "select", "softmax", "log_softmax", "batchnorm", "pad0", "pad", "slice", "concat",
    "conv2d", "enlarge", "poolmax", "poolavg", "reduce_mean", "reduce_sum", "reduce_max", "transpose", "reshape", "matmul", "smul",
    "ewadd", "ewmul", "split_0", "split_1", "half_0", "half_1", "Cpool", "Iconv",
})  # fmt: skip
WORDS = frozenset({"SAME", "SAME_UPPER", *AVERAGING})


def _half(x: Tensor, axis: int, part: int) -> Tensor:
    if x.shape[axis] % 2 != 0:
        refuse("an odd size has no halves")
    half = x.shape[axis] // 2
    starts = tuple(part * half if i == axis else 0 for i in range(x.rank))
    ends = tuple((part + 1) * half if i == axis else size for i, size in enumerate(x.shape))
    return slice_(x, starts=starts, ends=ends, steps=(1,) * x.rank)


def _same_upper(stride: int, x: Tensor, w: Tensor) -> Tensor:
    """The padding of ONNX: as little as gives ceil(size / stride) outputs, the odd one after."""
    before, after = [], []
    for size, taps in zip(x.shape[2:], w.shape[2:], strict=True):
        total = ((size + stride - 1) // stride - 1) * stride + taps - size
        total = total if total > 0 else 0
        before.append(total // 2)
        after.append(total - total // 2)
    return conv(x, w, strides=(stride,) * 2, dilations=(1, 1), pads=(*before, *after), group=1, layout="NCHW")


def informal_rule(
    name: str, left: Term, right: Term, shapes: Mapping[str, Shape], *, typed: bool = False, guards: tuple[Guard, ...] = ()
) -> Rule:
    """Return the rule that equates two informal terms, for variables of the ranks that ``shapes`` have."""
    variables = tuple(Variable(variable, False) for variable in shapes)

    def function(**tensors: Tensor) -> Steps:
        reading = InformalReading(tensors, next(iter(tensors.values())))
        left_value = reading.tensor(left)
        for guard in guards:
            require(guard.holds(reading), guard.text)
        if typed and not isinstance(right, int):
            require(reading.tensor(right).shape == left_value.shape, "the right side must have the left's type")
        yield left_value
        result = reading.tensor(right)
        if isinstance(right, int):  # a number stands for a tensor full of it
            result = expand(result, shape=left_value.shape)
        if result.shape != left_value.shape:
            refuse("the right side has another type")
        yield result

    def draw(random: Random) -> Binding:
        for _ in range(20):
            drawn = _around(shapes, random)
            tensors = {v.name: Tensor(placeholder(i, TensorType("float32", drawn[v.name]))) for i, v in enumerate(variables)}
            try:
                next(function(**tensors))
            except (TypeMismatch, Mismatch):
                continue
            return Binding({variable: TensorType("float32", shape) for variable, shape in drawn.items()}, {})
        raise Refused("no draw around the stated shapes is well-typed")

    ranks = {variable: len(shape) for variable, shape in shapes.items()}
    pattern = Pattern("informal", (), variables)
    return Rule(name, f"{left} = {right}", pattern, variables, (), Stated(function), "assumes finite", draw=draw, ranks=ranks)


def _around(shapes: Mapping[str, Shape], random: Random) -> Mapping[str, Shape]:
    """Return the stated shapes, or others in which equal sizes mostly stay equal."""
    if random.random() < 0.3:
        return shapes
    renamed: dict[int, int] = {}
    chance = random.choice((0.0, 0.1, 0.4))

    common = random.choice(SIZES) if random.random() < 0.25 else None

    def other(size: int) -> int:
        if common is not None and random.random() > chance:
            return common
        if random.random() < chance:
            return random.choice(SIZES)
        return renamed.setdefault(size, random.choice((size, *SIZES)))

    return {name: tuple(other(size) for size in shape) for name, shape in shapes.items()}
