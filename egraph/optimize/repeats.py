"""Search equal blocks of a model once: the layers of a transformer differ in their weights alone.

A *run* is a stretch of the model's operators, in their order, that repeats: each *instance* applies the same operators with the same
attributes and types to its operands. The *outline* is the model with one block for each run: what the block reads from outside is an
input, what others read of it an output. Rules, candidates, measurements and extraction see the outline; the program that they give is
written out for every instance. All of it is substitution: an equation of the block holds for whatever its inputs and weights are.

So nothing of the block may rest on what its weights *are*. A constant that differs between instances is a float tensor of several
elements, and stands in the outline as random numbers: two expressions over it that have the same value there are equal as expressions
(Schwartz, Zippel), so that the constant analyses join what is equal in every instance. Blocks that differ in a single number, or in
integers, are not equal, but for bytes that several numbers are packed into: nothing but their numbers is computed of them.

Nothing is fused across the border of a block, so it is drawn where the fewest values cross it. Values that kernels keep in several
layouts, which images are, do not cross: the border would fix the layout.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np

from egraph.errors import ExtractError
from egraph.extract import to_program
from egraph.tensor import LEAVES, Attributes, ENode, FrozenEGraph, Graph, Kernel, Node, Program, Selection, attributes, make, walk
from egraph.tensor.ops import OPS
from runtime.feeds import random_array

LARGEST_RANK = 3
"""The largest rank of a value that crosses a border between blocks: the axes of images, of which there are more, have several orders."""
LEAST_BYTES = 16
"""Bytes of packed numbers that may differ between equal blocks, at least: as random ones, these are not all the same by chance."""
LEAST_OPERATORS = 8
"""Operators of a block, at least: what is shorter repeats by chance."""


@dataclass(frozen=True)
class Instance:
    """One of the equal blocks: its operators in their order, and what they read."""

    operators: tuple[Node, ...]
    operands: tuple[Node, ...]
    """What depends on the model's inputs, in the order of its first use; ``constants`` likewise."""
    constants: tuple[Node, ...]
    """Weights, and what is computed of weights alone."""


@dataclass(frozen=True)
class Run:
    """Equal blocks; ``outputs`` are the positions of operators whose values others read."""

    instances: tuple[Instance, ...]
    outputs: tuple[int, ...]

    @property
    def saved(self) -> int:
        """Return the number of operators that need not be searched."""
        return (len(self.instances) - 1) * len(self.instances[0].operators)


