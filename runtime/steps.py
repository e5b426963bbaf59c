"""Turn a plan's native steps into the dispatcher's records: primitives, kernel arguments, copies."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from runtime import dispatcher as native
from runtime import onednn, onednn_library
from runtime import onednn_names as names
from runtime.allocation import pointer
from runtime.dtypes import element_type
from runtime.errors import ArtefactError, KernelError
from runtime.onednn_library import ExecutionArgument, Handle, Handles
from runtime.plan import Buffer, Plan, Step
from runtime.storage import Storage


@dataclass
class Builder:
    """Adds steps to a table; owns what they need: handles, packed constants, the scratchpad."""

    plan: Plan
    storage: Storage
    table: native.Table
    handles: Handles
    stream: Handle
    kernels: Callable[[str], int]

    def __post_init__(self) -> None:
        self.packed: list[tuple[Buffer, Handle, np.ndarray]] = []
        self.implementations: dict[int, str] = {}
        self._scratchpads: list[Handle] = []
        self._scratchpad_bytes = 0

    def add(self, index: int, step: Step) -> None:
        """Add one step, by its kind."""
        add = KINDS.get(step.kind)
        if add is None:
            fix = "run it with the version that wrote it, or optimise the model again"
            raise ArtefactError(f"this runtime knows no steps of kind {step.kind!r}", where=f"step {index} {step.name}", fix=fix)
        add(self, index, step)

    def finish(self) -> None:
        """Allocate the one scratchpad that all primitives share, and freeze the table."""
        scratchpad = self.storage.allocator.allocate(self._scratchpad_bytes)
        self.scratchpad = scratchpad
        for memory in self._scratchpads:
            self.handles.library.call("memory_set_data_handle", memory, pointer(scratchpad))
        self.table.finish()

    def _buffer(self, index: int) -> Buffer:
        if not 0 <= index < len(self.plan.buffers):
            raise ArtefactError(f"the plan has no buffer {index}")
        return self.plan.buffers[index]

    def add_onednn(self, index: int, step: Step) -> None:
        inputs, output = [self._buffer(i) for i in step.inputs], self._buffer(step.outputs[0])
        windows = [onednn_library.Window(b.dtype, b.shape, b.strides) for b in inputs]
        try:
            primitive = onednn.create(self.handles, step.spec, windows, onednn_library.Window(output.dtype, output.shape, output.strides))
        except KernelError as error:
            raise KernelError(error.what, where=f"step {index} {step.name}: {error.where}", fix=error.fix) from error
        self.implementations[index] = primitive.implementation
        arguments = (ExecutionArgument * len(primitive.arguments))()
        for slot, argument in zip(arguments, primitive.arguments, strict=True):
            slot.argument = argument.number
            match argument.position:
                case "scratchpad":
                    slot.memory = self._memory(argument.descriptor, 0)
                    self._scratchpads.append(slot.memory)
                case "dst":
                    slot.memory = self._buffer_memory(argument.descriptor, output)
                case position if argument.packed:
                    slot.memory = self._memory(argument.descriptor, self._pack(inputs[position], argument))
                case position:
                    slot.memory = self._buffer_memory(argument.descriptor, inputs[position])
        self._scratchpad_bytes = max(self._scratchpad_bytes, primitive.scratchpad_bytes)
        self.table.add(step.name, native.LIBRARY, primitive.handle, arguments)

    def _memory(self, descriptor: Handle, address: int) -> Handle:
        return self.handles.create("memory", "memory_create", descriptor, self.handles.library.engine, address or None)

    def _buffer_memory(self, descriptor: Handle, buffer: Buffer) -> Handle:
        area, place = self.storage.locate(buffer)
        if area is None:
            return self._memory(descriptor, place)
        memory = self._memory(descriptor, 0)
        self.table.patch(native.PATCH_MEMORY, area, place, memory)
        return memory

    def _pack(self, buffer: Buffer, argument: onednn.Argument) -> int:
        """Re-lay-out a constant once for every distinct layout; return the packed copy's address."""
        library = self.handles.library
        if buffer.area != "weight":
            raise KernelError("only a constant can be packed", where=str(buffer))
        for known, descriptor, array in self.packed:
            if known == buffer and library.equal(descriptor, argument.descriptor):
                return pointer(array)
        array = self.storage.allocator.allocate(library.size_bytes(argument.descriptor))
        temporary = Handles(library)
        engine = library.engine
        description = temporary.create(
            "primitive_desc", "reorder_primitive_desc_create", argument.plain, engine, argument.descriptor, engine, None
        )
        reorder = temporary.create("primitive", "primitive_create", description)
        source = temporary.create("memory", "memory_create", argument.plain, engine, self.storage.locate(buffer)[1])
        target = temporary.create("memory", "memory_create", argument.descriptor, engine, pointer(array))
        arguments = (ExecutionArgument * 2)(
            ExecutionArgument(names.ARGUMENTS["src"], source), ExecutionArgument(names.ARGUMENTS["dst"], target)
        )
        library.call("primitive_execute", reorder, self.stream, 2, arguments)
        temporary.close()
        self.packed.append((buffer, argument.descriptor, array))
        return pointer(array)

    def add_generated(self, index: int, step: Step) -> None:
        self.add_kernel(step, self.kernels(step.spec["symbol"]))

    def add_kernel(self, step: Step, function: int) -> None:
        """Add a call of a C function that takes the inputs, then the outputs, as DLPack tensors."""
        buffers = [self._buffer(i) for i in (*step.inputs, *step.outputs)]
        values = (native.ValueRecord * len(buffers))()
        for value, buffer in zip(values, buffers, strict=True):
            value.type_index, value.pointer = native.DLTENSOR_POINTER, self._tensor(buffer)
        self.table.add(step.name, native.KERNEL, function, values)

    def add_nothing(self, index: int, step: Step) -> None:
        """Keep the place of a step that Python runs."""
        self.table.add(step.name, native.NOTHING)

    def _tensor(self, buffer: Buffer) -> int:
        element, rank = element_type(buffer.dtype), len(buffer.shape)
        shape, strides = (ctypes.c_int64 * rank)(*buffer.shape), (ctypes.c_int64 * rank)(*buffer.strides)
        record = native.TensorRecord(
            device_type=1, rank=rank, code=element.dlpack_code, bits=8 * element.size_bytes, lanes=1,
            shape=self.table.keep(shape), strides=self.table.keep(strides),
        )  # fmt: skip
        address = self.table.keep(record)
        self._point(buffer, address)
        return address

    def _point(self, buffer: Buffer, slot: int) -> None:
        """Write a buffer's address to ``slot``, now or before each run."""
        area, place = self.storage.locate(buffer)
        if area is None:
            ctypes.c_void_p.from_address(slot).value = place
        else:
            self.table.patch(native.PATCH_POINTER, area, place, slot)

    def add_copy(self, index: int, step: Step) -> None:
        source, target = self._buffer(step.inputs[0]), self._buffer(step.outputs[0])
        if "host" in (source.area, target.area):
            self.table.add(step.name, native.NOTHING)
            return
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
        self._point(source, address + native.CopyRecord.source.offset)
        self._point(target, address + native.CopyRecord.target.offset)


KINDS: Mapping[str, Callable[[Builder, int, Step], None]] = {
    "onednn": Builder.add_onednn,
    "tvm": Builder.add_generated,
    "copy": Builder.add_copy,
    "onnxruntime": Builder.add_nothing,
}
"""How each kind of step is put into the native table."""


def _merged_axes(source: Buffer, target: Buffer) -> list[tuple[int, int, int]]:
    """Return (size, source stride, target stride) with axes that lie behind each other in both merged."""
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
