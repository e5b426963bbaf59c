"""Decide the memory of every value: in the arena, in a model output, inside a concatenation, or over its dying operand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from egraph.errors import LowerError
from egraph.tensor import Kernel, Node, Program, numpy_dtype
from egraph.tensor.boxes import Box
from egraph.tensor.ops.movement import joins_outermost
from egraph.tensor.ops.stitch import stitch_of
from lower.drafts import Draft, Order
from lower.filling import Writes, box_window, filling, whole_below
from lower.memory import Lifetime, plan_arena
from lower.roofline import DeviceSpeed
from lower.targets import dense_alone
from lower.views import Reason, Window, contiguous, read
from lower.weights import NAMES
from runtime.plan import Area, Buffer

FOREVER = 1 << 60
@dataclass
class Allocation:
    """A contiguous piece of memory; ``first`` and ``last`` are the steps between which it is live."""

    area: Area
    key: str
    dtype: str
    size_bytes: int
    first: int
    last: int


@dataclass(frozen=True)
class Location:
    """A window into an allocation (by number), in elements."""

    allocation: int
    window: Window


@dataclass(frozen=True)
class Slot:
    """Where an operand of a concatenation or of a stitch is written: its place in the result."""

    output: Node
    offset: int = 0
    box: Box | None = None
    """The positions of the result that are the operand's, if these are no contiguous run of its memory."""


@dataclass(frozen=True)
class Copied:
    """A part of a stitch that is copied to its box, and why its kernel does not write it there."""

    part: Node
    box: Box
    reason: Reason


@dataclass
class Placement:
    """Places by value; values without a fixed size have none. ``dropped``: drafts that need no step. ``copied``: for drafts of stitches,
    the parts that are copied to their boxes."""

    locations: dict[Node, Location] = field(default_factory=dict)
    allocations: list[Allocation] = field(default_factory=list)
    dropped: set[int] = field(default_factory=set)
    copied: dict[int, tuple[Copied, ...]] = field(default_factory=dict)
    offsets: Mapping[int, int] = field(default_factory=dict)
    arena_bytes: int = 0

    def add(self, node: Node, area: Area, key: str, first: int, last: int) -> Location:
        """Give a value an allocation of its own."""
        self.allocations.append(Allocation(area, key, node.type.dtype, node.type.size_bytes, first, last))
        self.locations[node] = Location(len(self.allocations) - 1, contiguous(node.type.sizes))
        return self.locations[node]

    def add_weight(self, node: Node) -> None:
        """Place a constant."""
        self.add(node, "weight", node.string("digest"), -1, FOREVER)

    def box(self, node: Node, box: Box) -> Buffer:
        """Return some positions of a value as the plan's buffer."""
        location = self.locations[node]
        return self.buffer(Location(location.allocation, box_window(location.window, box)))

    def buffer(self, location: Location) -> Buffer:
        """Return a window of a value as the plan's buffer."""
        owner = self.allocations[location.allocation]
        start = self.offsets.get(location.allocation, 0) // numpy_dtype(owner.dtype).itemsize
        window = location.window
        return Buffer(owner.dtype, window.shape, window.strides, owner.area, owner.key, start + window.offset)


def is_sized(node: Node) -> bool:
    """Return whether the size of a value in bytes is known ahead of time."""
    return node.type.is_static and node.type.dtype in NAMES


def place_all(
    program: Program, order: Order, may_overwrite: Callable[[Node], frozenset[int]], threads: int = 1, writes: Writes = dense_alone,
    speed: DeviceSpeed | None = None,
) -> Placement:  # fmt: skip
    """Place inputs, constants and every result; a view shares the memory of its operand."""
    return _Placer(program, order, may_overwrite, writes, speed or DeviceSpeed()).run(threads)


