"""Find the ranges of the values that kernels in bytes quantise, on the user's inputs.

A range does not affect time, so kernels are timed and programs are extracted without ranges; a program gets them before it is compiled.
Values outside of the user's inputs' ranges are not known: a value beyond its range saturates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from egraph.errors import ModelError
from egraph.optimize.blame import evaluate
from egraph.optimize.options import Options
from egraph.optimize.reference import Accepted
from egraph.tensor import PLAIN, Graph, Node, Program
from egraph.tensor.ops import apply
from lower.quantised import PRECISION as IN_BYTES
from lower.quantised import is_quantised, source_of

Range: TypeAlias = tuple[float, float]


def refuse_without_inputs(options: Options) -> None:
    """Refuse to quantise without data, or for several sizes, because some sizes would have no data."""
    if options.precision != IN_BYTES:
        return
    where = f"--precision {IN_BYTES}"
    if options.size_request.has_several:
        what = "kernels in bytes hold in the ranges of inputs of one size, and --shape gives several"
        raise ModelError(what, where=where, fix="run it for one of the sizes")
    if not options.inputs:
        what = "kernels in bytes need the ranges of your data: nothing is quantised without inputs of yours"
        raise ModelError(what, where=where, fix="give --inputs FILE.npz, with typical inputs; repeatable")


def compared_within(runs: Accepted, options: Options) -> Accepted:
    """Return the inputs to compare programs on: without random ones for kernels in bytes, which are right only in the user's ranges."""
    if options.precision != IN_BYTES:
        return runs
    note = "results are compared on your inputs alone: kernels in bytes hold for numbers in their ranges"
    return replace(runs, is_random=False, notes=(*runs.notes, note))


@dataclass
class Ranges:
    """The least and the largest number of each value over all of the user's inputs."""

    feeds: Sequence[Mapping[str, Any]]
    threads: int
    key: str = ""
    """A digest of the inputs if the result depends on them, else empty."""
    seen: dict[Node, Range] = field(default_factory=dict)

    def applied(self, program: Program) -> Program:
        """Return the program with the range of the value that each kernel quantises; if it is infinite, the kernel stays in float32."""
        sources = {kernel.output: source_of(kernel) for kernel in program.kernels if is_quantised(kernel)}
        self._look_at(program.graph, [node for node in dict.fromkeys(sources.values()) if node not in self.seen])
        kernels = []
        for kernel in program.kernels:
            if (source := sources.get(kernel.output)) is not None:
                is_finite = all(map(math.isfinite, self.seen[source]))
                plain = kernel.implementation.in_precision(PLAIN)
                kernel = replace(kernel, source_range=self.seen[source]) if is_finite else replace(kernel, implementation=plain)
            kernels.append(kernel)
        return replace(program, kernels=tuple(kernels)) if sources else program

    def _look_at(self, graph: Graph, nodes: Sequence[Node]) -> None:
        if not nodes:
            return
        ends = {node: [apply(op, node, axes=tuple(range(node.type.rank))) for op in ("ReduceMin", "ReduceMax")] for node in nodes}
        extrema = [end for pair in ends.values() for end in pair]
        for feeds in self.feeds:
            values = evaluate(graph, extrema, feeds, self.threads)
            for node, (low, high) in ends.items():
                before = self.seen.get(node, (math.inf, -math.inf))
                least, largest = float(values[low].item()), float(values[high].item())
                is_number = not (math.isnan(least) or math.isnan(largest))
                self.seen[node] = (min(before[0], least), max(before[1], largest)) if is_number else (-math.inf, math.inf)
