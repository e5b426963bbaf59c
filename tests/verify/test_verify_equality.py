"""Laws of tensor programs over symbolic shapes are proved if they hold for all sizes, and stay open otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest

from egraph.tensor.expr.compose import inline
from egraph.tensor.expr.evaluate import evaluate
from egraph.tensor.expr.index import Index, Iterator, Size, Symbol, index, substitute
from egraph.tensor.expr.scope import Compare, Scope, Tensor
from egraph.tensor.ops import OPS
from verify.assumptions import Assumptions
from verify.equality import Equal, Open, prove_equal

B, C, C1, C2, D, F, F1, F2, G, H, K, L, M, N, R, S, T, W = (
    index(Symbol(name)) for name in ("b", "c", "c1", "c2", "d", "f", "f1", "f2", "g", "h", "k", "l", "m", "n", "r", "s", "t", "w")
)
P, Q = index(Symbol("p", 0)), index(Symbol("q", 0))
Operand = Tensor | Scope


def var(name: str, *shape: Size) -> Tensor:
    return Tensor(name, tuple(shape))


def op(name: str, *operands: Operand, **attributes: Any) -> Scope:
    """Return the operator's meaning with operands substituted."""
    places = [Tensor(f"%{i}", operand.shape) for i, operand in enumerate(operands)]
    scope = OPS[name].meaning(places, attributes)
    return inline(scope, {f"%{i}": operand for i, operand in enumerate(operands)})


def matmul(left: Operand, right: Operand) -> Scope:
    return op("MatMul", left, right)


def add(left: Operand, right: Operand) -> Scope:
    return op("Add", left, right)


def concat(axis: int, *parts: Operand) -> Scope:
    return op("Concat", *parts, axis=axis)


def transpose(value: Operand, *perm: int) -> Scope:
    return op("Transpose", value, perm=perm)


def reshape(value: Operand, *shape: Size) -> Scope:
    return op("Reshape", value, shape=shape)


def cut(value: Operand, axis: int, start: Size, end: Size, step: Size = 1) -> Scope:
    rank = len(value.shape)
    return op(
        "Slice", value,
        starts=tuple(start if a == axis else 0 for a in range(rank)),
        ends=tuple(end if a == axis else value.shape[a] for a in range(rank)),
        steps=tuple(step if a == axis else 1 for a in range(rank)),
    )  # fmt: skip


def pad(value: Operand, before: Sequence[Size], after: Sequence[Size], fill: float = 0.0) -> Scope:
    return op("Pad", value, before=tuple(before), after=tuple(after), mode="constant", value=fill)


def conv(
    data: Operand, weight: Operand, strides: Sequence[Size] = (), pads: Sequence[Size] = (), dilations: Sequence[Size] = (),
    group: Size = 1, layout: str = "NCHW",
) -> Scope:  # fmt: skip
    ones = (1,) * (len(weight.shape) - 2)
    strides, dilations, pads = strides or ones, dilations or ones, pads or (0,) * 2 * len(ones)
    return op("Conv", data, weight, strides=strides, pads=pads, dilations=dilations, group=group, layout=layout)


def pool(
    kind: str, data: Operand, size: Sequence[Size], strides: Sequence[Size] = (1,), pads: Sequence[Size] = (0, 0), **more: Any
) -> Scope:
    dilations = more.pop("dilations", (1,) * len(size))
    return op(kind, data, kernel_shape=size, strides=strides, pads=pads, dilations=dilations, layout="NCHW", **more)


def relu(value: Operand) -> Scope:
    return op("Relu", value)


def le(left: Size, right: Size) -> Compare:
    return Compare(index(left), "<=", index(right))


def lt(left: Size, right: Size) -> Compare:
    return Compare(index(left), "<", index(right))


def eq(left: Size, right: Size) -> Compare:
    return Compare(index(left), "==", index(right))


