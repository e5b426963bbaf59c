"""cuDNN's graphs: the library's own description of a plan's ``cudnn`` step, with a device or without one.

A step keeps an engine and its knobs by name, never the library's serialised plan, which holds for one version and one device. Without a
device, plans are listed and built for a described one (:data:`runtime.devices.cuda.gpus.GPUS`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from runtime.devices.cuda.gpus import Gpu
from runtime.dtypes import numpy_dtype
from runtime.errors import ArtefactError, LibraryMissing
from runtime.plan import Buffer

Operand = TypeVar("Operand")
CUDNN_STEP = "cudnn"
WORKSPACE_BYTES = 32 << 20
"""The largest workspace of a step, in bytes: one allocation is shared by all steps, which follow each other."""
CHOICES = re.compile(rb'"engine":\{"engineId":(\d+).*?"knobChoices":(\{[^}]*\})')
"""The engine in a serialised plan, and its choices."""
KNOB_PREFIX = "CUDNN_KNOB_TYPE_"
ALIGNMENT_BYTES = 16
"""The alignment in bytes that the frontend declares for all tensors: at other addresses plans fail, or read neighbouring data."""
MEMORY_ALIGNMENT_BYTES = 256
"""The alignment of areas of memory, in bytes."""
ALL_TENSOR_CORES = "every engine of the library uses tensor cores"
TENSOR_CORES = ("tf32",)
"""Precisions of float32 data that may use tensor cores; strict float32 may not."""


@dataclass(frozen=True)
class EnginePlan:
    """One way in which the library computes a graph. ``knobs`` are its choices, by their names."""

    engine: int
    knobs: Mapping[str, int]
    workspace_bytes: int

    @property
    def spec(self) -> dict[str, Any]:
        return {"engine": self.engine, "knobs": dict(self.knobs), "workspace_bytes": self.workspace_bytes}

    @property
    def key(self) -> tuple[int, tuple[tuple[str, int], ...]]:
        """Return the key that distinguishes plans of one call."""
        return self.engine, tuple(sorted(self.knobs.items()))

    @property
    def text(self) -> str:
        """Return the plan as implementations name it: ``41+65536:SPLIT_K=2,TILE_SIZE=4``."""
        knobs = ",".join(f"{name}={value}" for name, value in sorted(self.knobs.items()))
        return f"{self.engine}+{self.workspace_bytes}:{knobs}"

    @staticmethod
    def parse(text: str) -> EnginePlan:
        """Return the plan of a text; raises ValueError if it is none."""
        head, _, tail = text.partition(":")
        engine, _, workspace_bytes = head.partition("+")
        knobs = (part.partition("=") for part in tail.split(",") if part)
        return EnginePlan(int(engine), {name: int(value) for name, _, value in knobs}, int(workspace_bytes))


def library() -> Any:
    """Return the library's Python half; raises LibraryMissing if it or the library is not installed."""
    try:
        import cudnn
    except (ImportError, OSError) as error:
        raise LibraryMissing(f"cuDNN's frontend cannot be loaded: {error}", fix="pip install 'einsat[cuda]'") from error
    return cudnn


def is_installed() -> bool:
    """Return whether plans can be listed here."""
    try:
        library()
    except LibraryMissing:
        return False
    return True


def roles(spec: Mapping[str, Any], operands: Sequence[Operand]) -> dict[str, Operand]:
    """Return a step's operands by role; ``summand`` is the tensor of the result's shape that its epilogue adds."""
    by_role = {role: operands[position] for role, position in spec["arguments"].items()}
    for operation in spec["post_ops"]:
        if operation["kind"] == "binary":
            by_role["summand"] = operands[operation["argument"]]
    return by_role


def alignment_bytes(buffer: Buffer) -> int:
    """Return the alignment in bytes of a buffer's first element, ``MEMORY_ALIGNMENT_BYTES`` at most."""
    return math.gcd(MEMORY_ALIGNMENT_BYTES, buffer.offset * numpy_dtype(buffer.dtype).itemsize)


