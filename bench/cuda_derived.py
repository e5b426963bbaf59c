"""Lower programs published by EinNet and PET to CUDA, and print their estimated costs beside the direct kernels'. No GPU is needed.

    python -m bench.cuda_derived [--record [FOLDER]]

Each program is derived by the search of ``python -m bench.searches`` and proved equal at its sizes. Of the proved programs, the one with
the lowest estimate on each GPU is used. Every generated kernel is compiled for that GPU if NVRTC or nvcc is installed. Small programs run
on the recorded device and are compared with the operator's meaning in float64.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.record import RESULTS, opening, origin, record
from bench.searches import PUBLISHED
from egraph.derive.emission import programs
from egraph.derive.search import search
from egraph.derive.targets import BAND
from egraph.errors import ExtractError
from egraph.optimize.estimated import compile_options, estimated_program, open_program
from egraph.optimize.kernels import kernel_program, kernel_requests
from egraph.tensor import Candidate, Graph, Node, Program, TensorType, attributes, make, placeholder, rewrite, walk
from egraph.tensor.ops import apply
from egraph.tensor.ops.reference import evaluate, meaning
from lower.roofline import work
from lower.targets import lowering
from lower.targets.cuda.generator import generate
from runtime.devices import DESCRIBED
from verify.application import equal_at_sizes

MOST_FLOPS = 1e9
"""The most operations of a program that is executed: the recorded device evaluates library calls in float64."""
ROWS, FEATURES, HEADS = 512, 768, 3
"""Sizes of the products that are merged: queries, keys and values of BERT."""


@dataclass(frozen=True)
class Row:
    """One published program on one GPU."""

    name: str
    to: str
    target: str
    proved: int
    """The number of programs that were derived and proved."""
    direct_us: float
    derived_us: float
    direct: str
    """The kernels by their implementations."""
    derived: str
    registers: int | None
    """The most registers of any generated kernel; None without a compiler."""
    spill_bytes: int | None
    error: float | None
    """The error of the derived program on the recorded device, relative to the largest output; None if it is too large to run."""


def merged_products() -> tuple[list[Node], list[Node]]:
    """Return products of one matrix with several, and the same as parts of one product."""
    x = placeholder(0, TensorType("float32", (ROWS, FEATURES)))
    weights = [placeholder(k + 1, TensorType("float32", (FEATURES, FEATURES)), constant=True) for k in range(HEADS)]
    whole = apply("MatMul", x, apply("Concat", *weights, axis=1))
    starts = [FEATURES * k for k in range(HEADS)]
    parts = [apply("Slice", whole, starts=(0, at), ends=(ROWS, at + FEATURES), steps=(1, 1)) for at in starts]
    return [apply("MatMul", x, weight) for weight in weights], parts


def derived(position: int) -> tuple[str, str, list[Node], list[list[Node]]]:
    """Return a published pair's names, the operators, and all programs that were derived and proved."""
    if position == len(PUBLISHED):
        direct, parts = merged_products()
        proved = all(equal_at_sizes(left, right) == "" for left, right in zip(direct, parts, strict=True))
        return "three products of one matrix", "one product", direct, [parts] if proved else []
    published = PUBLISHED[position]
    node = published.make()
    states, _ = search(meaning(node), published.target)
    leaves = {str(k): leaf for k, leaf in enumerate(node.inputs)}
    made = [programs(state.tree, leaves, published.target.operator, free=published.target is BAND) for state in states]
    return published.name, published.to, [node], [[each] for each in made if each is not None and equal_at_sizes(node, each) == ""]


def graph_of(roots: Sequence[Node], seed: int = 0) -> Graph:
    """Return roots over placeholders as a graph with random constants."""
    generator = np.random.default_rng(seed)
    tensors: dict[str, np.ndarray] = {}
    leaves: dict[Node, Node] = {}
    for leaf in sorted({node for node in walk(roots) if node.op == "Placeholder"}, key=lambda node: node.integer("index")):
        name = f"x{leaf.integer('index')}"
        if leaf.attribute("constant"):
            values = generator.standard_normal(leaf.type.sizes, dtype=np.float32)
            tensors[name] = values / np.float32(np.sqrt(max(1, values[0].size)))
            leaves[leaf] = make("Constant", (), attributes(digest=name), leaf.type)
        else:
            leaves[leaf] = make("Input", (), attributes(name=name), leaf.type)
    new = rewrite(tuple(roots), lambda old, operands: leaves.get(old) or make(old.op, operands, old.attributes, old.type))
    inputs = tuple(node for node in leaves.values() if node.op == "Input")
    return Graph("derived", inputs, tuple((f"y{k}", new[root]) for k, root in enumerate(roots)), tensors)