x, y, z, w, k = var("x", N, K), var("y", K, M), var("z", M, L), var("w", K, M), var("k", F, C, R, T)
image, signal, filter_ = var("a", B, C, H, W), var("a", B, C, H), var("k", F, C, R)
two: dict[str, Any] = {"strides": (S, D), "pads": (P, Q, P, Q), "dilations": (S, D)}

TRUE: dict[str, tuple[Operand, Operand, tuple[Compare, ...]]] = {
    "product is associative": (matmul(matmul(x, y), z), matmul(x, matmul(y, z)), ()),
    "product distributes": (matmul(x, add(y, w)), add(matmul(x, y), matmul(x, w)), ()),
    "product of a sum": (matmul(op("Sub", x, var("v", N, K)), y), op("Sub", matmul(x, y), matmul(var("v", N, K), y)), ()),
    "inner concat": (
        matmul(concat(1, var("x", N, C1), var("z", N, C2)), concat(0, var("y", C1, M), var("w", C2, M))),
        add(matmul(var("x", N, C1), var("y", C1, M)), matmul(var("z", N, C2), var("w", C2, M))), (),
    ),
    "outer concat": (
        concat(1, matmul(x, var("y", K, C1)), matmul(x, var("z", K, C2))), matmul(x, concat(1, var("y", K, C1), var("z", K, C2))), (),
    ),
    "a slice undoes a concat": (
        cut(matmul(x, concat(1, var("y", K, C1), var("z", K, C2))), 1, C1, C1 + C2), matmul(x, var("z", K, C2)), (),
    ),
    "transposed product": (transpose(matmul(x, y), 1, 0), matmul(transpose(y, 1, 0), transpose(x, 1, 0)), ()),
    "output channels": (
        conv(image, concat(0, var("k", F1, C, R, T), var("l", F2, C, R, T)), **two),
        concat(1, conv(image, var("k", F1, C, R, T), **two), conv(image, var("l", F2, C, R, T), **two)), (),
    ),
    "input channels": (
        conv(concat(1, var("a", B, C1, H, W), var("b", B, C2, H, W)), concat(1, var("k", F, C1, R, T), var("l", F, C2, R, T)), **two),
        add(conv(var("a", B, C1, H, W), var("k", F, C1, R, T), **two), conv(var("b", B, C2, H, W), var("l", F, C2, R, T), **two)), (),
    ),
    "convolution is linear in its weight": (
        conv(image, add(k, var("l", F, C, R, T)), **two), add(conv(image, k, **two), conv(image, var("l", F, C, R, T), **two)), (),
    ),
    "kernels may grow": (
        conv(signal, filter_, (S,), (P, Q)), conv(signal, pad(filter_, (0, 0, 1), (0, 0, 1)), (S,), (P + 1, Q + 1)), (),
    ),
    "kernels may grow by any amount": (
        conv(image, k, (S, S), (P, P, P, P)), conv(image, pad(k, (0, 0, D, Q), (0, 0, M, N)), (S, S), (P + D, P + Q, P + M, P + N)), (),
    ),
    "padding moves into the convolution": (
        conv(pad(signal, (0, 0, P), (0, 0, Q)), filter_, (S,), (0, 0), (D,)), conv(signal, filter_, (S,), (P, Q), (D,)), (),
    ),
    "a pointwise convolution is a product": (
        reshape(conv(image, var("k", F, C, 1, 1), (1, 1), (0, 0, 0, 0), (1, 1)), B, F, H * W),
        matmul(reshape(var("k", F, C, 1, 1), F, C), reshape(image, B, C, H * W)), (),
    ),
    "convolutions compose": (
        conv(conv(signal, filter_, (S,), (P, Q), (D,)), var("l", M, F, 1)),
        conv(signal, reshape(matmul(reshape(var("l", M, F, 1), M, F), reshape(filter_, F, C * R)), M, C, R), (S,), (P, Q), (D,)), (),
    ),
    "reshape of reshape": (reshape(reshape(var("x", N, K, M), N * K, M), N, K * M), reshape(var("x", N, K, M), N, K * M), ()),
    "a reshape merges rows of a product": (
        matmul(reshape(var("x", N, K, M), N * K, M), z), reshape(matmul(var("x", N, K, M), z), N * K, L), (),
    ),
    "a reshape splits the inner axis": (
        matmul(reshape(var("x", N, K, M), N, K * M), reshape(var("y", K, M, L), K * M, L)),
        reshape(op("ReduceSum", op("Mul", reshape(var("x", N, K, M), N, K, M, 1), reshape(var("y", K, M, L), 1, K, M,
        L)), axes=(1, 2)), N, L),
        (),
    ),
    "transpose through a merge": (
        reshape(transpose(var("x", N, K, M), 2, 0, 1), M, N * K), transpose(reshape(var("x", N, K, M), N * K, M), 1, 0), (),
    ),
    "transposes compose": (transpose(transpose(var("x", N, K, M), 2, 0, 1), 1, 0, 2), transpose(var("x", N, K, M), 0, 2, 1), ()),
    "slices compose": (
        cut(cut(var("x", H), 0, P, P + 2 * K, 2), 0, 1, L, 1), cut(var("x", H), 0, P + 2, P + 2 * L, 2), (le(2, L), le(L, K)),
    ),
    "slice of pad": (cut(pad(var("x", H), (P,), (Q,)), 0, P, P + H), var("x", H), ()),
    "pads compose": (pad(pad(var("x", H), (P,), (K,)), (Q,), (L,)), pad(var("x", H), (P + Q,), (K + L,)), ()),
    "concat of slices": (concat(0, cut(var("x", H), 0, 0, K), cut(var("x", H), 0, K, H)), var("x", H), (lt(K, H),)),
    "concat of concats": (
        concat(0, concat(0, var("x", C1), var("y", C2)), var("z", K)), concat(0, var("x", C1), concat(0, var("y", C2), var("z", K))), (),
    ),
    "padding is a concat": (
        pad(concat(0, var("x", C1), var("y", C2)), (0,), (Q,)), concat(0, var("x", C1), pad(var("y", C2), (0,), (Q,))), (),
    ),
    "softmax forgets a shift": (op("Softmax", add(x, var("s", N, 1)), axis=1), op("Softmax", x, axis=1), ()),
    "mean of a concat": (
        op("ReduceMean", concat(1, var("x", N, C1), var("y", N, C2)), axes=(1,)),
        op("Div", add(op("ReduceSum", var("x", N, C1), axes=(1,)), op("ReduceSum", var("y", N, C2), axes=(1,))),
           op("ReduceSum", op("Expand", op("Exp", op("Sub", var("e", 1, 1), var("e", 1, 1))), shape=(1, C1 + C2)), axes=(1,))), (),
    ),
    "an average is a convolution": (
        pool("AveragePool", reshape(signal, B * C, 1, H), (2,), (S,), (P, Q), count_include_pad=1),
        op("Div", conv(reshape(signal, B * C, 1, H), op("Expand", op("Exp", op("Sub", var("e", 1, 1, 1), var("e", 1, 1,
        1))), shape=(1, 1, 2)),
                       (S,), (P, Q)), op("Add", *[op("Exp", op("Sub", var("e", 1, 1, 1), var("e", 1, 1, 1)))] * 2)), (),
    ),
    "maximum of maxima": (
        pool("MaxPool", pool("MaxPool", signal, (R,)), (T,)), pool("MaxPool", signal, (R + T - 1,)), (le(R + T, H + 1),),
    ),
    "strided maximum of maxima": (
        pool("MaxPool", pool("MaxPool", signal, (R,), (2,)), (T,)), pool("MaxPool", signal, (R + 2 * T - 2,), (2,)),
        (le(2, R), le(R + 2 * T - 2, H)),
    ),
    "relu through a maximum": (relu(pool("MaxPool", signal, (R,), (S,), (P, Q))), pool("MaxPool", relu(signal), (R,), (S,), (P, Q)),
                               (lt(P, R), lt(Q, R))),
    "maximum over a concat": (
        op("ReduceMax", concat(1, var("x", N, C1), var("y", N, C2)), axes=(1,)),
        op("Max", op("ReduceMax", var("x", N, C1), axes=(1,)), op("ReduceMax", var("y", N, C2), axes=(1,))), (),
    ),
    "product over a transpose": (op("ReduceProd", transpose(x, 1, 0), axes=(0,)), transpose(op("ReduceProd", x, axes=(1,)), 1, 0), ()),
    "normalisation of halves": (
        op("LayerNormalization", concat(0, var("x", C1, K), var("y", C2, K)), var("s", K), var("b", K), axis=1, epsilon=1e-5),
        concat(0, op("LayerNormalization", var("x", C1, K), var("s", K), var("b", K), axis=1, epsilon=1e-5),
               op("LayerNormalization", var("y", C2, K), var("s", K), var("b", K), axis=1, epsilon=1e-5)), (),
    ),
    "normalisation folds its scale": (
        op("Mul", op("LayerNormalization", x, var("s", K), var("b", K), axis=1, epsilon=1e-5), var("c", K)),
        op("LayerNormalization", x, op("Mul", var("s", K), var("c", K)), op("Mul", var("b", K), var("c", K)), axis=1, epsilon=1e-5), (),
    ),
    "broadcasting commutes with addition": (
        op("Expand", add(var("x", 1, K), var("y", K)), shape=(N, K)), add(op("Expand", var("x", 1, K), shape=(N, K)), var("y", K)), (),
    ),
    "grouped convolutions are independent": (
        cut(conv(var("a", B, 2 * C, H), var("k", 2 * F, C, R), group=2), 1, F, 2 * F),
        conv(cut(var("a", B, 2 * C, H), 1, C, 2 * C), cut(var("k", 2 * F, C, R), 0, F, 2 * F)), (),
    ),
    "gathers of a product": (
        op("Gather", matmul(x, y), Tensor("i", (L,), "int64"), axis=0), matmul(op("Gather", x, Tensor("i", (L,), "int64"), axis=0), y), (),
    ),
}  # fmt: skip

