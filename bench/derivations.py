"""Time derived programs of convolutions and products beside the library's direct kernels, in turns.

Prints for every program the ratio to the direct convolution (above 1: faster), its error beside that of the direct one (largest
error over largest output, against float64), and the time of each kind of step. Programs are lowered by estimates, like a model's.
``--record`` also writes them into bench/results/derivations.json and .md.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.record import RESULTS, opening, origin, record
from egraph.derive.bilinear import RULES
from egraph.errors import EinsatError
from egraph.optimize.estimated import estimated_program, open_program
from egraph.rules.slices import RULES as SLICES
from egraph.tensor import Graph, Node, TensorType, attributes, make, placeholder, rewrite, walk
from egraph.tensor.ops import apply
from egraph.tensor.ops.reference import evaluate
from runtime import Session
from runtime.devices.cpu.core_distance import line_ns

TARGETS = ("64@56", "128@28", "256@14", "512@7", "256@56", "512@28", "64@224")


def operator(text: str) -> Node:
    """Return a convolution, or the product of a matrix and a weight such as ``2048x768x3072``."""
    if "@" in text:
        return conv(text)
    rows, depth, columns = map(int, text.split("x"))
    x, w = (placeholder(i, TensorType("float32", sizes), constant=i == 1) for i, sizes in enumerate(((rows, depth), (depth, columns))))
    return apply("MatMul", x, w)


def conv(text: str) -> Node:
    """Return the convolution of a text: channels@size, ``->`` outputs, taps, and s(tride), d(ilation), g(roups), n (batch), p(adding).

    ``64@56``, ``64@56->128 3x3 s2``, ``64@56x48 1x7 n4 p0``; ``512@4->256 4x4 t2 p1`` is transposed, with stride 2; with
    ``reflect`` (or edge, wrap), as in ``64@56 g64 reflect``, the padding is an operator of its own, not of zeros.
    """
    first, *options = text.split()
    channels, _, tail = first.partition("@")
    size, _, outputs = tail.partition("->")
    height, _, width = size.partition("x")
    taps, letters, mode = (3, 3), {"s": 1, "d": 1, "g": 1, "n": 1, "p": -1, "t": 0}, ""
    for part in options:
        if part in ("reflect", "edge", "wrap"):
            mode = part
        elif "x" in part:
            taps_down, taps_across = part.split("x")
            taps = int(taps_down), int(taps_across)
        else:
            letters[part[0]] = int(part[1:])
    stride, dilation, group = letters["s"], letters["d"], letters["g"]
    pads = tuple((t - 1) * dilation // 2 if letters["p"] < 0 else letters["p"] for t in taps) * 2
    x = placeholder(0, TensorType("float32", (letters["n"], int(height), int(width or height), int(channels))))
    w = placeholder(1, TensorType("float32", (int(outputs or channels), int(channels) // group, *taps)), constant=True)
    data = x
    if mode:
        before, after = (0, *pads[:2], 0), (0, *pads[2:], 0)
        data, pads = apply("Pad", x, before=before, after=after, mode=mode, value=0.0), (0,) * 4
    values: dict[str, Any] = {"dilations": (dilation,) * 2, "pads": pads, "group": group, "layout": "NHWC"}
    if letters["t"]:
        w = placeholder(1, TensorType("float32", (int(channels), int(outputs or channels) // group, *taps)), constant=True)
        return apply("ConvTranspose", data, w, strides=(letters["t"],) * 2, output_padding=(0, 0), **values)
    return apply("Conv", data, w, strides=(stride,) * 2, **values)


@dataclass(frozen=True)
class Bound:
    """A fragment over data: the graph to compile, and what it must compute."""

    graph: Graph
    feeds: Mapping[str, np.ndarray]


def bind(fragment: Node, leaves: Mapping[Node, np.ndarray], *, bias: np.ndarray | None = None) -> Bound:
    """Return a graph of a fragment on given data; values that depend on weights alone are computed ahead of time, in float64.

    With a ``bias`` for every channel, it is added to the result, and a relu follows.
    """
    constant = {leaf for leaf in leaves if leaf.attribute("constant")}
    derived = [node for node in walk((fragment,)) if node.inputs and _leaves(node) <= constant]
    tensors: dict[str, np.ndarray] = {}
    new: dict[Node, Node] = {}
    for number, node in enumerate([*constant, *derived]):
        value = leaves[node] if node in constant else evaluate([node], {leaf: leaves[leaf] for leaf in _leaves(node)})[0]
        tensors[f"w{number}"] = value.astype(np.float32)
        new[node] = make("Constant", (), attributes(digest=f"w{number}"), node.type)
    inputs = [make("Input", (), attributes(name=f"x{leaf.integer('index')}"), leaf.type) for leaf in leaves if leaf not in constant]
    new |= dict(zip((leaf for leaf in leaves if leaf not in constant), inputs, strict=True))
    root = rewrite((fragment,), lambda old, operands: new.get(old) or make(old.op, operands, old.attributes, old.type))[fragment]
    if bias is not None:
        tensors["bias"] = bias
        root = apply(
            "Relu", apply("Add", root, make("Constant", (), attributes(digest="bias"), TensorType("float32", root.type.sizes[-1:])))
        )
    used = {node.string("digest") for node in walk((root,)) if node.op == "Constant"}
    graph = Graph("derived", tuple(inputs), (("y", root),), {digest: value for digest, value in tensors.items() if digest in used})
    return Bound(graph, {f"x{leaf.integer('index')}": value for leaf, value in leaves.items() if leaf not in constant})


def _leaves(node: Node) -> frozenset[Node]:
    return frozenset(leaf for leaf in walk((node,)) if leaf.op == "Placeholder")


def programs(node: Node) -> Iterable[tuple[str, Node]]:
    """Yield the convolution itself, then what is derived from it."""
    yield "direct", node
    for rule in RULES:
        if node.op in rule.operators:
            yield from ((derivation.name, derivation.program) for derivation in rule.derive(node))


def opened(bound: Bound, threads: int) -> Session:
    """Return a session that has run once."""
    into_blocks = tuple(rule for rule in SLICES if "_into_" in rule.name and rule.name.rstrip("_0123456789").endswith("concat"))
    session = open_program(estimated_program(bound.graph, into_blocks), threads=threads)
    session.run(None, dict(bound.feeds))
    return session


@dataclass(frozen=True)
class Times:
    """Least microseconds per run: by the clock, and of processor time (only the first contains time taken by other processes)."""

    wall_us: float
    processor_us: float


def interleaved(sessions: Mapping[str, Session], rounds: int, runs: int, *, evict: bool) -> dict[str, Times]:
    """Return every session's best of several rounds, in turns."""
    times_by_name: dict[str, list[Times]] = {name: [] for name in sessions}
    for _ in range(rounds):
        for name, session in sessions.items():
            started = time.process_time()
            wall_us = min(session.run_native(runs, evict=evict)) / 1e3
            times_by_name[name].append(Times(wall_us, (time.process_time() - started) / runs * 1e6))
    return {name: Times(min(t.wall_us for t in times), min(t.processor_us for t in times)) for name, times in times_by_name.items()}


