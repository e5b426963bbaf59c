"""TASO's operators over rule tensors: conventions of its runtime, written with our operators and size arithmetic.

Data is NCHW, weights OIHW; a convolution's groups follow from the sizes; SAME padding is symmetric, (total + 1) // 2;
nothing broadcasts; an average counts the padding. A term without a type raises ``TypeMismatch``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from bench.corpora.constants import centred, filled, identity_kernel, identity_matrix, pooling_kernel
from bench.corpora.taso_values import Constant, Seam, Seams, Shape, Value, common, cut, plain, refuse
from bench.corpora.terms import Application, Term, substitute
from egraph.errors import RuleError
from egraph.rule import Tensor
from egraph.rule_operators import average_pool, concat, conv, max_pool, pad, relu, reshape, sigmoid, slice_, tanh, transpose
from egraph.tensor.ops.sizes import divide
from verify.symbolic import opaque

Operand: TypeAlias = Value | Constant
SAME, VALID = 0, 1
ACTIVATIONS: Mapping[int, Callable[[Tensor], Tensor]] = {1: sigmoid, 2: relu, 3: tanh}


def same_pad(size: int, kernel: int, stride: int) -> int:
    """(total + 1) // 2 with total = max(k - s, 0) where s divides the size, else max(k - size % s, 0)"""
    if stride == 1:
        return kernel // 2
    pad: int = opaque(f"SAME padding at stride {stride}", _strided_pad, size, kernel, stride)
    return pad


def _strided_pad(size: int, kernel: int, stride: int) -> int:
    remainder = size % stride
    total = kernel - stride if remainder == 0 else kernel - remainder
    return (total + 1) // 2 if total > 0 else 0


def _pads(padding: int, space: Shape, kernel: Shape, strides: Shape) -> Shape:
    if padding == VALID:
        return (0,) * (2 * len(space))
    return tuple(same_pad(*each) for each in zip(space, kernel, strides, strict=True)) * 2


def _activated(value: Value, activation: int) -> Value:
    return Value(ACTIVATIONS[activation](value.tensor), value.seams) if activation else value


def _quotient(total: int, divisor: int, reason: str) -> int:
    """Return total / divisor; raises ``TypeMismatch`` unless it divides. Sizes may be symbolic, as in every rule."""
    return divide(total, divisor, reason)  # type: ignore[return-value]


def _conv(strides: Shape, padding: int, activation: int, x: Value, w: Value) -> Value:
    if x.tensor.rank != 4 or w.tensor.rank != 4:
        refuse("conv2d: operands have four axes")
    pads = _pads(padding, x.shape[2:], w.shape[2:], strides)
    group = _quotient(x.shape[1], w.shape[1], "conv2d: the weight's input channels must divide the data's")
    result = conv(x.tensor, w.tensor, strides=strides, dilations=(1, 1), pads=pads, group=group, layout="NCHW")
    return _activated(Value(result, (x.seams[0], w.seams[0], (), ())), activation)


def _pool(kind: str, kernel: Shape, strides: Shape, padding: int, activation: int, x: Value) -> Value:
    if x.tensor.rank != 4:
        refuse("pool2d: the operand has four axes")
    window: dict[str, Any] = {
        "kernel_shape": kernel, "strides": strides, "dilations": (1, 1), "layout": "NCHW",
        "pads": _pads(padding, x.shape[2:], kernel, strides),
    }  # fmt: skip
    result = max_pool(x.tensor, **window) if kind == "poolmax" else average_pool(x.tensor, **window, count_include_pad=1)
    return _activated(Value(result, (x.seams[0], x.seams[1], (), ())), activation)


def _elementwise(operator: str, x: Operand, y: Operand) -> Value:
    if isinstance(x, Constant) and isinstance(y, Constant):
        raise RuleError(f"{operator}: the sizes of both constants are unknown")
    left = x if isinstance(x, Value) else x.sized(*_value(y).shape)
    right = y if isinstance(y, Value) else y.sized(*left.shape)
    if left.shape != right.shape:
        refuse(f"{operator}: operands must have one shape")
    result = left.tensor + right.tensor if operator == "ewadd" else left.tensor * right.tensor
    return Value(result, common(left.seams, right.seams))