FALSE: dict[str, tuple[Operand, Operand, tuple[Compare, ...]]] = {
    "asymmetric enlargement": (
        conv(signal, filter_, (S,), (P, P)), conv(signal, pad(filter_, (0, 0, 0), (0, 0, 2)), (S,), (P + 1, P + 1)), (),
    ),
    "swapped transpose": (matmul(var("x", N, N), var("y", N, N)), matmul(var("y", N, N), var("x", N, N)), ()),
    "transposed product without swap": (
        transpose(matmul(var("x", N, N), var("y", N, N)), 1, 0), matmul(transpose(var("x", N, N), 1, 0), transpose(var("y", N, N), 1, 0)),
        (),
    ),
    "relu is not linear": (relu(add(var("x", N), var("y", N))), add(relu(var("x", N)), relu(var("y", N))), ()),
    "kernel transposed": (
        conv(var("a", B, C, H, H), var("k", F, C, R, R), (1, 1), (0, 0, 0, 0), (1, 1)),
        conv(var("a", B, C, H, H), transpose(var("k", F, C, R, R), 0, 1, 3, 2), (1, 1), (0, 0, 0, 0), (1, 1)), (),
    ),
    "kernel flipped": (conv(signal, filter_), conv(signal, cut(filter_, 2, R - 1, -1, -1)), ()),
    "mean of means": (
        op("ReduceMean", concat(1, var("x", N, C1), var("y", N, C2)), axes=(1,)),
        op("ReduceMean", concat(1, op("ReduceMean", var("x", N, C1), axes=(1,)), op("ReduceMean", var("y", N, C2), axes=(1,))), axes=(1,)),
        (),
    ),
    "reshape is no transpose": (reshape(transpose(x, 1, 0), N, K), x, ()),
    "merge in the other order": (reshape(transpose(x, 1, 0), N * K), reshape(x, N * K), ()),
    "dropped guard": (conv(signal, filter_, (1,), (P, P)), conv(pad(signal, (0, 0, P), (0, 0, P), 1.0), filter_), ()),
    "pads off by one": (conv(signal, filter_, (1,), (P + 1, P)), conv(pad(signal, (0, 0, P), (0, 0, P + 1)), filter_), ()),
    "maximum of zero padding": (
        pool("MaxPool", signal, (R,), (1,), (P, P)), pool("MaxPool", pad(signal, (0, 0, P), (0, 0, P)), (R,)), (lt(P, R),),
    ),
    "maximum of maxima, one too wide": (
        pool("MaxPool", pool("MaxPool", signal, (R,), (1,), (0, 0)), (T,), (1,), (0, 1)), pool("MaxPool", signal, (R + T,), (1,), (0, 1)),
        (le(R + T, H), le(2, T)),
    ),
    "strided maximum with holes": (
        pool("MaxPool", pool("MaxPool", signal, (1,), (2,)), (T,)), pool("MaxPool", signal, (2 * T - 1,), (2,)), (le(2 * T - 1, H),),
    ),
    "softmax feels a scale": (op("Softmax", op("Mul", x, var("s", N, 1)), axis=1), op("Softmax", x, axis=1), ()),
    "softmax over the other axis": (op("Softmax", add(x, var("s", N, 1)), axis=0), op("Softmax", x, axis=0), ()),
    "slices off by one": (
        cut(cut(var("x", H), 0, P, P + 2 * K, 2), 0, 1, L, 1), cut(var("x", H), 0, P + 1, P + 2 * L - 1, 2), (le(2, L), le(L, K)),
    ),
    "concat swapped": (concat(0, var("x", N), var("y", N)), concat(0, var("y", N), var("x", N)), ()),
    "sum for maximum": (op("ReduceSum", x, axes=(1,)), op("ReduceMax", x, axes=(1,)), ()),
    "product for sum": (op("ReduceSum", x, axes=(1,)), op("ReduceProd", x, axes=(1,)), ()),
    "sum of squares": (op("Mul", *[op("ReduceSum", x, axes=(1,))] * 2), op("ReduceSum", op("Mul", x, x), axes=(1,)), ()),
    "groups mixed": (
        conv(var("a", B, 2 * C, H), var("k", 2 * F, C, R), group=2),
        concat(1, *(conv(cut(var("a", B, 2 * C, H), 1, 0, C), cut(var("k", 2 * F, C, R), 0, i * F, i * F + F)) for i in (0, 1))), (),
    ),
    "gathers with another index": (
        op("Gather", x, Tensor("i", (L,), "int64"), axis=0), op("Gather", x, Tensor("j", (L,), "int64"), axis=0), (),
    ),
    "strides swapped": (conv(image, k, (S, D), (0, 0, 0, 0), (1, 1)), conv(image, k, (D, S), (0, 0, 0, 0), (1, 1)), (eq(H, W), eq(R, T))),
    "average without padding": (
        pool("AveragePool", signal, (R,), (S,), (P, Q), count_include_pad=1),
        pool("AveragePool", signal, (R,), (S,), (P, Q), count_include_pad=0),
        (lt(P, R), lt(Q, R)),
    ),
    "normalisation over the other axis": (
        op("LayerNormalization", transpose(var("x", N, N), 1, 0), var("s", N), var("b", N), axis=1, epsilon=1e-5),
        op("LayerNormalization", var("x", N, N), var("s", N), var("b", N), axis=1, epsilon=1e-5), (),
    ),
}  # fmt: skip