@dataclass(frozen=True)
class Row:
    """A program of an operator, beside the direct one that it was timed in turns with."""

    operator: str
    program: str
    time_us: float
    direct_us: float
    times_as_fast: float
    processor_times_as_fast: float
    error: float
    line_ns: tuple[float | None, float | None]
    """Nanoseconds to write a line that the other core had read, before and after: they tell near cores from far ones."""


def measured(name: str, options: argparse.Namespace) -> list[Row]:
    """Time one operator, print a line for each program, and return them."""
    node, random = operator(name), np.random.default_rng(0)
    scale = np.sqrt(np.prod(node.inputs[1].type.sizes[1:]))
    leaves = {leaf: random.standard_normal(leaf.type.sizes).astype(np.float32) for leaf in node.inputs}
    leaves[node.inputs[1]] = (leaves[node.inputs[1]] / scale).astype(np.float32)
    (expected,) = evaluate([node], leaves)
    bias = random.standard_normal(expected.shape[-1:]).astype(np.float32) if options.epilogue else None
    if bias is not None:
        expected = np.maximum(expected + bias, 0.0)
    sessions: dict[str, Session] = {}
    errors: dict[str, float] = {}
    for title, fragment in programs(node):
        if title != "direct" and not any(part in title for part in options.only):
            continue
        bound = bind(fragment, leaves, bias=bias)
        try:
            sessions[title] = opened(bound, options.threads)
        except EinsatError as error:
            print(f"{name:16s} {title:28s} {error.what}", flush=True)
            continue
        (result,) = sessions[title].run(None, dict(bound.feeds))
        errors[title] = float(np.max(np.abs(np.asarray(result) - expected)) / np.max(np.abs(expected)))
    look = partial(line_ns, options.threads)
    before = look()
    times = interleaved(sessions, options.rounds, options.runs, evict=options.evict)
    near = before, look()
    base, rows = times["direct"], []
    for title, timing in times.items():
        ratios = base.wall_us / timing.wall_us, base.processor_us / timing.processor_us
        rows.append(Row(name, title, timing.wall_us, base.wall_us, *ratios, errors[title], near))
        line = f"{timing.wall_us:9.1f} us {ratios[0]:5.2f}x  processor {ratios[1]:5.2f}x  error {errors[title]:.1e}"
        print(f"{name:16s} {title:28s} {line}" + (_stages(sessions[title]) if options.stages else ""), flush=True)
    return rows