class Graph:
    """A step as a graph of the library: ``uids`` are the names of its tensors, ``dst`` the result's."""

    def __init__(
        self, spec: Mapping[str, Any], operands: Mapping[str, Buffer], output: Buffer, *, gpu: Gpu | None = None, handle: Any = None
    ) -> None:
        self._cudnn = cudnn = library()
        real = cudnn.data_type.FLOAT
        placement: dict[str, Any] = {"handle": handle} if gpu is None else {
            "device_property": cudnn.create_device_properties(gpu.cudnn_properties())
        }  # fmt: skip
        self.unavailable_plan = ""
        """The requested plan, if this version of the library does not offer it and the library's favourite replaced it."""
        self.graph = graph = cudnn.pygraph(io_data_type=real, intermediate_data_type=real, compute_data_type=real, **placement)
        self.uids: dict[str, int] = {}

        def tensor(role: str) -> Any:
            buffer = operands[role]
            self.uids[role] = len(self.uids) + 1
            return graph.tensor(
                name=role, dim=list(buffer.shape), stride=list(buffer.strides), data_type=real, uid=self.uids[role]
            )

        window = {
            "pre_padding": list(spec["pads_before"]), "post_padding": list(spec["pads_after"]),
            "stride": list(spec["strides"]), "dilation": list(spec["dilations"]),
        }  # fmt: skip
        source, weights = tensor("src"), tensor("weights")
        if spec["primitive"] == "convolution":
            result = graph.conv_fprop(image=source, weight=weights, name="convolution", **window)
        elif spec["primitive"] == "deconvolution":
            result = graph.conv_dgrad(loss=source, filter=weights, name="deconvolution", **window)
            result.set_dim(list(output.shape))
        else:
            raise ArtefactError(f"cuDNN computes no {spec['primitive']!r} here", fix="optimise the model again")
        for role in ("summand", "bias"):
            if role in operands:
                result = graph.add(a=result, b=tensor(role), name=role)
        for operation in spec["post_ops"]:
            if operation["kind"] == "eltwise":
                result = graph.relu(result, name="relu")
        self.uids["dst"] = len(self.uids) + 1
        result.set_output(True).set_data_type(real).set_stride(list(output.strides)).set_uid(self.uids["dst"])
        graph.validate()
        graph.build_operation_graph()

    def plans(self, precision: str) -> list[EnginePlan]:
        """List the plans that the library can build, its own favourite first; a graph is planned once."""
        return list({plan.key: plan for plan in self.built(precision)}.values())

    def built(self, precision: str) -> Iterator[EnginePlan]:
        """Build one plan after another, the library's favourite first."""
        cudnn, graph = self._cudnn, self.graph
        graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        notes = cudnn.numerical_note
        graph.deselect_numeric_notes([notes.DOWN_CONVERT_INPUTS, *([] if precision in TENSOR_CORES else [notes.TENSOR_CORE])])
        for self._index in range(graph.get_execution_plan_count()):
            try:
                graph.build_plan_at_index(self._index)
            except cudnn.cudnnGraphNotSupportedError:
                continue
            yield self.described()

    def described(self) -> EnginePlan:
        """Return the plan that was built last. Some knobs have names only in the serialised plan, so they are read there."""
        match = CHOICES.search(bytes(self.graph.serialize()))
        if match is None:
            raise ArtefactError("a serialised plan of cuDNN does not name its engine", fix="install the version of the extra 'cuda'")
        knobs = {name.removeprefix(KNOB_PREFIX): int(value) for name, value in sorted(json.loads(match[2]).items())}
        return EnginePlan(int(match[1]), knobs, int(self.graph.get_workspace_size()))

    def build(self, spec: Mapping[str, Any], precision: str) -> int:
        """Build the plan that a step names; return its workspace in bytes.

        The library's favourite is built if none is named, or if this version of the library does not offer the named one. In the latter
        case ``unavailable_plan`` is set.
        """
        is_named = spec.get("engine") is not None
        named = EnginePlan(spec["engine"], spec["knobs"], 0) if is_named else None
        favourite: tuple[int, int] | None = None
        for plan in self.built(precision):
            if named is not None and plan.key == named.key:
                return plan.workspace_bytes
            if favourite is None and plan.workspace_bytes <= WORKSPACE_BYTES:
                favourite = self._index, plan.workspace_bytes
                if named is None:
                    return plan.workspace_bytes
        if favourite is None:
            what = f"cuDNN {self._cudnn.backend_version()} has no plan for a step within {WORKSPACE_BYTES} bytes of workspace"
            raise ArtefactError(what, fix="optimise the model for this device again")
        if named is not None:
            choices = ", ".join(f"{name}={value}" for name, value in named.knobs.items())
            self.unavailable_plan = f"cuDNN {self._cudnn.backend_version()} does not offer engine {named.engine} ({choices})"
        self._index, workspace_bytes = favourite
        self.graph.build_plan_at_index(self._index)
        return workspace_bytes

    def run(self, addresses: Mapping[str, int], workspace: int) -> None:
        """Launch the plan that was built on the stream of its handle."""
        pack = {uid: addresses[role] for role, uid in self.uids.items()}
        self.graph.execute_plan_at_index(pack, workspace, self._index)


def engine_plans(
    spec: Mapping[str, Any], operands: Sequence[Buffer], output: Buffer, gpu: Gpu, precision: str
) -> tuple[EnginePlan, ...] | str:
    """List the plans of a step for a described GPU; the library's message if it has none."""
    cudnn = library()
    try:
        plans = Graph(spec, roles(spec, operands), output, gpu=gpu).plans(precision)
    except (cudnn.cudnnGraphNotSupportedError, RuntimeError) as error:
        return _words(error)
    return tuple(plans) or ALL_TENSOR_CORES


def favourite_plan(
    spec: Mapping[str, Any], operands: Sequence[Buffer], output: Buffer, gpu: Gpu, precision: str
) -> EnginePlan | str:
    """Return the library's first plan for a described GPU that fits its workspace, in the order of ``engine_plans``, or its message.

    Later plans are not built, because building takes most of the time.
    """
    cudnn = library()
    try:
        built = 0
        for plan in Graph(spec, roles(spec, operands), output, gpu=gpu).built(precision):
            if plan.workspace_bytes <= WORKSPACE_BYTES:
                return plan
            built += 1
    except (cudnn.cudnnGraphNotSupportedError, RuntimeError) as error:
        return _words(error)
    return "every plan needs more workspace than is given" if built else ALL_TENSOR_CORES


def _words(error: Exception) -> str:
    """Return the library's message, in one line."""
    return " ".join(str(error).split())[:200]


def with_packed(spec: Mapping[str, Any], operands: Sequence[Buffer]) -> list[Buffer]:
    """Return a step's operands as the library reads them: constants that it wants in the data's order are rearranged at load."""
    packed = {spec["arguments"][role] for role in spec["packed"]}
    return [replace(each, strides=channels_last(each.shape), offset=0) if i in packed else each for i, each in enumerate(operands)]


def channels_last(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of an array whose second axis is the innermost in memory."""
    order = (0, *range(2, len(shape)), 1)
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis], step = step, step * shape[axis]
    return tuple(strides)
