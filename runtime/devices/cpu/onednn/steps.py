"""Put a plan's ``onednn`` steps into the native table: primitives, packed constants, and the scratchpad that they share."""

from __future__ import annotations

import ctypes
import weakref
from collections import defaultdict
from collections.abc import Sequence
from ctypes import Array
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from runtime.devices.cpu import dispatcher as native
from runtime.devices.cpu.allocation import Allocator
from runtime.devices.cpu.onednn import library as onednn
from runtime.devices.cpu.onednn import names, primitives
from runtime.devices.cpu.onednn.library import ExecutionArgument, Handle, Handles
from runtime.devices.cpu.steps import Builder
from runtime.errors import KernelError
from runtime.plan import Buffer, Step
from runtime.storage import pointer

Call: TypeAlias = "tuple[int, object] | native.SplitRecord"
"""A primitive with its arguments, or an operand to split."""
LINE_BYTES = 64
"""The alignment in bytes of operands, which must not share a cache line."""


class OneDnn:
    """The resources of the onednn steps of one plan. They are made with the first of these, so that other plans do not load the library."""

    def __init__(self, builder: Builder) -> None:
        library = onednn.load()
        self.handles = Handles(library)
        self.stream = self.handles.create("stream", "stream_create", library.engine, names.STREAM_IN_ORDER)
        self.packed: list[tuple[Buffer, Handle, np.ndarray]] = []
        self._allocator: Allocator = builder.allocator
        self._packed_allocator = Allocator()  # packed constants may outlive the arena of the program that packed them
        self._scratchpads: list[tuple[Handle, int]] = []
        """Memory in the scratchpad, and its offset from the start in bytes."""
        self._splits: list[tuple[native.SplitRecord, int]] = []
        """Operands that are split into the scratchpad, and their offsets from the start in bytes."""
        self._dispatcher = builder.table.dispatcher
        self._scratchpad_bytes = 0
        builder.table.call_library(
            execute=library.address("primitive_execute"), set_handle=library.address("memory_set_data_handle"), stream=self.stream
        )

    @property
    def constants(self) -> Sequence[np.ndarray]:
        """Return the constants that the library keeps in formats of its own."""
        return [array for _, _, array in self.packed]

    def add(self, builder: Builder, index: int, step: Step) -> None:
        """Create the step's primitive, and put it into the table."""
        inputs, output = [builder.buffer(i) for i in step.inputs], builder.buffer(step.outputs[0])
        windows = [onednn.Window(b.dtype, b.shape, b.strides) for b in inputs]
        try:
            primitive = primitives.create(self.handles, step.spec, windows, onednn.Window(output.dtype, output.shape, output.strides))
        except KernelError as error:
            raise KernelError(error.what, where=f"step {index} {step.name}: {error.where}", fix=error.fix) from error
        builder.implementations[index] = primitive.implementation
        calls: list[Call] = []
        for piece in step.spec.get("pieces", [(0, 0)]):
            calls += self._calls(builder, step, primitive, inputs, output, piece)
        builder.table.add_calls(step.name, calls)

    def _calls(
        self, builder: Builder, step: Step, primitive: primitives.Primitive, inputs: Sequence[Buffer], output: Buffer, piece: Sequence[int]
    ) -> list[Call]:
        """Return the calls of one run of a primitive; ``piece``: by how many elements its source and its result are shifted."""
        calls: list[Call] = []
        begins = {step.spec["arguments"].get("src"): piece[0]}
        scratchpad_bytes = primitive.scratchpad_bytes
        arguments = (ExecutionArgument * len(primitive.arguments))()
        for slot, argument in zip(arguments, primitive.arguments, strict=True):
            slot.argument = argument.number
            match argument.position:
                case "scratchpad":
                    slot.memory = self._memory(argument.descriptor, 0)
                    self._scratchpads.append((slot.memory, 0))
                case "dst":
                    slot.memory = self._buffer_memory(builder, argument.descriptor, _from(output, piece[1]))
                case position if argument.packed:
                    slot.memory = self._memory(argument.descriptor, self._pack(builder, inputs[position], argument))
                case position if argument.conversion or argument.split:
                    slot.memory = self._memory(argument.descriptor, 0)
                    start_bytes = -(-scratchpad_bytes // LINE_BYTES) * LINE_BYTES
                    self._scratchpads.append((slot.memory, start_bytes))
                    scratchpad_bytes = start_bytes + self.handles.library.size_bytes(argument.descriptor)
                    source = _from(inputs[position], begins.get(position, 0))
                    if argument.split:
                        self._splits.append((record := _split_record(argument.split), start_bytes))
                        builder.point(source, ctypes.addressof(record) + native.SplitRecord.source.offset)
                        calls.append(record)
                    else:
                        given = self._buffer_memory(builder, argument.plain, source)
                        calls.append((argument.conversion, _source_and_result(given, slot.memory)))
                case position:
                    slot.memory = self._buffer_memory(builder, argument.descriptor, _from(inputs[position], begins.get(position, 0)))
        self._scratchpad_bytes = max(self._scratchpad_bytes, scratchpad_bytes)
        return [*calls, (primitive.handle, arguments)]

    def finish(self) -> None:
        """Allocate the one scratchpad that all primitives share."""
        self.scratchpad = self._allocator.allocate(self._scratchpad_bytes)
        for memory, start_bytes in self._scratchpads:
            self.handles.library.call("memory_set_data_handle", memory, pointer(self.scratchpad) + start_bytes)
        for record, start_bytes in self._splits:
            record.target = pointer(self.scratchpad) + start_bytes

    def close(self) -> None:
        self.handles.close()

    def _memory(self, descriptor: Handle, address: int) -> Handle:
        return self.handles.create("memory", "memory_create", descriptor, self.handles.library.engine, address or None)

    def _buffer_memory(self, builder: Builder, descriptor: Handle, buffer: Buffer) -> Handle:
        area, address = builder.storage.locate(buffer)
        if area is None:
            return self._memory(descriptor, address)
        memory = self._memory(descriptor, 0)
        builder.table.patch(native.PATCH_MEMORY, area, address, memory)
        return memory

    def _pack(self, builder: Builder, buffer: Buffer, argument: primitives.Argument) -> int:
        """Pack a constant once for every distinct layout; return the packed copy's address.

        Sessions that map the same weights share it, because plans for several sizes require mostly the same layouts.
        """
        library = self.handles.library
        if buffer.area != "weight":
            raise KernelError("only a constant can be packed", where=str(buffer))
        for packed_buffer, descriptor, array in self.packed:
            if packed_buffer == buffer and library.equal(descriptor, argument.descriptor):
                return pointer(array)
        key = builder.storage.locate(buffer)[1], buffer.dtype, buffer.shape, buffer.strides
        for shared in list(_shared.get(key, ())):
            copy = shared.array()
            if copy is not None and library.equal(shared.descriptor, argument.descriptor):
                self.packed.append((buffer, argument.descriptor, copy))
                return pointer(copy)
        array = self._packed_allocator.allocate(library.size_bytes(argument.descriptor))
        temporary = Handles(library)
        engine = library.engine
        description = temporary.create(
            "primitive_desc", "reorder_primitive_desc_create", argument.plain, engine, argument.descriptor, engine, None
        )
        reorder = temporary.create("primitive", "primitive_create", description)
        start = builder.storage.locate(buffer)[1]
        if argument.split:
            parts = Allocator().allocate(library.size_bytes(argument.plain))
            record = _split_record(argument.split)
            record.source, record.target = start, pointer(parts)
            self._dispatcher.split(record)
            start = pointer(parts)
        source = temporary.create("memory", "memory_create", argument.plain, engine, start)
        target = temporary.create("memory", "memory_create", argument.descriptor, engine, pointer(array))
        library.call("primitive_execute", reorder, self.stream, 2, _source_and_result(source, target))
        temporary.close()
        self.packed.append((buffer, argument.descriptor, array))
        _share(library, key, argument.descriptor, array, builder.storage.weights[buffer.key])
        return pointer(array)


def _split_record(split: primitives.Split) -> native.SplitRecord:
    """Return the dispatcher's record of a split operand, without its place; the axis that is innermost in the target is last."""
    source, target, summed = split.source, split.target, primitives.SUMMED
    axes = sorted(range(len(source.shape)), key=lambda axis: (-target.strides[axis], axis))
    record = native.SplitRecord(rank=len(axes), lower=split.lower, block=source.shape[summed] * target.strides[summed])
    for at, axis in enumerate(axes):
        record.shape[at] = source.shape[axis]
        record.source_strides[at], record.target_strides[at] = source.strides[axis], target.strides[axis]
    return record


def _from(buffer: Buffer, elements: int) -> Buffer:
    """Return a window that begins so many elements later."""
    return replace(buffer, offset=buffer.offset + elements) if elements else buffer


def _source_and_result(source: Handle, result: Handle) -> Array[ExecutionArgument]:
    pair = (ExecutionArgument(names.ARGUMENTS["src"], source), ExecutionArgument(names.ARGUMENTS["dst"], result))
    return (ExecutionArgument * 2)(*pair)


Key: TypeAlias = tuple[int | None, str, tuple[int, ...], tuple[int, ...]]
"""Where a constant lies, its element type, and its window's shape and strides."""


@dataclass(frozen=True, eq=False)
class Shared:
    """A packed constant that lives as long as a session has it. ``source`` keeps the original's memory from being reused."""

    descriptor: Handle
    array: weakref.ref[np.ndarray]
    source: np.ndarray


_shared: defaultdict[Key, list[Shared]] = defaultdict(list)


def _share(library: onednn.Library, key: Key, descriptor: Handle, array: np.ndarray, source: np.ndarray) -> None:
    clone = library.create("memory_desc_clone", descriptor)

    def forget(_: object) -> None:
        _shared[key].remove(shared)  # an empty list stays: another thread may be about to add to it
        library.call("memory_desc_destroy", clone)

    shared = Shared(clone, weakref.ref(array, forget), source)
    _shared[key].append(shared)


def add(builder: Builder, index: int, step: Step) -> None:
    """Add a step, and before the first one what all steps of the plan share."""
    context = builder.contexts.get(step.kind)
    if not isinstance(context, OneDnn):
        context = builder.contexts[step.kind] = OneDnn(builder)
    context.add(builder, index, step)