def prove(left: Operand, right: Operand, conditions: tuple[Compare, ...]) -> Equal | Open:
    sides = [side if isinstance(side, Scope) else transpose(side, *range(len(side.shape))) for side in (left, right)]
    return prove_equal(sides[0], sides[1], Assumptions().assume(*conditions))


@pytest.mark.parametrize("name", TRUE)
def test_true_for_all_sizes(name: str) -> None:
    left, right, conditions = TRUE[name]
    for pair in ((left, right), (right, left)):
        outcome = prove(*pair, conditions)
        assert isinstance(outcome, Equal), outcome


@pytest.mark.parametrize("name", FALSE)
def test_false_stays_open(name: str) -> None:
    left, right, conditions = FALSE[name]
    for pair in ((left, right), (right, left)):
        assert isinstance(prove(*pair, conditions), Open)


SIZES = {B: 2, C: 2, C1: 2, C2: 3, D: 1, F: 3, F1: 1, F2: 2, G: 2, H: 11, K: 4, L: 3, M: 3, N: 4, R: 3, S: 2, T: 2, W: 11, P: 1, Q: 2}
OTHERS = {**SIZES, R: 2, C1: 1, N: 2, K: 2, M: 5, S: 1, D: 2, P: 0}


def values_of(sizes: dict[Index, int]) -> dict[Iterator | Symbol, int]:
    return {symbol: value for size, value in sizes.items() for (symbol,), _ in size.terms if isinstance(symbol, Symbol)}