@dataclass(frozen=True)
class Outline:
    """A model, and the graph that is searched in its place: the model itself where it has no equal blocks."""

    model: Graph
    graph: Graph
    runs: tuple[Run, ...] = ()
    nodes: Mapping[Node, Node] = field(default_factory=dict)
    """What stands for the model's nodes in the graph, those of all first instances and those outside of runs."""
    parameters: Mapping[Node, tuple[int, bool, int]] = field(default_factory=dict)
    """The leaves that stand for what a block reads: the run, whether for a constant, and its place among these."""
    results: Mapping[Node, Node] = field(default_factory=dict)
    """The leaves that stand for values of blocks outside of them, each with the model's node."""

    @cached_property
    def owners(self) -> Mapping[Node, tuple[int, int, int]]:
        """The run, instance and position of each of the model's nodes in a block."""
        return {
            node: (run, number, position)
            for run, each in enumerate(self.runs)
            for number, instance in enumerate(each.instances)
            for position, node in enumerate(instance.operators)
        }

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what was searched once, in words."""
        blocks = ((len(run.instances), len(run.instances[0].operators)) for run in self.runs)
        return tuple(f"{count} equal blocks of {operators} operators were searched as one" for count, operators in blocks)

    def uses(self, frozen: FrozenEGraph) -> Mapping[int, int]:
        """Return how many instances compute the classes of blocks, by the class's number."""
        counts: dict[int, int] = {}
        for number, nodes in frozen.classes.items():
            inputs = (make("Input", (), each.attributes, frozen.types[number]) for each in nodes if each.op == "Input")
            for parameter in filter(None, map(self.parameters.get, inputs)):
                counts[number] = len(self.runs[parameter[0]].instances)
        waiting = list(counts)
        readers: dict[int, set[int]] = {}
        for number, nodes in frozen.classes.items() if counts else ():
            for each in nodes:
                for child in each.children:
                    readers.setdefault(child, set()).add(number)
        for number in waiting:
            more = sorted(reader for reader in readers.get(number, ()) if reader not in counts)
            counts |= dict.fromkeys(more, counts[number])
            waiting += more
        return counts

    def in_order(self, frozen: FrozenEGraph) -> FrozenEGraph:
        """Return an e-graph without e-nodes that join what is computed at different times, as the product of a block with one after it.

        In the graph a block's results are leaves, so that nothing there says that they come after the block: a program with such a kernel
        would never end to be written out.
        """
        if not self.runs:
            return frozen
        times, at = self._times(frozen), self._leaf_times
        classes = {
            number: kept for number, nodes in frozen.classes.items() if number in times
            if (kept := tuple(each for each in nodes if _is_in_time(_time_of(each, at, times), times[number])))
        }  # fmt: skip
        if classes == frozen.classes:
            return frozen
        types = {number: each for number, each in frozen.types.items() if number in classes}
        source = {number: each for number, each in frozen.source.items() if number in classes}
        return replace(frozen, classes=classes, types=types, source=source, constants=frozen.constants & classes.keys())

    @cached_property
    def _leaf_times(self) -> Mapping[tuple[str, Attributes], int]:
        """The times of leaves: a run's own is odd, what is known after it is even, what is known from the start is 0."""
        after = {leaf: 2 * self.owners[node][0] + 2 for leaf, node in self.results.items()}
        times = after | {leaf: 2 * run + 1 for leaf, (run, _, _) in self.parameters.items()}
        return {(leaf.op, leaf.attributes): time for leaf, time in times.items()}

    def _times(self, frozen: FrozenEGraph) -> Mapping[int, int]:
        """Return when each class is known: as the graph computes it, or earlier outside of all blocks; none of what is in no order.

        What a block computes may be equal to what is known before it, and stands for both: all that reads it is still in order.
        """
        of_node: dict[Node, int] = {}
        for node in walk(frozen.source.values()):
            operands = max((of_node[operand] for operand in node.inputs), default=0)
            of_node[node] = self._leaf_times.get((node.op, node.attributes), operands)
        times = {number: of_node[node] for number, node in frozen.source.items()}
        waiting = [*frozen.classes][::-1]  # numbered from the roots: operands come first so
        changed = True
        while changed:
            changed = False
            for number in waiting:
                of_nodes = (_time_of(each, self._leaf_times, times) for each in frozen.classes[number])
                earliest = min((time for time in of_nodes if time is not None), default=None)
                if earliest is None or earliest >= times.get(number, earliest + 1):
                    continue
                if number not in frozen.source or earliest % 2 == 0:
                    times[number], changed = earliest, True
        return times

    def originals(self, node: Node) -> tuple[Node, ...]:
        """Return the model's nodes that a node of the graph stands for."""
        return self._originals.get(node, (node,))

    @cached_property
    def _originals(self) -> dict[Node, tuple[Node, ...]]:
        originals = {}
        for old, new in self.nodes.items():
            run, _, position = self.owners.get(old, (0, 0, -1))
            originals[new] = tuple(each.operators[position] for each in self.runs[run].instances) if old in self.owners else (old,)
        return originals

    def program(self, frozen: FrozenEGraph, selection: Selection) -> Program:
        """Return the model's program of a selection from the graph's e-graph: its blocks are written out for each instance."""
        program = to_program(frozen, selection, self.graph)
        return _Writer(self, program).program() if self.runs else program

    def written(self, frozen: FrozenEGraph, selection: Selection) -> tuple[tuple[int, ...], ...]:
        """Return, for each kernel of the graph's program, the positions in the model's program of the kernels that it is written out as."""
        program = to_program(frozen, selection, self.graph)
        if not self.runs:
            return tuple((position,) for position in range(len(program.kernels)))
        writer = _Writer(self, program)
        position = {kernel.output: at for at, kernel in enumerate(writer.program().kernels)}
        return tuple(tuple(dict.fromkeys(position[node] for node in writer.outputs(kernel))) for kernel in program.kernels)


def outlined(model: Graph, least_share: float) -> Outline:
    """Return the outline of a model whose equal blocks save at least this share of its operators."""
    constants = _constants(model)
    operators = [node for node in walk(model.roots) if node.op not in LEAVES and node not in constants]
    runs = tuple(_runs(model, operators, constants))
    if not runs or sum(run.saved for run in runs) < least_share * len(operators):
        return Outline(model, model)
    return _outline(model, runs, constants)


