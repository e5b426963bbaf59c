"""Collect the ONNX nodes of one graph or function body: names, constants, metadata."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper

from egraph.onnx.types import to_tensor


class Names:
    """Hand out names that are unique in the model."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = {"", *taken}
        self._next: dict[str, int] = {}

    def reserve(self, name: str) -> None:
        self._taken.add(name)

    def fresh(self, preferred: str) -> str:
        """Return ``preferred``, with a number appended if it is taken."""
        name, count = preferred, self._next.get(preferred, 0)
        while name in self._taken:
            count += 1
            name = f"{preferred}_{count}"
        self._next[preferred] = count
        self._taken.add(name)
        return name


@dataclass
class Emitter:
    """Nodes in running order. Small constants become initialisers, or Constant nodes in a function body."""

    opset: int
    names: Names
    in_function: bool = False
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)
    label: str = ""
    """The name of the nodes that are being made."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    _constants: dict[tuple[str, tuple[int, ...], bytes], str] = field(default_factory=dict)

    def add(self, op_type: str, inputs: Sequence[str], *, output: str = "", domain: str = "", **attributes: Any) -> str:
        """Append a node with one result and return the result's name."""
        result = output or self.names.fresh(f"{self.label or op_type.lower()}_out")
        proto = helper.make_node(op_type, list(inputs), [result], domain=domain, **attributes)
        self.append(proto)
        return result

    def append(self, proto: onnx.NodeProto) -> None:
        """Append a node, named and annotated."""
        if not self.in_function:
            proto.name = proto.name or self.names.fresh(self.label or proto.op_type)
            for key, value in sorted(self.metadata.items()):
                if value:
                    proto.metadata_props.add(key=key, value=value)
        self.nodes.append(proto)

    def constant(self, value: Any, dtype: str) -> str:
        """Return the name of a constant; equal values share one."""
        array = np.asarray(value, dtype=dtype)
        key = (array.dtype.name, array.shape, array.tobytes())
        if key not in self._constants:
            name = self._constants[key] = self.names.fresh(f"constant_{len(self._constants)}")
            if self.in_function:
                self.nodes.append(helper.make_node("Constant", [], [name], value=to_tensor(array, name)))
            else:
                self.initializers.append(to_tensor(array, name))
        return self._constants[key]

    def integers(self, values: Sequence[int]) -> str:
        return self.constant(list(values), "int64")
