"""Turn drafts with placed values into plan steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from egraph.errors import LowerError
from egraph.tensor import OPAQUE, TUPLE, Graph, Kernel, Node, Program, bind, make, walk
from egraph.tensor.ops.dtypes import EVERY
from egraph.tensor.types import attributes
from lower.drafts import Draft
from lower.eoperator import KernelRequest
from lower.placement import Copied, Location, Placement
from lower.targets import Lowering
from lower.views import Window, read
from runtime.plan import COPY_STEP, OPAQUE_STEP, Buffer, Step

ExportGraph = Callable[[Graph], bytes]
OPAQUE_FOLDER = "opaque"
SMALL_BYTES = 1 << 18
"""The most bytes of operands and results of an onnxruntime step that runs on the calling thread alone: waking its threads takes longer."""


@dataclass
class StepWriter:
    """Collects buffers, steps, kernel requests and onnxruntime models."""

    program: Program
    placement: Placement
    lowering: Lowering
    export_graph: ExportGraph | None
    buffers: dict[Buffer, int] = field(default_factory=dict)
    hosts: dict[Node, int] = field(default_factory=dict)
    requests: dict[str, KernelRequest] = field(default_factory=dict)
    models: dict[str, bytes] = field(default_factory=dict)
    host_buffers: list[tuple[int, Buffer]] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    kernels: list[tuple[Kernel, ...]] = field(default_factory=list)
    """The kernels that each step runs."""
    counts: Counter[str] = field(default_factory=lambda: Counter(library=0, eoperator=0, opaque=0, copy=0))
    """Steps by the kind of their implementation, as plans and reports count them."""
    carried: dict[str, Path] = field(default_factory=dict)
    """C sources of the libraries that the artefact carries, by file."""

    def buffer(self, node: Node) -> int:
        """Return the number of a value's buffer."""
        location = self.placement.locations.get(node)
        if location is not None:
            return self._number(self.placement.buffer(location))
        if node not in self.hosts:
            # Host buffers differ even if they look the same, because each is a Python object of its own.
            self.hosts[node] = len(self.buffers) + len(self.host_buffers)
            self.host_buffers.append((self.hosts[node], Buffer(node.type.dtype, (), (), "host", f"host{len(self.hosts) - 1}")))
        return self.hosts[node]

    def _number(self, buffer: Buffer) -> int:
        return self.buffers.setdefault(buffer, len(self.buffers) + len(self.host_buffers))

    def window(self, owner: Node, window: Window) -> int:
        """Return the number of a window over a value's allocation."""
        location = self.placement.locations[owner]
        return self._number(self.placement.buffer(Location(location.allocation, window)))

    def all_buffers(self) -> tuple[Buffer, ...]:
        numbered = [(number, buffer) for buffer, number in self.buffers.items()] + self.host_buffers
        return tuple(buffer for _, buffer in sorted(numbered, key=lambda pair: pair[0]))

    def add(self, draft: Draft, copied: Sequence[Copied] = ()) -> None:
        """Append a draft's step; for a stitch in place, append a copy for every part that its own kernel does not write there."""
        kernel = draft.kernels[0]
        for each in copied:
            target = self._number(self.placement.box(kernel.output, each.box))
            window = self.placement.locations[each.part].window.reshape(tuple(map(len, each.box)))
            assert isinstance(window, Window), "a part of other sizes lies densely"
            share = replace(kernel, cost_us=kernel.cost_us / len(copied))
            self._append(Step(COPY_STEP, "Stitch", (self.window(each.part, window),), (target,), {"reason": each.reason}), [share])
        if copied:
            return
        if draft.is_opaque:
            self._opaque(draft)
        elif kernel.implementation.is_generated:
            self._generated(kernel)
        elif library := self.lowering.library_of(kernel.implementation):
            launch = library.launch(self, kernel)
            spec = launch.spec
            if library.source is not None:
                self.carried[library.carried] = library.source
                spec = {"library": library.carried, **spec}
            self._append(Step(library.step_kind, _name(kernel), launch.inputs, (launch.output,), spec), [kernel])
        else:
            raise LowerError(f"unknown implementation {kernel.implementation.text!r}", where=str(kernel.output))

    def _append(self, step: Step, kernels: list[Kernel]) -> None:
        origins = self.program.graph.origins
        sources = dict.fromkeys(name for kernel in kernels for node in _computed(kernel) for name in origins.get(node, ()))
        rules = dict.fromkeys(name for kernel in kernels for name in kernel.rules if name)
        predicted_us = sum(kernel.cost_us for kernel in kernels)
        self.kernels.append(tuple(kernels))
        is_copy = step.kind == COPY_STEP
        self.counts[COPY_STEP if is_copy else kernels[0].implementation.shown_kind if kernels else OPAQUE.shown_kind] += 1
        self.steps.append(replace(step, source_nodes=tuple(sources), rules=tuple(rules), predicted_us=predicted_us))

    def _generated(self, kernel: Kernel) -> None:
        if self._copied(kernel):
            return
        strides = tuple(None if w.is_contiguous else w.strides for w in (self.placement.locations[n].window for n in kernel.inputs))
        target = self.placement.locations[kernel.output].window
        request = KernelRequest(
            kernel.fragment, None if target.is_contiguous else target.strides, strides if any(strides) else None,
            kernel.implementation.precision,
        )  # fmt: skip
        if self.lowering.generator.compiler is not None:
            self.requests.setdefault(request.symbol, request)
        inputs, spec = tuple(self.buffer(node) for node in kernel.inputs), self.lowering.generator.spec(request)
        self._append(Step(self.lowering.generated.name, _name(kernel), inputs, (self.buffer(kernel.output),), spec), [kernel])

    def _copied(self, kernel: Kernel) -> bool:
        """Append a copy if the fragment is a view whose elements already lie in the right order; return whether it is."""
        locations = self.placement.locations
        viewed = read(kernel.fragment, lambda leaf: locations[kernel.inputs[leaf.integer("index")]].window)
        if isinstance(viewed, str) or not viewed[1].is_contiguous or not locations[kernel.output].window.is_contiguous:
            return False
        leaf, window = viewed
        owner = kernel.inputs[leaf.integer("index")]
        step = Step(COPY_STEP, _name(kernel), (self.window(owner, window),), (self.buffer(kernel.output),), {})
        self._append(step, [kernel])
        return True

    def _opaque(self, draft: Draft) -> None:
        if self.export_graph is None:
            raise LowerError("a kernel needs onnxruntime, and no exporter was given to write its model", where=_name(draft.kernels[0]))
        inputs = [make("Input", (), attributes(name=f"einsat.in.{i}"), node.type) for i, node in enumerate(draft.inputs)]
        values: dict[Node, Node] = dict(zip(draft.inputs, inputs, strict=True))
        constants = [node for kernel in draft.kernels for node in kernel.inputs if node.op == "Constant"]
        values.update((node, node) for node in constants)
        for kernel in draft.kernels:
            values[kernel.output] = bind(kernel.fragment, [values[node] for node in kernel.inputs])
        spec = self._model(inputs, [values[node] for node in draft.outputs], constants, self.export_graph)
        spec["is_small"] = _is_small(draft)
        step = Step(
            OPAQUE_STEP, _name(draft.kernels[0]), tuple(map(self.buffer, draft.inputs)), tuple(map(self.buffer, draft.outputs)), spec
        )
        self._append(step, draft.kernels)

    def add_constants(self, nodes: Sequence[Node]) -> None:
        """Append the step that returns constants which no file of weights can hold, such as strings."""
        if self.export_graph is None:
            raise LowerError("constants need onnxruntime, and no exporter was given to write its model", where=str(nodes[0]))
        spec = self._model([], nodes, nodes, self.export_graph)
        self._append(Step(OPAQUE_STEP, "constants", (), tuple(map(self.buffer, nodes)), spec), [])

    def _model(
        self, inputs: Sequence[Node], outputs: Sequence[Node], constants: Sequence[Node], export_graph: ExportGraph
    ) -> dict[str, str | bool | list[str]]:
        """Keep a model for onnxruntime; return its file and the names of its inputs and outputs, as a step has them."""
        name, source = f"{OPAQUE_FOLDER}/{len(self.models)}.onnx", self.program.graph
        named = tuple((f"einsat.out.{i}", node) for i, node in enumerate(outputs))
        digests = dict.fromkeys(node.string("digest") for node in constants)
        tensors = {digest: source.tensors[digest] for digest in digests}
        self.models[name] = export_graph(Graph(f"opaque{len(self.models)}", tuple(inputs), named, tensors, context=source.context))
        return {"model": name, "input_names": [node.string("name") for node in inputs], "output_names": [each for each, _ in named]}


def _is_small(draft: Draft) -> bool:
    """Return whether a group of opaque kernels reads and writes too little for more than one thread."""
    values = dict.fromkeys(node for kernel in draft.kernels for node in (*kernel.inputs, kernel.output) if node.type != TUPLE)
    is_sized = all(node.type.is_static and node.type.dtype in EVERY for node in values)
    return is_sized and sum(node.type.size_bytes for node in values) <= SMALL_BYTES


def _computed(kernel: Kernel) -> list[Node]:
    """Return the program's nodes inside a kernel, from its result down to its operands."""
    nodes, stack, stop = [], [kernel.output], set(kernel.inputs)
    seen = set(stop)
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            nodes.append(node)
            stack.extend(reversed(node.inputs))
    return nodes


def _name(kernel: Kernel) -> str:
    """Return a short readable name: the operators from the operands to the result."""
    shown = list(dict.fromkeys(node.op for node in walk((kernel.fragment,)) if node.op != "Placeholder"))
    return "+".join(shown[:6]) + ("+..." if len(shown) > 6 else "")