def error_of(program: Program, direct: Graph, target: str) -> float | None:
    """Return the error of a program on the recorded device; None if it is too large to run."""
    if sum(work(root).flops for root in direct.roots) > MOST_FLOPS:
        return None
    generator = np.random.default_rng(1)
    feeds = {node.string("name"): generator.standard_normal(node.type.sizes, dtype=np.float32) for node in direct.inputs}
    leaves = {node: feeds[node.string("name")] for node in direct.inputs}
    leaves |= {node: direct.tensors[node.string("digest")] for node in walk(direct.roots) if node.op == "Constant"}
    with open_program(program, device=target) as session:
        results = session.run(None, feeds)
    pairs = zip(results, evaluate(direct.roots, leaves), strict=True)
    return max(float(np.abs(got - want).max() / np.abs(want).max()) for got, want in pairs)


def lowered(roots: Sequence[Node], target: str) -> Program:
    """Return the program of roots with the lowest estimate; one generated kernel if an expression is the whole program."""
    try:
        return estimated_program(graph_of(roots), (), device=target)
    except ExtractError:
        (root,), lowers = roots, lowering(target)
        program = kernel_program(root, lowers.generated, seed=0)
        assert lowers.speed is not None, "described GPUs have the rates of their data sheets"
        cost_us = lowers.speed.kernel_us(Candidate(root, (), (), lowers.generated), work(root))
        return replace(program, cost_us=cost_us)


def kernels_of(program: Program) -> str:
    """Return a program's kernels by their implementations."""
    names = [kernel.implementation.text for kernel in program.kernels if not kernel.implementation.is_free]
    return ", ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(names))


def measured(position: int, target: str) -> Row:
    """Derive, prove, lower and compile one published program for one GPU."""
    name, to, roots, proved = derived(position)
    direct = lowered(roots, target)
    best = min((lowered(each, target) for each in proved), key=lambda program: program.cost_us)
    made = [generate(request, lowering(target).target) for request in kernel_requests([best], compile_options(1, target)).values()]
    reports = [kernel.report for kernel in made if kernel.report is not None]
    return Row(
        name, to, target, len(proved), direct.cost_us, best.cost_us, kernels_of(direct), kernels_of(best),
        max((report.registers for report in reports), default=None), sum(report.spill_bytes for report in reports) if reports else None,
        error_of(best, graph_of(roots), target),
    )  # fmt: skip


def page(rows: Sequence[Row], where: dict[str, Any]) -> str:
    """Return the rows as Markdown."""
    lines = [
        "# Derived programs on CUDA", "", *opening(where, ("egglog", "numpy")),
        "**Nothing ran on a GPU, and nothing was timed.** Costs are estimates of kernels one after another; `proved`: programs that were",
        "derived and proved equal at these sizes, of which the one that is estimated to take the least is shown. `registers`: the most of",
        "a generated kernel as compiled for the GPU. `error`: on the recorded device, relative to the largest output; empty where that",
        "takes too long.", "",
        "| from | to | GPU | proved | direct | derived | direct kernels | derived kernels | registers, spilled bytes | error |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *(
            f"| {r.name} | {r.to} | {r.target} | {r.proved} | {r.direct_us:.0f} us | {r.derived_us:.0f} us | {r.direct} | {r.derived}"
            f" | {'' if r.registers is None else f'{r.registers}, {r.spill_bytes}'} | {'' if r.error is None else f'{r.error:.1g}'} |"
            for r in rows
        ), "",
    ]  # fmt: skip
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Lower every published program for every described GPU; return 1 if a generated kernel spills."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m bench.cuda_derived", description=__doc__, formatter_class=form)
    parser.add_argument("--record", type=Path, nargs="?", const=RESULTS, metavar="FOLDER", help="write cuda_derived.json and .md")
    options = parser.parse_args(arguments)
    rows = []
    for position in range(len(PUBLISHED) + 1):
        for target in DESCRIBED:
            rows.append(measured(position, target))
            print(rows[-1], flush=True)
    where = origin(1, ["python", "-m", "bench.cuda_derived"])
    if options.record:
        record(options.record, "cuda_derived", where, rows, page(rows, where))
    print(page(rows, where))
    return int(any(row.spill_bytes for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
