"""LSTM, GRU and RNN: one product of all inputs with their weights, and a fold over its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from egraph.onnx.importer.elementwise import Handler
from egraph.onnx.importer.movement import slice_axis
from egraph.onnx.importer.state import Call, NotCore
from egraph.tensor import Node
from egraph.tensor.ops.recurrence import DIRECTIONS, GATES, UNITS, panels

DEFAULTS = {"LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh"), "RNN": ("tanh",)}


def _recurrence(call: Call) -> list[Node | None]:
    name = call.node.op_type
    activation = _activation(call)
    direction = str(call.attribute("direction", "forward"))
    if direction not in DIRECTIONS or int(call.attribute("layout", 0)) or int(call.attribute("input_forget", 0)):
        raise NotCore("a batch that comes first, or coupled gates")
    if call.attribute("clip") is not None or call.has(7):
        raise NotCore("gates that are clipped, or that read the cell")
    steps, batch, width = call.shape(0)
    if call.has(4) and not bool(np.all(call.known(4) == steps)):
        raise NotCore("sequences of several lengths")
    directions, rows, _ = call.shape(1)
    gates = GATES[name]
    units = rows // gates
    state = directions, batch, units
    weights = call.reshape(call.transpose(call[1], (2, 0, 1)), (width, directions * rows))
    products = call.apply("MatMul", call[0], weights)
    linear = int(call.attribute("linear_before_reset", 0))
    late = call.like(np.zeros((directions, units)))
    if call.has(3):
        bias, late = _biases(call, directions, gates, units, is_split=name == "GRU" and bool(linear), late=late)
        products = call.apply("Add", products, bias)
    initial = [call[at] if call.has(at) else call.like(np.zeros(state)) for at in (5, 6)[: 1 + (name == "LSTM")]]
    keeps_cell = name == "LSTM" and len(call.node.output) > 2 and call.node.output[2] in call.state.used
    result = fold(call, name, products, call[2], initial, late, direction, linear=linear, activation=activation, keeps_cell=keeps_cell)
    hidden = slice_axis(call, result, 0, 0, steps)
    ends = [0 if backward else steps - 1 for backward in _backward(direction)]
    last = [slice_axis(call, slice_axis(call, result, 0, end, end + 1), 1, d, d + 1) for d, end in enumerate(ends)]
    final = call.reshape(last[0] if len(last) == 1 else call.apply("Concat", *last, axis=1), state)
    cell = call.reshape(slice_axis(call, result, 0, steps, steps + 1), state) if keeps_cell else None
    return [hidden, final, cell][: len(call.node.output)]


def fold(
    call: Call, name: str, products: Node, weights: Node, initial: Sequence[Node], late: Node, direction: str = "forward", *,
    linear: int = 0, activation: str = "tanh", keeps_cell: bool = False,
) -> Node:  # fmt: skip
    """Return the fold over ``products[t, b, (d * G + g) * H + j]`` by recurrent weights [d, g * H + j, i], as a core operator.

    ``late[d, j]`` is the bias that a GRU's reset gate scales together with its product.
    """
    directions, _, units = initial[0].type.sizes
    packed = _packed(call, weights, directions, GATES[name], units)
    if name == "LSTM":
        return call.apply("LSTM", products, packed, *initial, direction=direction, keeps_cell=int(keeps_cell))
    if name == "GRU":
        return call.apply("GRU", products, packed, *initial, late, direction=direction, linear_before_reset=linear)
    return call.apply("RNN", products, packed, *initial, direction=direction, activation=activation)


def _backward(direction: str) -> tuple[bool, ...]:
    return {"forward": (False,), "reverse": (True,)}.get(direction, (False, True))


def _activation(call: Call) -> str:
    """Return an RNN's activation; activations other than ONNX's defaults have no core form."""
    name = call.node.op_type
    declared = [each.decode() if isinstance(each, bytes) else str(each) for each in call.attribute("activations", [])]
    count = DIRECTIONS.get(str(call.attribute("direction", "forward")), 1)
    names = tuple(each.lower() for each in declared) or DEFAULTS[name] * count
    if name == "RNN" and len(set(names)) == 1 and names[0] in ("tanh", "relu") and len(names) == count:
        return names[0]
    if names != DEFAULTS[name] * count:
        raise NotCore(f"activations {', '.join(declared)}")
    return ""


def _biases(call: Call, directions: int, gates: int, units: int, *, is_split: bool, late: Node) -> tuple[Node, Node]:
    """Return the addend of the products, and the bias that a GRU adds before its reset gate scales."""
    pair = call.reshape(call[3], (directions, 2, gates, units))
    input_bias, recurrent_bias = (call.reshape(slice_axis(call, pair, 1, part, part + 1), (directions, gates, units)) for part in range(2))
    if is_split:
        late = call.reshape(slice_axis(call, recurrent_bias, 1, gates - 1, gates), (directions, units))
        early = slice_axis(call, recurrent_bias, 1, 0, gates - 1)
        recurrent_bias = call.apply("Concat", early, call.like(np.zeros((directions, 1, units))), axis=1)
    return call.reshape(call.apply("Add", input_bias, recurrent_bias), (directions * gates * units,)), late


def _packed(call: Call, weights: Node, directions: int, gates: int, units: int) -> Node:
    """Return the recurrent weights [d, g * H + j, i] as panels of units [d, j // L, i, g, j % L], zero behind the last unit."""
    apart = call.reshape(weights, (directions, gates, units, units))
    missing = panels(units) * UNITS - units
    if missing:
        apart = call.apply("Pad", apart, before=(0, 0, 0, 0), after=(0, 0, missing, 0), mode="constant", value=0.0)
    return call.transpose(call.reshape(apart, (directions, gates, panels(units), UNITS, units)), (0, 2, 4, 1, 3))


HANDLERS: Mapping[str, Handler] = dict.fromkeys(GATES, _recurrence)
