"""Turn a plan's ``onednn`` step into a primitive: descriptors from the windows, post-operations, packed constants.

handles = Handles(library.load())
primitive = create(handles, step.spec, inputs=[Window(...), ...], output=Window(...))
primitive.arguments       # which memory each argument is; the caller binds addresses
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from runtime.devices.cpu.dispatcher import TERMS
from runtime.devices.cpu.onednn import names
from runtime.devices.cpu.onednn.library import Handle, Handles, Window, describe, dimensions
from runtime.errors import KernelError

SUMMED = 1
"""The axis of both operands of a convolution along which their products are added up."""
LOWER: Mapping[str, int] = {"src": 0, "weights": 1}
"""The block of a split operand that has the lower parts: x w is about lower(x) higher(w) + higher(x) lower(w) + higher(x) higher(w), and
the smaller products are added first."""


@dataclass(frozen=True)
class Argument:
    """One argument of a primitive: ``number`` is the library's; ``packed`` if the library chose another layout or element type.

    ``plain`` describes how the operand lies in the plan, if that differs: the operand is then packed at load, or by ``conversion``, a
    primitive that runs before this one. If the operand is split, ``plain`` describes its parts, which are made first.
    """

    number: int
    position: int | Literal["dst", "scratchpad"]
    descriptor: Handle
    packed: bool = False
    plain: Handle = 0
    conversion: Handle = 0
    split: Split | None = None


@dataclass(frozen=True)
class Split:
    """How an operand is written as bfloat16 numbers that add up to it: block after block along ``SUMMED``."""

    source: Window
    target: Window
    lower: int
    """The block that holds what the higher parts leave."""


@dataclass(frozen=True)
class Primitive:
    """A created primitive; handles belong to the ``Handles`` that it was made with."""

    handle: Handle
    arguments: tuple[Argument, ...]
    scratchpad_bytes: int
    implementation: str


class _Recipe:
    """The state of one creation: operand windows by role, and their descriptors."""

    def __init__(self, handles: Handles, spec: Mapping[str, Any], inputs: Sequence[Window], output: Window) -> None:
        self.handles, self.spec = handles, spec
        self.positions: dict[str, int] = {role: position for role, position in spec["arguments"].items() if role != "dst"}
        self.windows = list(inputs)
        self.output = output
        if spec["primitive"] == "matmul":
            self.windows, self.output = collapse_matmul(self.windows, output, self.positions, _post_positions(spec))
        self.packed = frozenset(spec.get("packed", ()))
        self.types: Mapping[str, str] = spec.get("types", {})
        self.dst = describe(handles, self.output)
        self.descriptors = {
            role: describe(handles, self.read(role), any_format=role in self.packed) for role in self.positions
        }

    def read(self, role: str) -> Window:
        """Return the window that the primitive reads of an operand: as it lies, or in another element type."""
        window = self.windows[self.positions[role]]
        if self.is_split(role):
            longer = tuple(TERMS * size if axis == SUMMED else size for axis, size in enumerate(window.shape))
            return window.with_axes(longer, window.strides).of_type(self.types[role])
        return window.of_type(self.types[role]) if self.types.get(role, window.dtype) != window.dtype else window

    def is_split(self, role: str) -> bool:
        """Return whether the primitive reads an operand's parts, side by side along the axis that it sums over."""
        return bool(self.spec.get("split")) and role in self.types

    def split(self, role: str) -> Split:
        """Return how an operand is split into what the primitive reads."""
        return Split(self.windows[self.positions[role]], self.read(role), LOWER[role])

    def role(self, name: str) -> Handle:
        if name not in self.descriptors:
            raise KernelError(f"{self.spec['primitive']} needs the argument {name!r}")
        return self.descriptors[name]

    def optional(self, name: str) -> Handle | None:
        return self.descriptors.get(name)

    def sizes(self, name: str, minus: int = 0) -> Any:
        return dimensions([int(value) - minus for value in self.spec[name]])

    def choice(self, table: Mapping[str, int], default: str | None = None) -> int:
        return look_up(table, self.spec.get("algorithm", default))


def look_up(table: Mapping[str, int], name: Any) -> int:
    """Return a name's number; raise KernelError with the known names if it has none."""
    if name not in table:
        raise KernelError(f"unknown algorithm {name!r}; there are {', '.join(table)}")
    return table[name]


