"""Turn a plan's native steps into the dispatcher's records: primitives, kernel arguments, copies."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from runtime.devices.cpu import dispatcher as native
from runtime.devices.cpu.allocation import Allocator
from runtime.devices.cpu.packing import KIND as PACKED
from runtime.devices.cpu.packing import PackedConstants
from runtime.dtypes import element_type
from runtime.errors import ArtefactError, KernelError
from runtime.plan import COPY_STEP, Buffer, Plan, Step
from runtime.storage import Storage, pointer


class Context(Protocol):
    """Resources that the steps of one vendor library share in one plan; made with the first of them."""

    @property
    def constants(self) -> Sequence[np.ndarray]:
        """Return the constants that the library keeps in formats of its own."""

    def finish(self) -> None:
        """Complete what depends on all steps."""

    def close(self) -> None:
        """Free what the library holds."""


@dataclass
class Builder:
    """Adds steps to a table."""

    plan: Plan
    storage: Storage
    allocator: Allocator
    table: native.Table
    kernel: Callable[[str], int]
    """Returns the address of a generated kernel."""
    function: Callable[[str, str], int]
    """Returns the address of a C function in a library that the artefact carries."""
    contexts: dict[str, Context]
    """Contexts by the kind of the steps."""
    implementations: dict[int, str] = field(default_factory=dict)

    def add(self, index: int, step: Step) -> None:
        """Add one step, by its kind."""
        if step.kind in LIBRARIES:
            importlib.import_module(f"runtime.devices.cpu.{step.kind}.steps").add(self, index, step)
            return
        add = KINDS.get(step.kind)
        if add is None:
            fix = "run it with the version that wrote it, or optimise the model again"
            raise ArtefactError(f"this runtime knows no steps of kind {step.kind!r}", where=f"step {index} {step.name}", fix=fix)
        add(self, step)

    def finish(self) -> None:
        """Complete what depends on all steps, and freeze the table."""
        for context in self.contexts.values():
            context.finish()
        self.table.finish()

    def buffer(self, index: int) -> Buffer:
        if not 0 <= index < len(self.plan.buffers):
            raise ArtefactError(f"the plan has no buffer {index}")
        return self.plan.buffers[index]

    def add_generated(self, step: Step) -> None:
        self.add_kernel(step, self.kernel(step.spec["symbol"]))

    def add_function(self, step: Step) -> None:
        packed = {pack["operand"]: self._packed(step, pack)} if (pack := step.spec.get("pack")) else {}
        function = self.function(step.spec["library"], step.spec["function"])
        self.add_kernel(step, function, step.spec.get("integers", ()), packed)

    def add_kernel(
        self, step: Step, function: int, integers: Sequence[int] = (), packed: Mapping[int, int] = MappingProxyType({})
    ) -> None:
        """Add a call of a C function that takes the inputs, then the outputs, as DLPack tensors, then integers.

        ``packed`` has the tensors that replace inputs, by position.
        """
        tensors = [packed.get(at) or self._tensor(self.buffer(number)) for at, number in enumerate((*step.inputs, *step.outputs))]
        self.table.add(step.name, native.KERNEL, function, _values(tensors, integers))

    def _packed(self, step: Step, pack: Mapping[str, Any]) -> int:
        """Return the tensor of an input as another function of the step's library packs it, with ``elements`` side by side."""
        buffer, library, name = self.buffer(step.inputs[pack["operand"]]), step.spec["library"], pack["function"]
        if buffer.area != "weight":
            raise KernelError("only a constant can be packed", where=f"step {step.name}: {buffer}")
        context = self.contexts.setdefault(PACKED, PackedConstants())
        assert isinstance(context, PackedConstants)
        tensor = self._record(replace(buffer, shape=(pack["elements"],), strides=(1,)))
        slot = tensor + native.TensorRecord.data.offset

        def run(array: np.ndarray) -> None:
            ctypes.c_void_p.from_address(slot).value = pointer(array)
            function = native.FUNCTION(self.function(library, name))
            if status := function(None, _values((self._tensor(buffer), tensor), ()), 2, None):
                raise KernelError(f"{name} failed with status {status}", where=f"step {step.name}")

        size_bytes = pack["elements"] * element_type(buffer.dtype).size_bytes
        key = self.storage.locate(buffer)[1], buffer.dtype, buffer.shape, buffer.strides, library, name
        array = context.add(key, self.storage.weights[buffer.key], size_bytes, run)
        ctypes.c_void_p.from_address(slot).value = pointer(array)
        return tensor

    def add_nothing(self, step: Step) -> None:
        """Add an empty step in the place of one that Python runs."""
        self.table.add(step.name, native.NOTHING)

    def _tensor(self, buffer: Buffer) -> int:
        address = self._record(buffer)
        self.point(buffer, address)
        return address

    def _record(self, buffer: Buffer) -> int:
        """Return the address of a tensor without its data."""
        element, rank = element_type(buffer.dtype), len(buffer.shape)
        shape, strides = (ctypes.c_int64 * rank)(*buffer.shape), (ctypes.c_int64 * rank)(*buffer.strides)
        record = native.TensorRecord(
            device_type=1, rank=rank, code=element.dlpack_code, bits=8 * element.size_bytes, lanes=1,
            shape=self.table.keep(shape), strides=self.table.keep(strides),
        )  # fmt: skip
        return self.table.keep(record)

    def point(self, buffer: Buffer, slot: int) -> None:
        """Write a buffer's address to ``slot``, now or before each run."""
        area, address = self.storage.locate(buffer)
        if area is None:
            ctypes.c_void_p.from_address(slot).value = address
        else:
            self.table.patch(native.PATCH_POINTER, area, address, slot)

    def add_copy(self, step: Step) -> None:
        source, target = self.buffer(step.inputs[0]), self.buffer(step.outputs[0])
        if source.shape != target.shape or source.dtype != target.dtype:
            raise ArtefactError("a copy's buffers differ in shape or element type", where=f"step {step.name}")
        size_bytes = element_type(source.dtype).size_bytes
        axes = _merged_axes(source, target)
        record = native.CopyRecord(rank=len(axes), element_bytes=size_bytes)
        for axis, (size, from_stride, to_stride) in enumerate(axes):
            record.shape[axis] = size
            record.source_strides[axis], record.target_strides[axis] = from_stride * size_bytes, to_stride * size_bytes
        self.table.add(step.name, native.COPY, 0, record)
        address = ctypes.addressof(record)
        self.point(source, address + native.CopyRecord.source.offset)
        self.point(target, address + native.CopyRecord.target.offset)


