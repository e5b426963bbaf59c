"""LSTM, GRU and RNN: the fold along time that is left once all inputs are multiplied by their weights.

The operands are ``products[t, b, d * G * H + g * H + j]`` of gate g of unit j in direction d, biases added, the recurrent weights
``weights[d, j // L, i, g, j % L]`` (panels of L units, which a kernel reads one after the other; L is ``UNITS``), and the initial states
``hidden[d, b, j]``. Gates and their order are ONNX's; activations are ONNX's defaults. The result holds the hidden states [t, d, b, j],
followed by the last cells if ``keeps_cell`` is set. A GRU's ``bias[d, j]`` is added to the value that the reset gate scales.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np

from egraph.errors import EinsatError
from egraph.tensor.expr.bodies import guarded
from egraph.tensor.expr.index import Index, Iterator, index
from egraph.tensor.expr.scope import ONE, ZERO, Compare, Reduction, Scalar, Scope, Tensor
from egraph.tensor.expr.scope import apply as call
from egraph.tensor.ops.activations import sigmoid
from egraph.tensor.ops.dtypes import same_dtype
from egraph.tensor.ops.sampling import Sample
from egraph.tensor.ops.scopes import add, grid, multiply, pointwise, read
from egraph.tensor.ops.sizes import one_of, plain, rank_between, refuse, same
from egraph.tensor.ops.spec import OpSpec, Shape, Values

UNITS = 16
"""Hidden units of one panel of the recurrent weights."""
DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}
ACTIVATIONS = ("tanh", "relu")
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
MOST_UNROLLED = 4
"""The most steps of a fold whose meaning is written as an expression; its size grows with a power of the steps."""


def panels(units: int) -> int:
    """Return the number of panels that hold this many hidden units."""
    return -(-units // UNITS)


def _shape_of(name: str) -> Callable[[Sequence[Shape], Values], Shape]:
    def shape(shapes: Sequence[Shape], a: Values) -> Shape:
        products, weights, hidden = shapes[:3]
        one_of(a["direction"], tuple(DIRECTIONS), "the direction")
        rank_between(products, 3, 3, "products")
        rank_between(weights, 5, 5, "weights")
        rank_between(hidden, 3, 3, "hidden")
        steps, batch, columns = plain(products)
        directions, _, units = plain(hidden)
        same(directions, DIRECTIONS[a["direction"]], "there must be one state a direction")
        same(plain(hidden)[1], batch, "products and states differ in the batch")
        same(columns, directions * GATES[name] * units, "products must hold all gates of all units")
        if plain(weights) != (directions, panels(units), units, GATES[name], UNITS):
            refuse(f"weights must be {(directions, panels(units), units, GATES[name], UNITS)}, got {plain(weights)}")
        if name == "LSTM" and plain(shapes[3]) != plain(hidden):
            refuse("both states must have one shape")
        if name == "GRU" and plain(shapes[3]) != (directions, units):
            refuse("bias must hold one number a unit")
        if name == "RNN":
            one_of(a["activation"], ACTIVATIONS, "the activation")
        return (steps + int(a.get("keeps_cell", 0) != 0), directions, batch, units)

    return shape


class _Fold:
    """The values that the steps of a fold read, as expressions."""

    def __init__(self, name: str, operands: Sequence[Tensor], a: Values) -> None:
        self.products, self.weights, self.hidden = operands[:3]
        self.gates, self.direction = GATES[name], str(a["direction"])
        (self.steps, _, _), self.state = plain(self.products.shape), plain(self.hidden.shape)

    def time(self, step: int, direction: Index) -> Index:
        """Return the time at which a direction takes a step."""
        last = self.steps - 1 - step
        return {"forward": index(step), "reverse": index(last)}.get(self.direction, step + direction * (last - step))

    def projected(self, step: int, gate: int, at: Sequence[Index]) -> Scalar:
        direction, row, unit = at
        return read(self.products, (self.time(step, direction), row, (direction * self.gates + gate) * self.state[2] + unit))

    def summed(self, state: Tensor | Scope, gate: int) -> Scope:
        """sum_i state[d, b, i] weights[d, j // L, i, gate, j % L]"""
        iterators, (direction, row, unit) = grid("s", self.state)
        sums, (i,) = grid("k", self.state[2:])
        weight = read(self.weights, (direction, unit // UNITS, i, index(gate), unit % UNITS))
        return Scope(iterators, sums, Reduction.SUM, multiply(read(state, (direction, row, i)), weight))

    def pointwise(self, body: Callable[[tuple[Index, ...]], Scalar]) -> Scope:
        return pointwise("g", self.state, body)

    def gate(self, function: Callable[[Scalar], Scalar], step: int, gate: int, state: Tensor | Scope) -> Scope:
        """function(given + summed)"""
        total = self.summed(state, gate)
        return self.pointwise(lambda at: function(add(self.projected(step, gate, at), read(total, at))))

    def along_time(self, states: Sequence[Scope], cell: Tensor | Scope | None) -> Scope:
        """Return the states of each direction at their times, followed by the last cells."""
        count = self.steps + (cell is not None)
        iterators = tuple(Iterator(f"y{axis}", 0, size) for axis, size in enumerate((count, *self.state)))
        t, *at = (index(iterator) for iterator in iterators)
        body: Scalar = read(states[-1] if cell is None else cell, at)
        for step, state in enumerate(states):
            body = guarded((Compare(t, "==", self.time(step, at[0])),), read(state, at), body)
        return Scope.pointwise(iterators, body)


def _tanh(x: Scalar) -> Scalar:
    return call("tanh", x)


def _relu(x: Scalar) -> Scalar:
    return call("max", x, ZERO)


def _lstm_step(fold: _Fold, step: int, hidden: Tensor | Scope, cell: Tensor | Scope) -> tuple[Scope, Scope]:
    """c' = f c + i tanh(..), h' = o tanh(c')"""
    i, o, f = (fold.gate(sigmoid, step, gate, hidden) for gate in range(3))
    new = fold.gate(_tanh, step, 3, hidden)
    changed = fold.pointwise(lambda at: add(multiply(read(f, at), read(cell, at)), multiply(read(i, at), read(new, at))))
    return fold.pointwise(lambda at: multiply(read(o, at), _tanh(read(changed, at)))), changed


def _gru_step(fold: _Fold, step: int, hidden: Tensor | Scope, bias: Tensor, a: Values) -> Scope:
    """h' = (1 - z) n + z h, with n = tanh(.. + r (h R + bias)), or tanh(.. + (r h) R + bias) if the product comes after the reset"""
    z, r = (fold.gate(sigmoid, step, gate, hidden) for gate in range(2))
    if a["linear_before_reset"]:
        total = fold.summed(hidden, 2)
        scaled = fold.pointwise(lambda at: multiply(read(r, at), add(read(total, at), read(bias, at[::2]))))
    else:
        total = fold.summed(fold.pointwise(lambda at: multiply(read(r, at), read(hidden, at))), 2)
        scaled = fold.pointwise(lambda at: add(read(total, at), read(bias, at[::2])))
    new = fold.pointwise(lambda at: _tanh(add(fold.projected(step, 2, at), read(scaled, at))))
    kept = fold.pointwise(lambda at: multiply(read(z, at), read(hidden, at)))
    return fold.pointwise(lambda at: add(multiply(call("sub", ONE, read(z, at)), read(new, at)), read(kept, at)))


def _meaning_of(name: str) -> Callable[[Sequence[Tensor], Values], Scope]:
    def meaning(operands: Sequence[Tensor], a: Values) -> Scope:
        fold = _Fold(name, operands, a)
        if fold.steps > MOST_UNROLLED:
            raise EinsatError(f"a fold over {fold.steps} steps is not written as an expression, one over {MOST_UNROLLED} is")
        states: list[Scope] = []
        hidden: Tensor | Scope = fold.hidden
        cell: Tensor | Scope = operands[-1]
        for step in range(fold.steps):
            if name == "LSTM":
                hidden, cell = _lstm_step(fold, step, hidden, cell)
            elif name == "GRU":
                hidden = _gru_step(fold, step, hidden, operands[3], a)
            else:
                hidden = fold.gate(_tanh if a["activation"] == "tanh" else _relu, step, 0, hidden)
            states.append(hidden)
        return fold.along_time(states, cell if a.get("keeps_cell") else None)

    return meaning


def _logistic(x: np.ndarray) -> np.ndarray:
    return np.asarray(1.0 / (1.0 + np.exp(-x)))


def _evaluated(name: str) -> Callable[[Sequence[np.ndarray], Values], np.ndarray]:
    """Return a function that computes the meaning step by step, for folds that are too long to be written as an expression."""

    def evaluated(operands: Sequence[np.ndarray], a: Values) -> np.ndarray:
        products, packed, hidden = operands[:3]
        directions, batch, units = hidden.shape
        steps, gates = len(products), GATES[name]
        result = np.empty((steps + int(a.get("keeps_cell", 0) != 0), directions, batch, units))
        for d in range(directions):
            weights = packed[d].transpose(1, 2, 0, 3).reshape(units, gates, -1)[:, :, :units]
            h, c = hidden[d], operands[-1][d]
            is_backward = a["direction"] == "reverse" or d == 1
            for t in reversed(range(steps)) if is_backward else range(steps):
                x = [products[t, :, (d * gates + g) * units : (d * gates + g + 1) * units] for g in range(gates)]
                if name == "LSTM":
                    i, o, f, n = (x[g] + h @ weights[:, g] for g in range(4))
                    c = _logistic(f) * c + _logistic(i) * np.tanh(n)
                    h = _logistic(o) * np.tanh(c)
                elif name == "GRU":
                    z, r = (_logistic(x[g] + h @ weights[:, g]) for g in range(2))
                    scaled = r * (h @ weights[:, 2] + c) if a["linear_before_reset"] else (r * h) @ weights[:, 2] + c
                    h = (1.0 - z) * np.tanh(x[2] + scaled) + z * h
                else:
                    total = x[0] + h @ weights[:, 0]
                    h = np.tanh(total) if a["activation"] == "tanh" else np.maximum(total, 0.0)
                result[t, d] = h
            if a.get("keeps_cell"):
                result[steps, d] = c
        return result

    return evaluated


def _sample_of(name: str) -> Callable[[Random], Sample]:
    def sample(random: Random) -> Sample:
        direction = random.choice(tuple(DIRECTIONS))
        steps, batch, units = random.randint(1, 3), random.choice((1, 2, 3)), random.choice((1, 2, 3, 17))
        gates, directions = GATES[name], DIRECTIONS[direction]
        state = directions, batch, units
        shapes = ((steps, batch, directions * gates * units), (directions, panels(units), units, gates, UNITS), state)
        a: dict[str, Any] = {"direction": direction}
        if name == "LSTM":
            return (*shapes, state), {**a, "keeps_cell": random.randrange(2)}
        if name == "GRU":
            return (*shapes, (directions, units)), {**a, "linear_before_reset": random.randrange(2)}
        return shapes, {**a, "activation": random.choice(ACTIVATIONS)}

    return sample


def _flops(shapes: Sequence[tuple[int, ...]], _: Values) -> int:
    """Return two operations per weight of every unit, plus those of the gates' functions."""
    units = shapes[2][-1]
    return math.prod(shapes[0]) * (2 * units + 8)


def _spec(name: str, arity: int, attribute: str) -> OpSpec:
    return OpSpec(
        name, arity, "recurrence", _shape_of(name), _meaning_of(name), _sample_of(name), attributes=(attribute, "direction"),
        dtype=same_dtype, dtypes=frozenset({"float32"}), flops=_flops, evaluate=_evaluated(name),
        notes="over products of the inputs with their weights; one result",
    )  # fmt: skip


RECURRENCE = (_spec("LSTM", 4, "keeps_cell"), _spec("GRU", 4, "linear_before_reset"), _spec("RNN", 3, "activation"))