def _constants(model: Graph) -> frozenset[Node]:
    """Return what is known at compile time, but for what bytes are unpacked to: kernels read the bytes, so they belong to the block."""
    constants: set[Node] = set()
    for node in walk(model.roots):
        if node.op == "Constant" or (node.inputs and constants.issuperset(node.inputs) and not _unpacks(node)):
            constants.add(node)
    return frozenset(constants)


def _runs(model: Graph, operators: Sequence[Node], constants: frozenset[Node]) -> Iterator[Run]:
    """Yield the runs of a stretch of operators: the one that saves most, then those before and after it."""
    wiring, border = _Wiring.of(operators, constants), _Border.of(model, operators)
    for period, first, last in _periods(_labels(operators)):
        run = _best_run(wiring, border, period, first, last)
        if run is not None:
            start = operators.index(run.instances[0].operators[0])
            end = operators.index(run.instances[-1].operators[-1]) + 1
            yield from _runs(model, operators[:start], constants)
            yield run
            yield from _runs(model, operators[end:], constants)
            return


def _labels(operators: Sequence[Node]) -> np.ndarray:
    """Return a number for each operator, the same for those that may stand at the same place of two blocks."""
    numbers: dict[tuple[object, ...], int] = {}
    keys = ((node.op, repr(node.attributes), node.type, tuple(operand.type for operand in node.inputs)) for node in operators)
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)


MOST_PERIODS = 4
"""Periods that are tried, those that save most first: blocks may be equal in their operators and yet not in what they read."""