def create(handles: Handles, spec: Mapping[str, Any], inputs: Sequence[Window], output: Window) -> Primitive:
    """Create the primitive of ``spec``; any failure is a KernelError that shows the spec and the windows."""
    try:
        return _create(handles, spec, inputs, output)
    except (KernelError, KeyError, IndexError) as error:
        reason = error.what if isinstance(error, KernelError) else f"the step lacks {error}"
        text = json.dumps(dict(spec), sort_keys=True, default=str)
        raise KernelError(
            reason,
            where=f"{text} inputs={[_show(window) for window in inputs]} output={_show(output)}",
            fix="optimise the model again; the kernel that the library refuses is not chosen twice",
        ) from error


def _show(window: Window) -> str:
    return f"{window.dtype}{list(window.shape)} strides {list(window.strides)}"


def _create(handles: Handles, spec: Mapping[str, Any], inputs: Sequence[Window], output: Window) -> Primitive:
    recipe = _Recipe(handles, spec, inputs, output)
    attributes, post_arguments = _attributes(recipe)
    library = handles.library
    builder = BUILDERS.get(spec["primitive"])
    if builder is None:
        raise KernelError(f"unknown primitive {spec['primitive']!r}; there are {', '.join(BUILDERS)}")
    name, arguments = builder(recipe)
    descriptor = handles.create("primitive_desc", name, *arguments, attributes)
    handle = handles.create("primitive", "primitive_create", descriptor)
    scratchpad = library.query_descriptor(descriptor, names.QUERY_SCRATCHPAD)
    result = [_argument(recipe, descriptor, role, position) for role, position in recipe.positions.items()]
    result.append(Argument(names.ARGUMENTS["dst"], "dst", recipe.dst))
    result += post_arguments
    scratchpad_bytes = library.size_bytes(scratchpad)
    if scratchpad_bytes:
        result.append(Argument(names.ARGUMENT_SCRATCHPAD, "scratchpad", scratchpad))
    return Primitive(handle, tuple(result), scratchpad_bytes, library.implementation(descriptor))


def _argument(recipe: _Recipe, descriptor: Handle, role: str, position: int) -> Argument:
    number = names.ARGUMENTS.get(role)
    if number is None:
        raise KernelError(f"unknown role {role!r}")
    library, window = recipe.handles.library, recipe.windows[position]
    if recipe.is_split(role):
        chosen = recipe.descriptors[role]
        if role in recipe.packed:
            chosen = library.query_descriptor(descriptor, names.QUERY_MEMORY_DESCRIPTORS[role], 0)
        split, plain = recipe.split(role), describe(recipe.handles, recipe.read(role))
        return Argument(number, position, chosen, packed=role in recipe.packed, plain=plain, split=split)
    if role not in recipe.packed:
        if recipe.read(role) == window:
            return Argument(number, position, recipe.descriptors[role])
        plain = describe(recipe.handles, window)
        return Argument(number, position, recipe.descriptors[role], plain=plain, conversion=_conversion(recipe, plain, role))
    chosen = library.query_descriptor(descriptor, names.QUERY_MEMORY_DESCRIPTORS[role], 1 if role in ("bias", "src1") else 0)
    plain = describe(recipe.handles, window)
    if library.equal(chosen, plain):
        return Argument(number, position, plain)
    return Argument(number, position, chosen, packed=True, plain=plain)


def _conversion(recipe: _Recipe, plain: Handle, role: str) -> Handle:
    """Return the primitive that copies an operand into the element type that is read."""
    handles, engine = recipe.handles, recipe.handles.library.engine
    description = handles.create(
        "primitive_desc", "reorder_primitive_desc_create", plain, engine, recipe.descriptors[role], engine, None
    )
    return handles.create("primitive", "primitive_create", description)


def _post_positions(spec: Mapping[str, Any]) -> list[int]:
    return [operation["argument"] for operation in spec.get("post_ops", ()) if "argument" in operation]


