"""Einsat behind the ONNX backend interface: ``egraph.optimize.backend.prepare(model).run(inputs)``.

    import egraph.optimize.backend as backend
    outputs = backend.run_model(model, [x])

Programs are chosen by estimates, not by measurements: preparing takes milliseconds. To get the fastest program use
``python -m egraph.optimize``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.backend.base import Backend, BackendRep, namedtupledict

from egraph.errors import ModelError
from egraph.onnx.types import array_type, to_proto
from egraph.optimize.estimated import open_session
from runtime import Session

NEWEST_IR = 13


class EinsatRep(BackendRep):  # type: ignore[misc]  # onnx ships no types
    """A model made ready to run."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def run(self, inputs: Any, **options: Any) -> tuple[Any, ...]:
        """Return the outputs, by position and by name; ``inputs`` is a sequence in the model's order, a mapping or one array."""
        names = [argument.name for argument in self.session.get_inputs()]
        if isinstance(inputs, dict):
            feeds = inputs
        else:
            values = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
            if len(values) > len(names):
                raise ModelError(f"{len(values)} inputs were given, the model has {len(names)}", where=", ".join(names), fix="give fewer")
            feeds = dict(zip(names, values, strict=False))
        results = self.session.run(None, feeds)
        output_names = [argument.name for argument in self.session.get_outputs()]
        named: tuple[Any, ...] = namedtupledict("Outputs", output_names)(*results)
        return named


class EinsatBackend(Backend):  # type: ignore[misc]  # onnx ships no types
    """The ONNX backend interface over the whole way: import, saturate, extract, compile, run."""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device.split(":")[0] == "CPU"

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", *, threads: int = 1, **options: Any) -> EinsatRep:
        """Optimise a model and load it."""
        cls._require(device)
        return EinsatRep(open_session(model, threads=threads))

    @classmethod
    def run_model(cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **options: Any) -> tuple[Any, ...]:
        return cls.prepare(model, device, **options).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Sequence[Any],
        device: str = "CPU",
        outputs_info: Any = None,
        *,
        opset_version: int | None = None,
        **options: Any,
    ) -> tuple[Any, ...]:
        """Run one node on tensors; ``inputs`` are given for the operands that the node has."""
        arrays = [np.asarray(value) for value in inputs]
        operands = [name for name in node.input if name]
        if len(operands) != len(arrays):
            what = f"{len(arrays)} inputs were given, the node has {len(operands)}"
            raise ModelError(what, where=", ".join(operands), fix="give each operand its value")
        values = [helper.make_value_info(name, to_proto(array_type(array))) for name, array in zip(operands, arrays, strict=True)]
        results = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        graph = helper.make_graph([node], "node", list({value.name: value for value in values}.values()), results)
        version = opset_version or onnx.defs.onnx_opset_version()
        imports = [helper.make_opsetid(node.domain, version if node.domain in ("", "ai.onnx") else 1)]
        if node.domain not in ("", "ai.onnx"):
            imports.append(helper.make_opsetid("", version))
        model = helper.make_model(graph, opset_imports=imports)
        model.ir_version = min(model.ir_version, NEWEST_IR)
        feeds = dict(zip(operands, arrays, strict=True))
        return cls.prepare(model, device, **options).run(feeds)

    @classmethod
    def _require(cls, device: str) -> None:
        if not cls.supports_device(device):
            raise ModelError(f"the device {device!r} is not supported", fix="use device='CPU'")


is_compatible = EinsatBackend.is_compatible
prepare = EinsatBackend.prepare
run_model = EinsatBackend.run_model
run_node = EinsatBackend.run_node
supports_device = EinsatBackend.supports_device
