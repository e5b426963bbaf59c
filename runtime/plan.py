"""The executable plan: what ``lower`` writes into an artefact and ``runtime`` executes. Data only, JSON both ways.

A plan is a list of steps over numbered buffers. A buffer is a strided window into an area: the arena (one
allocation, offsets planned ahead of time), a weight, a model input or a model output. Views share an area.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

Area: TypeAlias = Literal["arena", "weight", "input", "output", "host"]
"""host: a Python object (ndarray) made by an opaque step whose type or size is not known ahead of time."""


@dataclass(frozen=True)
class Buffer:
    """A strided window. ``key``: weight or input/output name; ``offset`` and ``strides`` in elements of ``dtype``."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    area: Area
    key: str = ""
    offset: int = 0


@dataclass(frozen=True)
class Step:
    """One kernel launch. ``spec`` is its recipe by ``kind``:

    onednn: ``primitive`` (convolution, deconvolution, matmul, inner_product, pooling, softmax, layer_normalization,
        lrn, reduction, resampling, binary, eltwise, reorder), its parameters, ``arguments`` (role -> index into
        ``inputs``/``outputs``: 'src', 'weights', 'bias', 'dst', ...), ``packed`` (roles whose constant operand the
        library may re-lay-out once at load) and ``post_ops`` (eltwise, binary with an argument, sum).
    tvm: ``symbol`` in the artefact's kernel library; arguments are the inputs then the outputs, as DLTensors.
    onnxruntime: ``model`` (file in the artefact), input and output names in order.
    """

    kind: Literal["onednn", "tvm", "onnxruntime"]
    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    spec: Mapping[str, Any]
    source_nodes: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    predicted_us: float = 0.0


@dataclass(frozen=True)
class Port:
    """A model input or output as the user sees it; ``shape`` may hold names for sizes only known when running."""

    name: str
    dtype: str
    shape: tuple[int | str, ...] | None
    buffer: int


@dataclass(frozen=True)
class Plan:
    """A whole program, in running order."""

    buffers: tuple[Buffer, ...]
    steps: tuple[Step, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    arena_bytes: int
    version: int = 1
    notes: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> Plan:
        """Parse a plan; raises ValueError when its version is not this runtime's."""
        raw = json.loads(text)
        if raw.get("version") != 1:
            raise ValueError(f"plan version {raw.get('version')} is not 1: optimise the model again with this version")
        return Plan(
            tuple(Buffer(**{**b, "shape": tuple(b["shape"]), "strides": tuple(b["strides"])}) for b in raw["buffers"]),
            tuple(
                Step(**{**s, **{k: tuple(s[k]) for k in ("inputs", "outputs", "source_nodes", "rules")}}) for s in raw["steps"]
            ),
            *(
                tuple(Port(p["name"], p["dtype"], None if p["shape"] is None else tuple(p["shape"]), p["buffer"]) for p in raw[k])
                for k in ("inputs", "outputs")
            ),
            arena_bytes=raw["arena_bytes"],
            notes=raw["notes"],
        )