KINDS: Mapping[str, Callable[[Builder, Step], None]] = {
    "tvm": Builder.add_generated,
    "function": Builder.add_function,
    COPY_STEP: Builder.add_copy,
}
"""The method that adds each kind of step to the native table, except the kinds of libraries."""
LIBRARIES = (
    "onednn",
)  # fmt: skip
"""Vendor libraries with steps of their own kind: folders beside this file, each with ``steps.add``, imported if a plan has one."""


def _values(tensors: Sequence[int], integers: Sequence[int]) -> ctypes.Array[native.ValueRecord]:
    """Return the arguments of a C function."""
    pairs = [*((native.DLTENSOR_POINTER, tensor) for tensor in tensors), *((native.INTEGER, integer) for integer in integers)]
    values = (native.ValueRecord * len(pairs))()
    for value, (kind, content) in zip(values, pairs, strict=True):
        value.type_index, value.pointer = kind, content
    return values


def _merged_axes(source: Buffer, target: Buffer) -> list[tuple[int, int, int]]:
    """Return (size, source stride, target stride) of axes, those merged that lie behind each other in both windows."""
    axes: list[tuple[int, int, int]] = []
    for size, from_stride, to_stride in zip(source.shape, source.strides, target.strides, strict=True):
        if size == 1:
            continue
        if axes and axes[-1][1] == size * from_stride and axes[-1][2] == size * to_stride:
            axes[-1] = (axes[-1][0] * size, from_stride, to_stride)
        else:
            axes.append((size, from_stride, to_stride))
    if len(axes) > native.MOST_DIMENSIONS:
        raise ArtefactError(f"a copy over {len(axes)} axes; at most {native.MOST_DIMENSIONS} are possible")
    return axes or [(1, 1, 1)]