def _scaled(x: Operand, s: Value) -> Operand:
    if isinstance(x, Constant):
        return Constant(lambda shape: x.build(shape) * s.tensor)
    if s.tensor.rank != 0:
        refuse("smul: the factor has no axes")
    return Value(x.tensor * s.tensor, x.seams)


def _concat(axis: int, operands: Sequence[Operand]) -> Value:
    example = next((o for o in operands if isinstance(o, Value)), None)
    if example is None:
        raise RuleError("concat: the sizes of all constants are unknown")
    values = [o if isinstance(o, Value) else o.sized(example.shape[1], *example.shape[1:]) for o in operands]
    if any(axis >= v.tensor.rank or v.tensor.rank != example.tensor.rank for v in values):
        refuse("concat: operands must have one rank")
    result = values[0]
    for value in values[1:]:
        seams = list(common(result.seams, value.seams))
        seams[axis] = (Seam(result.shape[axis], result.seams[axis], value.seams[axis]),)
        result = Value(concat(result.tensor, value.tensor, axis=axis), tuple(seams))
    return result


def _matmul(x: Operand, y: Operand) -> Value:
    if isinstance(x, Constant):
        x = x.sized(*(_value(y).shape[0],) * 2)
    if isinstance(y, Constant):
        y = y.sized(*(x.shape[-1],) * 2)
    if x.tensor.rank != 2 or y.tensor.rank != 2:
        refuse("matmul: operands have two axes")
    return Value(x.tensor @ y.tensor, (x.seams[0], y.seams[1]))


def _transpose(x: Operand) -> Operand:
    if isinstance(x, Constant):
        return Constant(lambda shape: transpose(x.build(shape), perm=(1, 0)))
    if x.tensor.rank != 2:
        refuse("transpose: the operand has two axes")
    seams: tuple[Seams, ...] = (x.seams[1], x.seams[0])
    return Value(transpose(x.tensor, perm=(1, 0)), seams)


def _merged(w: Tensor, count: int) -> Constant:
    """Return a grouped convolution's weight with ``count`` groups in one, zeros where they did not meet; its data gives the groups."""

    def build(shape: Shape) -> Tensor:
        outputs, width, *kernel = w.shape
        groups = _quotient(shape[0], width, "merge: the weight's input channels must divide the data's")
        wide = _quotient(groups, count, "merge: the count must divide the number of groups")
        each = reshape(w, shape=(wide, count, _quotient(outputs, groups, "merge: the groups must divide the outputs"), width, *kernel))
        blocks = []
        for block in range(count):
            starts, ends = (0, block, 0, 0, 0, 0), (wide, block + 1, *each.shape[2:])
            part = slice_(each, starts=starts, ends=ends, steps=(1,) * 6)
            before, after = (0, 0, 0, width * block, 0, 0), (0, 0, 0, width * (count - 1 - block), 0, 0)
            blocks.append(pad(part, before=before, after=after, mode="constant", value=0.0))
        return reshape(concat(*blocks, axis=1), shape=(outputs, width * count, *kernel))

    return Constant(build)


def _value(operand: Operand) -> Value:
    if isinstance(operand, Constant):
        raise RuleError("the sizes of a constant are unknown here")
    return operand


