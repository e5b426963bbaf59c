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
"""All but host lie in the memory of the plan's device.

host: a Python object (ndarray) made by an opaque step whose type or size is not known ahead of time."""


@dataclass(frozen=True)
class Buffer:
    """A strided window. ``key``: weight or input/output name; ``offset`` and ``strides`` in elements of ``dtype``."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    area: Area
    key: str = ""
    offset: int = 0


COPY_STEP, OPAQUE_STEP = "copy", "onnxruntime"
"""Kinds of steps that every device has: a strided copy, and a model that onnxruntime runs."""


@dataclass(frozen=True)
class Step:
    """One kernel launch. ``spec`` is its recipe by ``kind``, a name of ``runtime.devices.cpu.steps.KINDS`` (JSON data only).

    onednn: ``primitive`` with its parameters (below), ``arguments`` (role -> position in ``inputs``; ``dst`` is always
        ``outputs[0]``), ``packed`` (roles whose constant operand the library may re-lay-out once at load) and
        ``post_ops``, in order: ``{"kind": "eltwise", "algorithm", "alpha", "beta"}`` or ``{"kind": "binary",
        "algorithm", "argument": position in inputs}``. A constant argument of a binary one with a ``dtype`` is converted to it
        once, at load.
        ``pieces``, for results with gaps: where source and result begin in each run of the primitive, in elements behind their
        buffers' own beginning.
        ``types`` (role -> element type) names the types to which operands are converted before the primitive reads them: at load
        if they are packed, else in each run.
        The buffers of a onednn step are windows in the library's *logical* order of dimensions, whatever their
        strides (NHWC data is an [N, C, H, W] buffer with the strides of NHWC), so a memory descriptor is a buffer's
        dtype, shape and strides as they stand. Roles and parameters by primitive:

        convolution, deconvolution: src [N,C,spatial...], weights [O,I,spatial...] or, grouped, [G,O/G,I/G,spatial...]
            (deconvolution too: O is the number of outputs), bias [O] optional; ``strides``, ``dilations`` (1 is dense,
            as in ONNX), ``pads_before``, ``pads_after``
        matmul: src [batch...,M,K], weights [batch...,K,N], bias [1...,1,N] optional
        pooling: src; ``algorithm`` average_include_padding or average_exclude_padding; ``kernel``, ``strides``,
            ``dilations`` (1 is dense), ``pads_before``, ``pads_after``
        layer_normalization: src, scale [C], shift [C], over the last dimension; ``epsilon``
        lrn: src, across the channels (dimension 1); ``size``, ``alpha``, ``beta``, ``k``
        reduction: src; ``algorithm`` sum, mean, max, min or mul; reduced dimensions have size 1 in dst
        resampling: src; ``algorithm`` nearest or linear
        binary: src0, src1; ``algorithm`` (the binary names below)
        eltwise: src; ``algorithm``, ``alpha``, ``beta``
        reorder: src; a strided copy
        Eltwise names: relu (alpha: negative slope), tanh, elu, logistic, exp, log, sqrt, abs, square, clip (alpha: low,
            beta: high), gelu_erf, gelu_tanh, swish, hardswish (alpha, beta of max(0, min(1, alpha x + beta)) x),
            hardsigmoid, mish, soft_relu, round, linear, pow. Binary names: add, sub, mul, div, max, min, ge, gt, le, lt,
            eq, prelu (a post-operation only).
    tvm: ``symbol`` in the artefact's kernel library; arguments are the inputs then the outputs, as contiguous tensors.
    function: ``function`` of the artefact's ``library``; arguments are the inputs then the outputs, as tensors, then ``integers``. The
        constant input at position ``operand`` of ``pack`` is replaced by what ``pack``'s own ``function`` makes of it at load:
        ``elements`` side by side.
    onnxruntime: ``model`` (file in the artefact), ``input_names`` and ``output_names`` in the order of inputs and outputs;
        ``is_small``, if it is true: the calling thread runs it alone.
    copy: the one output takes the one input's elements (same shape, any strides, any dtype).
    """

    kind: str
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
    keep_subnormals: bool = False
    """Whether arithmetic follows IEEE 754 below 2^-126; else such operands and results count as zero, which is much faster."""
    version: int = 1
    device: str = "cpu"
    """The device that runs the steps: a name of ``runtime.devices``."""
    notes: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> Plan:
        """Parse a plan; raises ValueError if its version is not this runtime's."""
        raw = json.loads(text)
        if raw.get("version") != 1:
            raise ValueError(f"plan version {raw.get('version')} is not 1: optimise the model again with this version")
        return Plan(
            buffers=tuple(Buffer(**{**b, "shape": tuple(b["shape"]), "strides": tuple(b["strides"])}) for b in raw["buffers"]),
            steps=tuple(
                Step(**{**s, **{k: tuple(s[k]) for k in ("inputs", "outputs", "source_nodes", "rules")}}) for s in raw["steps"]
            ),
            inputs=_ports(raw["inputs"]),
            outputs=_ports(raw["outputs"]),
            arena_bytes=raw["arena_bytes"],
            keep_subnormals=raw.get("keep_subnormals", True),  # plans without this field were checked and timed so
            device=raw.get("device", Plan.device),
            notes=raw["notes"],
        )


def _ports(raw: list[dict[str, Any]]) -> tuple[Port, ...]:
    return tuple(Port(p["name"], p["dtype"], None if p["shape"] is None else tuple(p["shape"]), p["buffer"]) for p in raw)