def _attributes(recipe: _Recipe) -> tuple[Handle, list[Argument]]:
    handles, arguments = recipe.handles, []
    attributes = handles.create("primitive_attr", "primitive_attr_create")
    handles.library.call("primitive_attr_set_scratchpad_mode", attributes, names.SCRATCHPAD_USER)
    operations = handles.create("post_ops", "post_ops_create")
    for index, operation in enumerate(recipe.spec.get("post_ops", ())):
        base = names.ARGUMENT_POST_OPERATION * (index + 1)
        match operation["kind"], operation.get("algorithm"):
            case "eltwise", algorithm:
                number = look_up(names.ELTWISE_ALGORITHMS, algorithm)
                handles.library.call("post_ops_append_eltwise", operations, number, operation.get("alpha", 0.0), operation.get("beta", 0.0))
            case "binary", "prelu":
                window = recipe.windows[operation["argument"]]
                mask = sum(1 << axis for axis, size in enumerate(window.shape) if size != 1)
                handles.library.call("post_ops_append_prelu", operations, mask)
                arguments.append(Argument(base | names.ARGUMENTS["weights"], operation["argument"], describe(handles, window)))
            case "binary", algorithm:
                window = recipe.windows[operation["argument"]]
                plain, number = describe(handles, window), base | names.ARGUMENTS["src1"]
                argument = Argument(number, operation["argument"], plain)
                if operation.get("dtype", window.dtype) != window.dtype:
                    converted = describe(handles, window.of_type(operation["dtype"]))
                    argument = Argument(number, operation["argument"], converted, packed=True, plain=plain)
                algorithm = look_up(names.BINARY_ALGORITHMS, algorithm)
                handles.library.call("post_ops_append_binary", operations, algorithm, argument.descriptor)
                arguments.append(argument)
            case kind, _:
                raise KernelError(f"unknown post-operation {kind!r}; there are eltwise and binary")
    handles.library.call("primitive_attr_set_post_ops", attributes, operations)
    return attributes, arguments


def _convolution(recipe: _Recipe) -> tuple[str, list[Any]]:
    kind = recipe.spec["primitive"]
    return f"{kind}_forward_primitive_desc_create", [
        recipe.handles.library.engine, names.FORWARD_INFERENCE, names.DIRECT[kind],
        recipe.role("src"), recipe.role("weights"), recipe.optional("bias"), recipe.dst,
        recipe.sizes("strides"), recipe.sizes("dilations", minus=1), recipe.sizes("pads_before"), recipe.sizes("pads_after"),
    ]  # fmt: skip


def _matmul(recipe: _Recipe) -> tuple[str, list[Any]]:
    operands = [recipe.role("src"), recipe.role("weights"), recipe.optional("bias"), recipe.dst]
    return "matmul_primitive_desc_create", [recipe.handles.library.engine, *operands]


def _pooling(recipe: _Recipe) -> tuple[str, list[Any]]:
    return "pooling_forward_primitive_desc_create", [
        recipe.handles.library.engine, names.FORWARD_INFERENCE, recipe.choice(names.POOLING_ALGORITHMS), recipe.role("src"), recipe.dst,
        recipe.sizes("strides"), recipe.sizes("kernel"), recipe.sizes("dilations", minus=1),
        recipe.sizes("pads_before"), recipe.sizes("pads_after"),
    ]  # fmt: skip


def _layer_normalization(recipe: _Recipe) -> tuple[str, list[Any]]:
    flags = (names.USE_SCALE if "scale" in recipe.positions else 0) | (names.USE_SHIFT if "shift" in recipe.positions else 0)
    return "layer_normalization_forward_primitive_desc_create", [
        recipe.handles.library.engine, names.FORWARD_INFERENCE, recipe.role("src"), recipe.dst, None, float(recipe.spec["epsilon"]), flags,
    ]  # fmt: skip


def _lrn(recipe: _Recipe) -> tuple[str, list[Any]]:
    spec = recipe.spec
    if spec["size"] % 2 == 0:
        raise KernelError(f"an LRN window of even size {spec['size']} is not symmetric, oneDNN's is")
    return "lrn_forward_primitive_desc_create", [
        recipe.handles.library.engine, names.FORWARD_INFERENCE, names.LRN_ACROSS_CHANNELS, recipe.role("src"), recipe.dst,
        int(spec["size"]), float(spec["alpha"]), float(spec["beta"]), float(spec["k"]),
    ]  # fmt: skip


def _reduction(recipe: _Recipe) -> tuple[str, list[Any]]:
    algorithm = recipe.choice(names.REDUCTION_ALGORITHMS)
    return "reduction_primitive_desc_create", [recipe.handles.library.engine, algorithm, recipe.role("src"), recipe.dst, 0.0, 0.0]


def _resampling(recipe: _Recipe) -> tuple[str, list[Any]]:
    return "resampling_forward_primitive_desc_create", [
        recipe.handles.library.engine, names.FORWARD_INFERENCE, recipe.choice(names.RESAMPLING_ALGORITHMS), None,
        recipe.role("src"), recipe.dst,
    ]  # fmt: skip