def _stages(session: Session) -> str:
    """Return the time of every kind of step."""
    spent: dict[str, float] = {}
    for step, time_us in session.profile(10):
        spent[step[:24]] = spent.get(step[:24], 0.0) + time_us
    return "  " + ", ".join(f"{step} {time_us:.0f}" for step, time_us in spent.items())


def page(rows: Sequence[Row], where: Mapping[str, Any]) -> str:
    """Return the page about all programs."""
    lines = [
        "# Derived programs of single operators", "", *opening(where, ("onednn-cpu-gomp", "apache-tvm")),
        "Each beside the library's direct one, timed in turns; the least of many runs counts, from a program's inputs to its outputs,",
        "transforms included. Weights are transformed ahead of time. `error`: the largest error over the largest output, against float64.",
        f"Threads: {where['threads']}.",
        "`line ns`: what a line that the other core had read took to write, before and after (about 4: near cores, 15 and more: far).", "",
        "| operator | program | us | times as fast as direct | by processor time | error | line ns |",
        "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    lines += [
        f"| {row.operator} | {row.program} | {row.time_us:,.1f} | {row.times_as_fast:.2f} | {row.processor_times_as_fast:.2f} "
        f"| {row.error:.1e} | {', '.join('-' if value is None else f'{value:.1f}' for value in row.line_ns)} |"
        for row in rows
    ]
    return "\n".join([*lines, ""])


def main(arguments: Sequence[str] | None = None) -> None:
    """Time the chosen operators."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.derivations", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "operators", nargs="*", help=f"default: {' '.join(TARGETS)}; also '64@56->128 3x3 s2', that is channels@size->outputs, taps, and "
        "s(tride), d(ilation), g(roups), n (batch), p(adding); '512@4->256 4x4 t2 p1', transposed with stride 2; 2048x768x3072, a product",
    )  # fmt: skip
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="of each program (default: 2)")
    parser.add_argument("--rounds", type=int, default=9, metavar="N", help="turns of all programs (default: 9)")
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="in a row, each round (default: 5)")
    parser.add_argument("--only", nargs="*", default=[""], help="programs whose name holds one of these")
    parser.add_argument("--epilogue", action="store_true", help="with a bias and a relu behind")
    parser.add_argument("--evict", action="store_true", help="weights and data from memory, as within a large model")
    parser.add_argument("--stages", action="store_true", help="also the time of every kind of step")
    parser.add_argument("--record", action="store_true", help="also write derivations.json and .md")
    parser.add_argument("--results", type=Path, default=RESULTS, help="their folder (default: bench/results)")
    options: Any = parser.parse_args(arguments)
    names = options.operators or TARGETS
    for name in names:
        try:
            operator(name)
        except (ValueError, KeyError):
            parser.error(f"{name!r} is no operator; write it as --help does")
    rows = [row for name in names for row in measured(name, options)]
    if options.record:
        operators = [f'"{name}"' if " " in name else name for name in options.operators]
        flags = [flag for flag in ("epilogue", "evict") if getattr(options, flag)]
        command = ["python", "-m", "bench.derivations", "--record", *(f"--{flag}" for flag in flags), *operators]
        where = origin(options.threads, command)
        record(options.results, "derivations", where, rows, page(rows, where))


if __name__ == "__main__":
    main()