def _periods(labels: np.ndarray) -> list[tuple[int, int, int]]:
    """Return periods with the first and last operator of their longest stretch."""
    stretches = []
    for period in range(LEAST_OPERATORS, len(labels) // 2 + 1):
        same = np.concatenate([[False], labels[:-period] == labels[period:], [False]])
        edges = np.flatnonzero(same[1:] != same[:-1])
        starts, ends = edges[::2], edges[1::2]
        if len(starts):
            longest = int(np.argmax(ends - starts))
            start, end = int(starts[longest]), int(ends[longest])
            blocks = (end - start) // period + 1
            if blocks > 1:
                stretches.append(((blocks - 1) * period, -period, start, end + period))
    return [(-period, start, end) for _, period, start, end in sorted(stretches, reverse=True)[:MOST_PERIODS]]


def _best_run(wiring: _Wiring, border: _Border, period: int, first: int, last: int) -> Run | None:
    """Return the run of equal blocks that saves most, and of those the one that the fewest values cross.

    Operators from ``first`` to ``last`` are alike at a distance of ``period``.
    """
    best: tuple[tuple[int, int], Run] | None = None
    for start in range(first, min(first + period, last - 2 * period + 1)):
        count = (last - start) // period
        outputs = border.outputs(start, period, count)
        if outputs is None or (best is not None and ((count - 1) * period, -len(outputs)) <= best[0]):
            continue
        run = Run(wiring.equal_blocks(start, period, count), outputs)
        rank = run.saved, -len(outputs) - len(run.instances[0].operands)
        if len(run.instances) > 1 and (best is None or rank > best[0]):
            best = rank, run
    return best[1] if best else None


@dataclass(frozen=True)
class _Wiring:
    """What operators read, an array each over all their operands in their order; ``first_operand`` has where each operator's begin."""

    operators: Sequence[Node]
    operands: Sequence[Node]
    first_operand: np.ndarray
    numbers: np.ndarray
    """The same for the same node."""
    places: np.ndarray
    """The places of operators, -1 of what is none."""
    is_constant: np.ndarray

    @staticmethod
    def of(operators: Sequence[Node], constants: frozenset[Node]) -> _Wiring:
        place = {node: at for at, node in enumerate(operators)}
        operands = [operand for node in operators for operand in node.inputs]
        numbers: dict[Node, int] = {}
        return _Wiring(
            operators,
            operands,
            np.cumsum([0, *(len(node.inputs) for node in operators)]),
            np.array([numbers.setdefault(operand, len(numbers)) for operand in operands], np.int64),
            np.array([place.get(operand, -1) for operand in operands], np.int64),
            np.array([operand in constants for operand in operands], bool),
        )

    def equal_blocks(self, start: int, period: int, count: int) -> tuple[Instance, ...]:
        """Return as many of the blocks, from the first on, as are instances of one block: applied to other operands and weights."""
        first_form = self._form(start, period)
        first = self._instance(start, period)
        instances = [first]
        for at in range(start + period, start + count * period, period):
            if not np.array_equal(first_form, self._form(at, period)):
                break
            other = self._instance(at, period)
            pairs = zip(first.constants, other.constants, strict=True)
            if not all(left == right or _may_vary(left, first.operators) for left, right in pairs):
                break
            instances.append(other)
        return tuple(instances)

    def _slots(self, start: int, period: int) -> slice:
        """Return where the operands of a block lie."""
        return slice(int(self.first_operand[start]), int(self.first_operand[start + period]))

    def _form(self, start: int, period: int) -> np.ndarray:
        """Return what operators of a block read, without its identity: a place in the block, or where else the block first reads it."""
        slots = self._slots(start, period)
        places, numbers = self.places[slots] - start, self.numbers[slots]
        _, first_read, which = np.unique(numbers, return_index=True, return_inverse=True)
        return np.stack([np.where(places >= 0, places, -1 - first_read[which]), (places < 0) & self.is_constant[slots]])

    def _instance(self, start: int, period: int) -> Instance:
        slots = self._slots(start, period)
        operands, places = self.operands[slots], self.places[slots] - start
        outside = dict.fromkeys((operands[at], bool(self.is_constant[slots][at])) for at in np.flatnonzero(places < 0).tolist())
        return Instance(
            tuple(self.operators[start : start + period]),
            tuple(node for node, is_constant in outside if not is_constant),
            tuple(node for node, is_constant in outside if is_constant),
        )


@dataclass(frozen=True)
class _Border:
    """Where the value of each operator is read last, and which values no border between blocks may cut off from a reader.

    An array each over the operators in their order, in which readers come after what they read.
    """

    last_reader: np.ndarray
    is_root: np.ndarray
    has_layouts: np.ndarray

    @staticmethod
    def of(model: Graph, operators: Sequence[Node]) -> _Border:
        place = {node: at for at, node in enumerate(operators)}
        last_reader = np.zeros(len(operators), np.int64)
        for reader in walk(model.roots):
            for operand in reader.inputs:
                if operand in place:
                    last_reader[place[operand]] = max(last_reader[place[operand]], place.get(reader, len(operators)))
        roots = set(model.roots)
        has_layouts = [not node.type.is_static or node.type.rank > LARGEST_RANK for node in operators]
        return _Border(last_reader, np.array([node in roots for node in operators], bool), np.array(has_layouts, bool))

    def outputs(self, start: int, period: int, count: int) -> tuple[int, ...] | None:
        """Return the positions whose values are read outside of a block; None where one of them is kept in several layouts."""
        inside = slice(start, start + count * period)
        ends = start + period * (1 + np.arange(count * period) // period)
        is_read = self.last_reader[inside] >= ends
        if (is_read & self.has_layouts[inside]).any():
            return None
        return tuple(np.flatnonzero((is_read | self.is_root[inside]).reshape(count, period).any(axis=0)).tolist())


def _may_vary(constant: Node, operators: Sequence[Node]) -> bool:
    if not constant.type.is_static or constant.type.dtype not in ("float32", "float64", "uint8"):
        return False
    if constant.type.dtype == "uint8":
        readers = (node for node in operators if constant in node.inputs)
        return constant.type.elements >= LEAST_BYTES and all(_unpacks(node) for node in readers)
    return constant.type.elements > 1


def _unpacks(node: Node) -> bool:
    return node.op in OPS and OPS[node.op].category == "unpacking"


def _outline(model: Graph, runs: tuple[Run, ...], constants: frozenset[Node]) -> Outline:
    tensors = dict(model.tensors)
    nodes: dict[Node, Node] = {}
    parameters: dict[Node, tuple[int, bool, int]] = {}
    outputs: dict[Node, str] = {}
    for number, run in enumerate(runs):
        first = run.instances[0]
        new = {node: _input(f"block {number} operand {at}", node) for at, node in enumerate(first.operands)}
        parameters |= {leaf: (number, False, at) for at, leaf in enumerate(new.values())}
        for at, constant in enumerate(first.constants):
            new[constant] = constant
            if any(instance.constants[at] != constant for instance in run.instances):
                new[constant] = unknown = _unknown(constant, number, at)
                tensors[unknown.string("digest")] = _random(unknown)
                parameters[unknown] = number, True, at
        for node in first.operators:
            new[node] = make(node.op, [new[operand] for operand in node.inputs], node.attributes, node.type)
        nodes |= {node: new[node] for node in first.operators}
        outputs |= {new[first.operators[at]]: f"block {number} output {at}" for at in run.outputs}
    blocks = {node for run in runs for instance in run.instances for node in instance.operators}
    read_by_blocks = {operand for run in runs for instance in run.instances for operand in instance.operands}
    results: dict[Node, Node] = {}
    rest: dict[Node, Node] = {}
    for node in walk(model.roots):
        if node in blocks:
            rest[node] = _input(f"value {len(rest)}", node)
            results[rest[node]] = node
            continue
        rest[node] = make(node.op, [rest[operand] for operand in node.inputs], node.attributes, node.type)
        if node.op not in LEAVES and node not in constants:
            nodes[node] = rest[node]
            if node in read_by_blocks or node in model.roots:
                outputs[rest[node]] = f"value {len(rest)}"
    reached = {node for node in walk(outputs) if node.op == "Input"}
    graph = replace(
        model,
        inputs=(*model.inputs, *(leaf for leaf in (*parameters, *results) if leaf in reached)),
        outputs=tuple((name, node) for node, name in outputs.items()),
        tensors=tensors,
        names={nodes[node]: name for node, name in model.names.items() if node in nodes},
        origins={nodes[node]: names for node, names in model.origins.items() if node in nodes},
    )
    return Outline(model, graph, runs, nodes, parameters, results)


def _time_of(node: ENode, leaves: Mapping[tuple[str, Attributes], int], times: Mapping[int, int]) -> int | None:
    """Return when an e-node is known, by its operands; None where one is not, or what reads them belongs to no time."""
    time = leaves.get((node.op, node.attributes), 0)
    for child in node.children:
        other = times.get(child)
        if other is None:
            return None
        early, late = sorted((time, other))
        if early % 2 and late != early:
            return None  # a value of a block is read outside of it
        time = late
    return time


def _is_in_time(time: int | None, needed: int) -> bool:
    """Return whether what is known at a time serves a class that is needed at another: in the same block, or outside of all and earlier."""
    return time == needed or (time is not None and time % 2 == 0 and time < needed)


def _input(name: str, node: Node) -> Node:
    return make("Input", (), attributes(name=f"einsat {name}"), node.type)


def _unknown(constant: Node, run: int, at: int) -> Node:
    digest = hashlib.sha256(f"block {run} weight {at} {constant.type}".encode()).hexdigest()[:32]
    return make("Constant", (), attributes(digest=digest), constant.type)


def _random(constant: Node) -> np.ndarray:
    seed = int(constant.string("digest")[:16], 16)
    return random_array(constant.type.dtype, constant.type.sizes, np.random.default_rng(seed), bound=256)


Place: TypeAlias = tuple[int, int] | None
"""The run and the instance whose value is meant; None outside of runs."""


class _Writer:
    """Writes the program of a graph out for its model."""

    def __init__(self, outline: Outline, program: Program) -> None:
        self._outline, self._program = outline, program
        named = dict(program.graph.outputs)
        self._published = {node: named[name] for name, node in outline.graph.outputs}
        self._written: dict[tuple[Node, Place], Node] = {}
        self._runs: dict[Node, int | None] = {}
        self._renames: dict[tuple[int, int], Mapping[str, str]] = {}

    def program(self) -> Program:
        """Return the program with every block written out for each of its instances."""
        model, program = self._outline.model, self._program
        kernels: dict[Node, Kernel] = {}
        for kernel in program.kernels:
            for place, output in zip(self._places(kernel.output), self.outputs(kernel), strict=True):
                inputs = tuple(self._write(operand, place) for operand in kernel.inputs)
                kernels.setdefault(output, replace(kernel, inputs=inputs, output=output))
        outputs = tuple((name, self._write(*self._source(node))) for name, node in model.outputs)
        names: dict[Node, str] = {}
        origins: dict[Node, tuple[str, ...]] = {}
        for node, name in program.graph.names.items():
            names |= {self._write(node, place): self._renamed(place).get(name, name) for place in self._places(node)}
        for node, origin in program.graph.origins.items():
            for place in self._places(node):
                renamed = self._renamed(place)
                origins[self._write(node, place)] = tuple(renamed.get(name, name) for name in origin)
        taken = set(names.values())
        names |= {node: name for node, name in model.names.items() if name not in taken}
        graph = replace(model, outputs=outputs, names=names, origins=origins)
        ordered = _ordered(kernels)
        return Program(graph, ordered, math.fsum(kernel.cost_us for kernel in ordered), program.rules)

    def outputs(self, kernel: Kernel) -> tuple[Node, ...]:
        """Return what a kernel computes for each instance."""
        return tuple(self._write(kernel.output, place) for place in self._places(kernel.output))

    def _places(self, node: Node) -> tuple[Place, ...]:
        """Return the instances that have a value of their own for a node."""
        run = self._run_of(node)
        return (None,) if run is None else tuple((run, number) for number in range(len(self._outline.runs[run].instances)))

    def _run_of(self, root: Node) -> int | None:
        """Return the run whose block a node belongs to."""
        stack = [root] if root not in self._runs else []
        while stack:  # down to what is known already
            node = stack[-1]
            if missing := [operand for operand in node.inputs if operand not in self._runs]:
                stack += missing
                continue
            inside = (self._runs[operand] for operand in node.inputs)
            parameter = self._outline.parameters.get(node)
            self._runs[node] = parameter[0] if parameter else next((run for run in inside if run is not None), None)
            stack.pop()
        return self._runs[root]

    def _renamed(self, place: Place) -> Mapping[str, str]:
        """Return the names of an instance's values and nodes by those of the first instance's."""
        if place is None:
            return {}
        if place not in self._renames:  # every node of a block asks for it, and blocks may have hundreds
            self._renames[place] = self._renames_of(*place)
        return self._renames[place]

    def _renames_of(self, run: int, instance: int) -> dict[str, str]:
        model, instances = self._outline.model, self._outline.runs[run].instances
        renamed: dict[str, str] = {}
        for left, right in zip(instances[0].operators, instances[instance].operators, strict=True):
            if left in model.names and right in model.names:
                renamed[model.names[left]] = model.names[right]
            renamed |= dict(zip(model.origins.get(left, ()), model.origins.get(right, ()), strict=False))
        return renamed

    def _source(self, node: Node) -> tuple[Node, Place]:
        """Return the program's node, and the place where it is written, that computes a value of the model."""
        if node not in self._outline.owners:
            return self._published.get(self._outline.nodes.get(node, node), node), None
        run, instance, position = self._outline.owners[node]
        first = self._outline.runs[run].instances[0].operators[position]
        return self._published[self._outline.nodes[first]], (run, instance)

    def _alias(self, node: Node, place: Place) -> tuple[Node, Place] | None:
        """Return what a leaf of the graph stands for."""
        if node in self._outline.results:
            return self._source(self._outline.results[node])
        if node not in self._outline.parameters:
            return None
        run, is_constant, at = self._outline.parameters[node]
        assert place is not None and place[0] == run, "a block's operand is read outside of it"
        instance = self._outline.runs[run].instances[place[1]]
        return (instance.constants[at], None) if is_constant else self._source(instance.operands[at])

    def _write(self, node: Node, place: Place) -> Node:
        """Return a node over what the graph's leaves stand for."""
        stack = [(node, place)]
        opened: set[tuple[Node, Place]] = set()
        while stack:
            key = stack[-1]
            alias = self._alias(*key)
            needed = [alias] if alias else [(operand, key[1]) for operand in key[0].inputs]
            if missing := [each for each in needed if each not in self._written]:
                if key in opened:
                    fix = "this is a defect; --policy saturation.repeats=1 searches the whole model"
                    raise ExtractError(f"the program of equal blocks computes {key[0].op} from itself", fix=fix)
                opened.add(key)
                stack += reversed(missing)
                continue
            inputs = [self._written[each] for each in needed]
            self._written[key] = inputs[0] if alias else make(key[0].op, inputs, key[0].attributes, key[0].type)
            stack.pop()
        return self._written[node, place]


def _ordered(kernels: Mapping[Node, Kernel]) -> tuple[Kernel, ...]:
    """Return kernels, given by what they compute, operands before users."""
    ordered: dict[Node, Kernel] = {}
    stack = list(kernels)[::-1]
    while stack:
        node = stack[-1]
        missing = [operand for operand in kernels[node].inputs if operand in kernels and operand not in ordered]
        if missing and node not in ordered:
            stack += reversed(missing)
        else:
            ordered.setdefault(stack.pop(), kernels[node])
    return tuple(ordered.values())
