"""The replacements in mutants: operators, functions and names; and how an attribute changes."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from egraph.rewrite.evaluator import Evaluator
from egraph.rewrite.values import Native
from egraph.rule import Attributes
from egraph.tensor import Attributes as AttributeTuple
from egraph.tensor import attributes

FUNCTIONS: Mapping[str, str] = {
    "maximum": "minimum", "minimum": "maximum", "relu": "absolute", "sigmoid": "tanh", "tanh": "sigmoid", "exp": "erf", "sqrt": "exp",
    "reduce_sum": "reduce_mean", "reduce_mean": "reduce_sum", "reduce_max": "reduce_sum", "max_pool": "average_pool",
    "softmax": "log_softmax", "log_softmax": "softmax", "softplus": "softsign", "hard_swish": "mish", "reciprocal": "absolute",
    "all": "any", "any": "all", "min": "max", "max": "min", "power": "maximum", "hard_sigmoid": "leaky_relu",
}  # fmt: skip
NAMES: Mapping[str, str] = {
    "Add": "Sub", "Sub": "Add", "Mul": "Add", "Div": "Mul", "Pow": "Mul", "Max": "Min", "Min": "Max", "Relu": "Abs", "Abs": "Relu",
    "ReduceSum": "ReduceMax", "ReduceMax": "ReduceMin", "ReduceMin": "ReduceMax", "ReduceMean": "ReduceSum", "ReduceProd": "ReduceSum",
    "NCHW": "NHWC", "NHWC": "NCHW", "constant": "edge", "Exp": "Tanh", "Tanh": "Sigmoid", "Sigmoid": "Tanh", "Erf": "Tanh", "Log": "Sqrt",
    "Sqrt": "Exp", "Neg": "Abs", "Reciprocal": "Neg", "HardSwish": "Mish", "Mish": "HardSwish", "Softplus": "Softsign",
    "Softsign": "Softplus", "Elu": "LeakyRelu", "LeakyRelu": "Elu", "Softmax": "LogSoftmax", "LogSoftmax": "Softmax",
    "none": "tanh", "tanh": "none",
}  # fmt: skip
OPERATORS: Mapping[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
LEFT_OUT = frozenset({
    "relu", "sigmoid", "tanh", "exp", "log", "sqrt", "erf", "reciprocal", "absolute", "softplus", "softsign", "hard_swish", "hard_sigmoid",
    "mish", "gelu", "leaky_relu", "clip", "reshape", "transpose", "slice_", "pad", "expand", "reduce_sum", "reduce_mean", "reduce_max",
    "max_pool", "average_pool", "softmax", "log_softmax", "unary", "inverse", "sorted", "reversed", "with_rank",
})  # fmt: skip
"""Functions that can be left out, so that their operand remains."""
REQUIRE = ("require", "require_number", "require_attribute")
ORDERED = (*REQUIRE, "range", "zip", "enumerate", "isinstance", "sorted", "tuple", "list", "sum")
"""Functions whose arguments are not operands."""
KINDS: Mapping[str, str] = {
    "perm": "permutation changed", "axis": "axis changed", "axes": "axis changed", "pads": "pad changed", "before": "pad changed",
    "after": "pad changed", "strides": "stride changed", "steps": "stride changed", "dilations": "stride changed",
    "starts": "slice changed", "ends": "slice changed",
}  # fmt: skip
"""The names of changes of an attribute; other changes are called "attribute changed"."""
WAYS = 2
"""The number of ways in which an attribute is changed: another value, another order."""


def changed(run: Evaluator, value: Any, way: int) -> Any:
    """Return an attribute's value with something else in it: one more, the next word, the entries turned round, the first alone changed."""
    match value:
        case bool():
            return not value
        case str():
            return NAMES.get(value, value)
        case tuple() | list():
            return (*(run.arithmetic("+", entry, 1) for entry in value[:1]), *value[1:]) if way else tuple(value)[::-1]
    return run.arithmetic("-" if way else "+", value, 1)


def altered(run: Evaluator, bundle: Attributes | AttributeTuple | None, name: str, way: int) -> Attributes | AttributeTuple | None:
    """Return attributes with one of them changed; those of a pattern are names, and stay."""
    values = bundle.values if isinstance(bundle, Attributes) else bundle
    if values is None:
        return bundle
    return attributes(**{key: changed(run, value, way) if key == name else value for key, value in values})


def backwards(values: Sequence[Any]) -> Sequence[Any]:
    """Return the entries in the opposite order."""
    return tuple(values)[::-1]


CALLED: Mapping[str, Native] = {
    "_changed": Native("_changed", changed, evaluating=True), "_altered": Native("_altered", altered, evaluating=True),
    "_backwards": Native("_backwards", backwards),
}  # fmt: skip
"""What the text of a mutant may call."""