class _Placer:
    def __init__(
        self, program: Program, order: Order, may_overwrite: Callable[[Node], frozenset[int]], writes: Writes, speed: DeviceSpeed
    ) -> None:
        self.program, self.order, self.may_overwrite, self.writes, self.speed = program, order, may_overwrite, writes, speed
        self.result = Placement()
        self.root = _roots(order)
        self.viewed = {kernel.output: kernel for kernels in order.views for kernel in kernels}
        self.slots = self._concatenations()
        self.last_use = self._last_uses()
        self.outputs = self._direct_outputs()

    def run(self, threads: int) -> Placement:
        for node in self.program.graph.inputs:
            if is_sized(node):
                self.result.add(node, "input", node.string("name"), -1, FOREVER)
        for step, kernels in enumerate(self.order.views):
            for kernel in kernels:
                self._view(kernel)
            if step < len(self.order.drafts) and step not in self.result.dropped:
                self._draft(step, self.order.drafts[step])
        lifetimes = [
            Lifetime(number, a.size_bytes, a.first, a.last) for number, a in enumerate(self.result.allocations) if a.area == "arena"
        ]
        arena = plan_arena(lifetimes, threads)
        self.result.offsets, self.result.arena_bytes = arena.offsets, arena.size_bytes
        return self.result

    def _concatenations(self) -> dict[Node, Slot]:
        """Find concatenations along the outermost axis whose operands are all made by steps of their own."""
        made = {node: step for step, draft in enumerate(self.order.drafts) for node in draft.outputs}
        slots: dict[Node, Slot] = {}
        for step, draft in enumerate(self.order.drafts):
            kernel = draft.kernels[0]
            fragment = kernel.fragment
            if len(draft.kernels) != 1 or not joins_outermost(fragment):
                continue
            operands = [kernel.inputs[n.integer("index")] for n in fragment.inputs]
            roots = [self.root.get(node, node) for node in operands]
            free = all(r in made and r not in slots and r.type.elements == n.type.elements for r, n in zip(roots, operands, strict=True))
            if not free or len(set(roots)) != len(roots) or not all(map(is_sized, (*roots, kernel.output))):
                continue
            offset = 0
            for root in roots:
                slots[root] = Slot(kernel.output, offset)
                offset += root.type.elements
            self.result.dropped.add(step)
        for step, draft in enumerate(self.order.drafts):
            self._stitch(step, draft, made, slots)
        return slots

    def _stitch(self, step: int, draft: Draft, made: Mapping[Node, int], slots: dict[Node, Slot]) -> None:
        """Write a stitch's background in the result's memory, and its parts over it, by their kernels or by copies."""
        kernel = draft.kernels[0]
        stitch = stitch_of(kernel.fragment) if len(draft.kernels) == 1 and kernel.implementation.is_generated else None
        background = None if stitch is None else self.root.get(kernel.inputs[stitch.background], kernel.inputs[stitch.background])
        if stitch is None or background is None or not self._is_free(background, step, made, slots) or not is_sized(kernel.output):
            return
        parts = [(kernel.inputs[number], box) for number, box in stitch.parts]
        has_made_parts = all(part.type.sizes == tuple(map(len, box)) or part in made for part, box in parts)
        if background.type.elements != kernel.output.type.elements or not has_made_parts:
            return
        slots[background] = Slot(kernel.output)
        copied: list[Copied] = []
        for part, box in parts:
            result = self._reshaped(part)
            reason = self._objection(result, made, background, step, slots) or self._unwritable(made[result], result, kernel.output, box)
            if reason:
                copied.append(Copied(part, box, reason))
            else:
                slots[result] = Slot(kernel.output, box=box)
        if copied:
            self.result.copied[step] = tuple(copied)
        else:
            self.result.dropped.add(step)

    def _reshaped(self, part: Node) -> Node:
        """Return the value of which a value is another shape, with its elements in the same order; itself if it is no such view."""
        kernel = self.viewed.get(part)
        return part if kernel is None or whole_below(kernel.fragment) is None else self._reshaped(kernel.inputs[0])

    def _is_free(self, root: Node, step: int, made: Mapping[Node, int], slots: Mapping[Node, Slot]) -> bool:
        """Return whether a value is made by a step and read by one other step alone."""
        if root not in made or root in slots or not is_sized(root) or root.type.dtype not in NAMES:
            return False
        if any(self.root.get(node, node) is root for node in self.program.graph.roots):
            return False
        readers = {k for k, draft in enumerate(self.order.drafts) for node in draft.inputs if self.root.get(node, node) is root}
        return readers == {step} and not self.order.drafts[made[root]].is_opaque

    def _objection(self, part: Node, made: Mapping[Node, int], background: Node, step: int, slots: Mapping[Node, Slot]) -> Reason:
        """Return why no kernel can write a value where it stands in the result; empty if one can."""
        if part not in made or part in self.root:
            return "it is no kernel's whole result"
        if made[part] < made[background]:
            return "it is made before what stands around it"
        return "" if self._is_free(part, step, made, slots) else "something else reads it, or it is stored elsewhere"

    def _unwritable(self, step: int, part: Node, output: Node, box: Box) -> Reason:
        """Return why the kernel that makes a part does not write it into its box of the result; empty if it does."""
        window = box_window(contiguous(output.type.sizes), box).reshape(part.type.sizes)
        return filling(self.order.drafts[step].kernels[0], window, self.writes, self.speed).copied

    def _base(self, node: Node) -> Node:
        """Return the value whose allocation holds a value."""
        node = self.root.get(node, node)
        while node in self.slots:
            node = self.slots[node].output
        return node

    def _last_uses(self) -> dict[Node, int]:
        last: dict[Node, int] = {}
        for step, draft in enumerate(self.order.drafts):
            if step in self.result.dropped:
                continue
            for node in (*draft.inputs, *draft.outputs):
                base = self._base(node)
                last[base] = max(last.get(base, -1), step)
        for node in self.program.graph.roots:
            last[self._base(node)] = FOREVER
        return last

    def _direct_outputs(self) -> dict[Node, str]:
        """Return the model outputs that have an allocation of their own: kernels write these directly."""
        made = {self._base(node) for draft in self.order.drafts for node in draft.outputs}
        direct: dict[Node, str] = {}
        for name, node in self.program.graph.outputs:
            base = self._base(node)
            if base in made and base not in direct and is_sized(node) and node.type.elements == base.type.elements:
                direct[base] = name
        return direct

    def _constant(self, node: Node) -> None:
        if node.op == "Constant" and node not in self.result.locations and is_sized(node):
            self.result.add_weight(node)

    def _view(self, kernel: Kernel) -> None:
        node = kernel.inputs[0]
        self._constant(node)
        if node not in self.result.locations:
            raise LowerError(f"a view of {node} before it is computed", where=str(kernel.output))
        location = self.result.locations[node]
        viewed = read(kernel.fragment, lambda _: location.window)
        if isinstance(viewed, str):
            raise LowerError(f"not a view: {viewed}", where=str(kernel.output))
        self.result.locations[kernel.output] = Location(location.allocation, viewed[1])

    def _draft(self, step: int, draft: Draft) -> None:
        for node in draft.inputs:
            self._constant(node)
            if node not in self.result.locations and is_sized(node):
                raise LowerError(f"{node} is used before it is computed", where=str(draft.kernels[0].output))
        for node in draft.outputs:
            if is_sized(node) and node not in self.result.locations:
                self._result(step, draft, node)

    def _result(self, step: int, draft: Draft, node: Node) -> None:
        base = self._base(node)
        last = self.last_use.get(base, step)
        if node in self.slots:
            if base not in self.result.locations:
                self._new(base, step, last)
            self.result.locations[node] = self._slot(node)
        elif node in self.outputs or not self._reuse(step, draft, node, last):
            self._new(node, step, last)

    def _new(self, node: Node, step: int, last: int) -> None:
        name = self.outputs.get(node)
        self.result.add(node, "arena" if name is None else "output", name or "", step, last)

    def _slot(self, node: Node) -> Location:
        if node not in self.slots:
            return self.result.locations[node]
        slot = self.slots[node]
        outer = self.result.locations.get(slot.output) or self._slot(slot.output)
        self.result.locations.setdefault(slot.output, outer)
        if slot.box is not None:
            window = box_window(outer.window, slot.box).reshape(node.type.sizes)
            assert isinstance(window, Window), "otherwise it is copied"
            return Location(outer.allocation, window)
        inner = contiguous(node.type.sizes)
        return Location(outer.allocation, Window(outer.window.offset + slot.offset, inner.shape, inner.strides))

    def _reuse(self, step: int, draft: Draft, node: Node, last: int) -> bool:
        """Write over an operand that no later step reads, if the kernel allows it; return whether it did."""
        kernel = draft.kernels[0]
        if not kernel.implementation.is_generated:
            return False
        for index in sorted(self.may_overwrite(kernel.fragment)):
            operand = kernel.inputs[index]
            location = self.result.locations[operand]
            owner = self.result.allocations[location.allocation]
            covers = location.window.is_contiguous and owner.size_bytes == node.type.size_bytes and owner.dtype == node.type.dtype
            once = kernel.inputs.count(operand) == 1 and self._reads(kernel, location.allocation) == 1
            if owner.area == "arena" and owner.last == step and covers and once:
                owner.last = last
                fresh = contiguous(node.type.sizes)
                self.result.locations[node] = Location(location.allocation, Window(location.window.offset, fresh.shape, fresh.strides))
                return True
        return False

    def _reads(self, kernel: Kernel, allocation: int) -> int:
        return sum(1 for n in kernel.inputs if n in self.result.locations and self.result.locations[n].allocation == allocation)


def _roots(order: Order) -> dict[Node, Node]:
    """Return for every view the value whose elements it shows."""
    root: dict[Node, Node] = {}
    for kernels in order.views:
        for kernel in kernels:
            node = kernel.inputs[0]
            root[kernel.output] = root.get(node, node)
    return root