def evaluated(side: Operand, sizes: dict[Index, int]) -> np.ndarray:
    """Return a side's value on fixed random operands."""
    symbols = values_of(sizes)
    scope = side if isinstance(side, Scope) else transpose(side, *range(len(side.shape)))
    operands = {}
    for tensor in tensors(scope):
        shape = tuple(substitute(size, symbols).constant or 0 for size in tensor.shape)
        random = np.random.default_rng(sum(map(ord, tensor.name)))
        operands[tensor.name] = random.integers(0, 2, shape) if tensor.dtype == "int64" else random.normal(size=shape) * 2
    return evaluate(scope, operands, symbols={s: n for s, n in symbols.items() if isinstance(s, Symbol)})


def tensors(node: object) -> set[Tensor]:
    """Return every tensor that an expression reads."""
    if isinstance(node, Tensor):
        return {node}
    if isinstance(node, tuple):
        return set().union(*map(tensors, node))
    if is_dataclass(node):
        return set().union(*(tensors(getattr(node, field.name)) for field in fields(node) if field.init))
    return set()


def agree(name: str, laws: dict[str, tuple[Operand, Operand, tuple[Compare, ...]]]) -> list[bool]:
    """Return whether both sides agree, at each choice of sizes that satisfies the conditions."""
    left, right, conditions = laws[name]
    results = []
    for sizes in (SIZES, OTHERS):
        symbols = values_of(sizes)
        margins = [(c.operator, substitute(c.right - c.left, symbols).constant or 0) for c in conditions]
        if all({"<": margin > 0, "<=": margin >= 0, "==": margin == 0}[operator] for operator, margin in margins):
            first, second = evaluated(left, sizes), evaluated(right, sizes)
            results.append(first.shape == second.shape and np.allclose(first, second))
    return results


@pytest.mark.parametrize("name", TRUE)
def test_true_laws_hold_at_small_sizes(name: str) -> None:
    assert all(agree(name, TRUE))


@pytest.mark.parametrize("name", FALSE)
def test_false_laws_fail_at_small_sizes(name: str) -> None:
    assert not all(agree(name, FALSE))


def test_shapes_must_agree() -> None:
    assert isinstance(prove(var("x", N), var("x", N, 1), ()), Open)
    outcome = prove(var("x", N), var("x", K), ())
    assert isinstance(outcome, Open) and "n" in outcome.obligation
    assert isinstance(prove(var("x", N), cut(var("x", K), 0, 0, N), (eq(N, K),)), Equal)


def test_an_equality_of_sizes_is_used() -> None:
    square = (eq(N, K),)
    assert isinstance(prove(reshape(x, N * K), reshape(x, K * N), square), Equal)
    assert isinstance(prove(op("ReduceSum", var("x", N), axes=(0,)), op("ReduceSum", cut(var("x", K), 0, 0, N), axes=(0,)), square), Equal)