def _binary(recipe: _Recipe) -> tuple[str, list[Any]]:
    algorithm = recipe.choice(names.BINARY_ALGORITHMS)
    return "binary_primitive_desc_create", [
        recipe.handles.library.engine, algorithm, recipe.role("src0"), recipe.role("src1"), recipe.dst,
    ]  # fmt: skip


def _eltwise(recipe: _Recipe) -> tuple[str, list[Any]]:
    spec = recipe.spec
    return "eltwise_forward_primitive_desc_create", [
        recipe.handles.library.engine, names.FORWARD_INFERENCE, recipe.choice(names.ELTWISE_ALGORITHMS), recipe.role("src"), recipe.dst,
        float(spec.get("alpha", 0.0)), float(spec.get("beta", 0.0)),
    ]  # fmt: skip


def _reorder(recipe: _Recipe) -> tuple[str, list[Any]]:
    engine = recipe.handles.library.engine
    return "reorder_primitive_desc_create", [recipe.role("src"), engine, recipe.dst, engine]


BUILDERS = {
    "convolution": _convolution,
    "deconvolution": _convolution,
    "matmul": _matmul,
    "pooling": _pooling,
    "layer_normalization": _layer_normalization,
    "lrn": _lrn,
    "reduction": _reduction,
    "resampling": _resampling,
    "binary": _binary,
    "eltwise": _eltwise,
    "reorder": _reorder,
}


def collapse_matmul(
    inputs: Sequence[Window], output: Window, positions: Mapping[str, int], post_positions: Sequence[int]
) -> tuple[list[Window], Window]:
    """Return the operands with batch dimensions dropped (all of size 1) or merged into the rows where strides allow."""
    used = sorted({*positions.values(), *post_positions})
    operands = {position: _pad(inputs[position], len(output.shape)) for position in used}
    output, operands = _drop_leading_ones(output, operands)
    while len(output.shape) > 2:
        merged = _merge_rows(output, operands, positions)
        if merged is None:
            break
        output, operands = merged
    return [operands.get(position, window) for position, window in enumerate(inputs)], output


def _pad(window: Window, rank: int) -> Window:
    missing = rank - len(window.shape)
    if missing <= 0:
        return window
    outer = window.shape[0] * window.strides[0] if window.shape else 1
    return window.with_axes((1,) * missing + window.shape, (max(outer, 1),) * missing + window.strides)


def _drop_leading_ones(output: Window, operands: dict[int, Window]) -> tuple[Window, dict[int, Window]]:
    while len(output.shape) > 2 and all(window.shape[0] == 1 for window in (output, *operands.values())):
        output = _without(output, 0)
        operands = {position: _without(window, 0) for position, window in operands.items()}
    return output, operands


def _without(window: Window, axis: int) -> Window:
    return window.with_axes(window.shape[:axis] + window.shape[axis + 1 :], window.strides[:axis] + window.strides[axis + 1 :])


def _merge_rows(output: Window, operands: dict[int, Window], positions: Mapping[str, int]) -> tuple[Window, dict[int, Window]] | None:
    """Merge the last batch dimension into the rows; None if some operand does not allow it."""
    src, weights, bias = positions["src"], positions["weights"], positions.get("bias")
    if operands[weights].shape[-3] != 1:
        return None
    target = output.shape[-3:-1]
    result = {}
    for position, window in operands.items():
        if position in (weights, bias):
            if window.shape[-3] != 1 or (position == bias and window.shape[-2] != 1):
                return None
            merged: Window | None = _without(window, len(window.shape) - 3)
        elif position != src and window.shape[-3:-1] == (1, 1):
            merged = _without(window, len(window.shape) - 3)
        else:
            merged = _merge(window) if window.shape[-3:-1] == target else None
        if merged is None:
            return None
        result[position] = merged
    new_output = _merge(output)
    return None if new_output is None else (new_output, result)


def _merge(window: Window) -> Window | None:
    (*batch, outer, rows, columns), (*batch_strides, outer_stride, row_stride, column_stride) = window.shape, window.strides
    if outer != 1 and rows != 1 and outer_stride != rows * row_stride:
        return None
    stride = outer_stride if rows == 1 else row_stride
    return window.with_axes((*batch, outer * rows, columns), (*batch_strides, stride, column_stride))
