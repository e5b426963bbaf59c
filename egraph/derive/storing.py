"""Programs of derivations as text, so that what was derived and proved once need not be again.

Types are not written: reading applies every operator anew, by its own shape rule.
"""

from __future__ import annotations

import json
from typing import Any

from egraph.errors import EinsatError
from egraph.tensor import AttributeValue, Node, TensorType, placeholder, walk
from egraph.tensor.ops import apply


class Unreadable(EinsatError):
    """A stored program cannot be read: it was written by another version, or it is damaged."""


def write_program(root: Node) -> str:
    """Return a program over placeholders as JSON: one row a node, operands before users, the root last."""
    numbers: dict[Node, int] = {}
    rows: list[list[Any]] = []
    for node in walk((root,)):
        numbers[node] = len(rows)
        if node.op == "Placeholder":
            rows.append(["Placeholder", node.attribute("index"), node.attribute("constant"), node.type.dtype, list(node.type.sizes)])
        else:
            rows.append([node.op, [numbers[operand] for operand in node.inputs], dict(node.attributes)])
    return json.dumps(rows, separators=(",", ":"))


def read_program(text: str) -> Node:
    """Return the program of a text; raises Unreadable where it is none."""
    nodes: list[Node] = []
    try:
        for op, *rest in json.loads(text):
            if op == "Placeholder":
                index, constant, dtype, sizes = rest
                nodes.append(placeholder(index, TensorType(dtype, tuple(sizes)), constant=constant))
            else:
                operands, values = rest
                attributes = tuple((name, _frozen(value)) for name, value in sorted(values.items()))
                nodes.append(apply(op, *(nodes[k] for k in operands), attributes=attributes))
        return nodes[-1]
    except (ValueError, TypeError, KeyError, IndexError, EinsatError) as error:
        raise Unreadable(f"a stored program cannot be read: {error}") from error


def _frozen(value: Any) -> AttributeValue:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