class Reading:
    """Evaluate terms over the tensors of a bound rule; ``seed`` is any tensor, from which constants are made."""

    def __init__(self, variables: Mapping[str, Tensor], seed: Tensor, parameters: Mapping[str, Term]) -> None:
        self.variables, self.seed, self.parameters = variables, seed, parameters
        self.known: dict[Term, Operand] = {}

    def number(self, term: Term) -> int:
        """Return a parameter's value."""
        return int(str(self.parameters.get(term, term) if isinstance(term, str) else term))

    def tensor(self, term: Term) -> Tensor:
        """Return the tensor that a term denotes; raises ``TypeMismatch`` when it has none."""
        operand = self.operand(substitute(term, self.parameters))
        if isinstance(operand, Constant):
            size = self.seed.shape[0] if self.seed.rank == 1 else 1
            return operand.sized(size, 1).tensor
        return operand.tensor

    def operand(self, term: Term) -> Operand:
        if term not in self.known:
            self.known[term] = self._operand(term)
        return self.known[term]

    def _operand(self, term: Term) -> Operand:
        match term:
            case "Imatmul":
                return Constant(lambda shape: identity_matrix(self.seed, shape[0]))
            case "Iewmul":
                return Constant(lambda shape: filled(self.seed, 1.0, shape))
            case str():
                return plain(self.variables[term])
            case Application(operator, arguments):
                return self._application(operator, arguments)
        raise RuleError(f"a number stands where a tensor is needed: {term}")

    def _application(self, operator: str, arguments: tuple[Term, ...]) -> Operand:
        match operator, arguments:
            case "conv2d", (int(sh), int(sw), int(padding), int(activation), x, w):
                data, weight = _value(self.operand(x)), self.operand(w)
                weight = weight if isinstance(weight, Value) else weight.sized(data.shape[1], 1)
                return _conv((sh, sw), padding, activation, data, weight)
            case "poolmax" | "poolavg", (int(kh), int(kw), int(sh), int(sw), int(padding), *activation, x):
                act = int(str(activation[0])) if activation else 0
                operand = self.operand(x)
                if isinstance(operand, Constant):
                    flexible = operand
                    return Constant(lambda shape: _pool(operator, (kh, kw), (sh, sw), padding, act, flexible.sized(*shape)).tensor)
                return _pool(operator, (kh, kw), (sh, sw), padding, act, operand)
            case "relu" | "sigmoid" | "tanh", (x,):
                value = _value(self.operand(x))
                return _activated(value, {"sigmoid": 1, "relu": 2, "tanh": 3}[operator])
            case "ewadd" | "ewmul", (x, y):
                return _elementwise(operator, self.operand(x), self.operand(y))
            case "smul", (x, y):
                return _scaled(self.operand(x), _value(self.operand(y)))
            case "matmul", (x, y):
                return _matmul(self.operand(x), self.operand(y))
            case "matmul", (int(activation), x, y):
                return _activated(_matmul(self.operand(x), self.operand(y)), activation)
            case "transpose", (x,):
                return _transpose(self.operand(x))
            case "concat", (int(axis), int(), *operands) if len(operands) >= 2:
                return _concat(axis, [self.operand(term) for term in operands])
            case "concat", (int(axis), *operands):
                return _concat(axis, [self.operand(term) for term in operands])
            case "split_0" | "split_1", (Application("split", (int(axis), x)),):
                return cut(_value(self.operand(x)), axis, int(operator[-1]))
            case "split_0" | "split_1", (int(axis), x):
                return cut(_value(self.operand(x)), axis, int(operator[-1]))
            case "enlarge", (int(kh), int(kw), x):
                weight = _value(self.operand(x))
                return Value(centred(weight.tensor, (kh, kw)), weight.seams)
            case "enlarge", (x, reference):
                weight, reference_value = _value(self.operand(x)), _value(self.operand(reference))
                return Value(centred(weight.tensor, reference_value.shape[2:]), weight.seams)
            case "merge", (x, int(count)):
                return _merged(_value(self.operand(x)).tensor, count)
            case "Iconv", (int(kh), int(kw)):
                return identity_kernel(self.seed, (kh, kw))
            case "Iconv", (int(k),):
                return identity_kernel(self.seed, (k, k))
            case "Cpool", (int(kh), int(kw)):
                return pooling_kernel(self.seed, (kh, kw))
        raise RuleError(f"operator {operator} with {len(arguments)} arguments is unknown: {Application(operator, arguments)}")
