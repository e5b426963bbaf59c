"""The outline of a model: one block in place of each run of equal ones, and how a program of it is written out for the model.

The search sees only the outline. Each of its values has a *time*: 0 from the start, an odd number within a run, an even one after it.
E-nodes that read values of a later time are removed from the e-graph, so that every program of the outline can be written out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias

from egraph.errors import ExtractError
from egraph.extract import to_program
from egraph.tensor import Attributes, ENode, FrozenEGraph, Graph, Kernel, Node, Program, Selection, make, walk


@dataclass(frozen=True)
class Instance:
    """One of the equal blocks: its operators in their order, and the values that they read."""

    operators: tuple[Node, ...]
    operands: tuple[Node, ...]
    """Values from outside that depend on the model's inputs, in the order of their first use; ``constants`` likewise."""
    constants: tuple[Node, ...]
    """Weights, and values computed from weights alone."""


@dataclass(frozen=True)
class Run:
    """A run of equal blocks; ``outputs`` are the positions of operators whose values are read outside of the block."""

    instances: tuple[Instance, ...]
    outputs: tuple[int, ...]

    @property
    def saved(self) -> int:
        """Return the number of operators that the search is spared."""
        return (len(self.instances) - 1) * len(self.instances[0].operators)


@dataclass(frozen=True)
class Outline:
    """A model, and the graph that is searched in its place, which is the model itself if it has no equal blocks."""

    model: Graph
    graph: Graph
    runs: tuple[Run, ...] = ()
    nodes: Mapping[Node, Node] = field(default_factory=dict)
    """The graph's nodes for the model's nodes in first instances and outside of runs."""
    parameters: Mapping[Node, tuple[int, bool, int]] = field(default_factory=dict)
    """The leaves that stand for a block's operands: the run, whether it is a constant, and its position among these."""
    results: Mapping[Node, Node] = field(default_factory=dict)
    """The leaves that stand for values of blocks where others read them, each with the model's node."""

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
        """Return notes on the blocks that are searched once."""
        blocks = ((len(run.instances), len(run.instances[0].operators)) for run in self.runs)
        return tuple(f"{count} equal blocks of {operators} operators were searched as one" for count, operators in blocks)

    def uses(self, frozen: FrozenEGraph) -> Mapping[int, int]:
        """Return the number of instances that compute each class of a block, by the class's number."""
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
        """Return an e-graph without e-nodes that combine values of different times, for example of a block and of a later one.

        In the graph a block's results are leaves, so nothing there shows that they come after the block. A program with such a kernel could
        not be written out, because a value would depend on itself.
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
        """The times of leaves: odd within a run, even after it, 0 from the start."""
        after = {leaf: 2 * self.owners[node][0] + 2 for leaf, node in self.results.items()}
        times = after | {leaf: 2 * run + 1 for leaf, (run, _, _) in self.parameters.items()}
        return {(leaf.op, leaf.attributes): time for leaf, time in times.items()}

    def _times(self, frozen: FrozenEGraph) -> Mapping[int, int]:
        """Return the time of each class: that of the graph's node, or an earlier one outside of all blocks.

        Classes that cannot be computed in order have no time. A value of a block may be equal to one that is known before it; the class
        then gets the earlier time, and all its readers are still in order.
        """
        of_node: dict[Node, int] = {}
        for node in walk(frozen.source.values()):
            operands = max((of_node[operand] for operand in node.inputs), default=0)
            of_node[node] = self._leaf_times.get((node.op, node.attributes), operands)
        times = {number: of_node[node] for number, node in frozen.source.items()}
        waiting = [*frozen.classes][::-1]  # numbered from the roots: reversed, operands come first
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
        """Return the model's nodes that a node of the graph represents."""
        return self._originals.get(node, (node,))

    @cached_property
    def _originals(self) -> dict[Node, tuple[Node, ...]]:
        originals = {}
        for old, new in self.nodes.items():
            run, _, position = self.owners.get(old, (0, 0, -1))
            originals[new] = tuple(each.operators[position] for each in self.runs[run].instances) if old in self.owners else (old,)
        return originals

    def program(self, frozen: FrozenEGraph, selection: Selection) -> Program:
        """Return the model's program for a selection from the graph's e-graph: its blocks are written out for each instance."""
        program = to_program(frozen, selection, self.graph)
        return _Writer(self, program).program() if self.runs else program

    def written(self, frozen: FrozenEGraph, selection: Selection) -> tuple[tuple[int, ...], ...]:
        """Return, for each kernel of the graph's program, the positions of its instances in the model's program."""
        program = to_program(frozen, selection, self.graph)
        if not self.runs:
            return tuple((position,) for position in range(len(program.kernels)))
        writer = _Writer(self, program)
        position = {kernel.output: at for at, kernel in enumerate(writer.program().kernels)}
        return tuple(tuple(dict.fromkeys(position[node] for node in writer.outputs(kernel))) for kernel in program.kernels)


def _time_of(node: ENode, leaves: Mapping[tuple[str, Attributes], int], times: Mapping[int, int]) -> int | None:
    """Return the time of an e-node from its operands, or None if one has no time or they cannot be read together."""
    time = leaves.get((node.op, node.attributes), 0)
    for child in node.children:
        other = times.get(child)
        if other is None:
            return None
        early, late = sorted((time, other))
        if early % 2 and late != early:
            return None  # a value of a block would be read outside of it
        time = late
    return time


def _is_in_time(time: int | None, needed: int) -> bool:
    """Return whether a value of this time can compute a class of another: they are equal, or it is earlier and outside of all blocks."""
    return time == needed or (time is not None and time % 2 == 0 and time < needed)


Place: TypeAlias = tuple[int, int] | None
"""The run and the instance that a value belongs to, or None outside of runs."""


class _Writer:
    """Writes out the program of an outline's graph for its model."""

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
        """Return the output of a kernel for each instance."""
        return tuple(self._write(kernel.output, place) for place in self._places(kernel.output))

    def _places(self, node: Node) -> tuple[Place, ...]:
        """Return the instances that have their own value for a node."""
        run = self._run_of(node)
        return (None,) if run is None else tuple((run, number) for number in range(len(self._outline.runs[run].instances)))

    def _run_of(self, root: Node) -> int | None:
        """Return the run whose block a node belongs to."""
        stack = [root] if root not in self._runs else []
        while stack:  # down to nodes whose runs are known
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
        """Return the names of an instance's values and nodes by the first instance's names."""
        if place is None:
            return {}
        if place not in self._renames:  # cached: every node of a block asks for it, and blocks may have hundreds
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
        """Return the program's node that computes a value of the model, and its place."""
        if node not in self._outline.owners:
            return self._published.get(self._outline.nodes.get(node, node), node), None
        run, instance, position = self._outline.owners[node]
        first = self._outline.runs[run].instances[0].operators[position]
        return self._published[self._outline.nodes[first]], (run, instance)

    def _alias(self, node: Node, place: Place) -> tuple[Node, Place] | None:
        """Return the node and place that a leaf of the graph stands for."""
        if node in self._outline.results:
            return self._source(self._outline.results[node])
        if node not in self._outline.parameters:
            return None
        run, is_constant, at = self._outline.parameters[node]
        assert place is not None and place[0] == run, "a block's operand is read outside of it"
        instance = self._outline.runs[run].instances[place[1]]
        return (instance.constants[at], None) if is_constant else self._source(instance.operands[at])

    def _write(self, node: Node, place: Place) -> Node:
        """Return a node whose leaves are replaced by the values that they stand for."""
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
    """Return kernels, given by their outputs, with operands before users."""
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
