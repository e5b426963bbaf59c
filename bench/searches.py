"""Derive the four published targets; print the effort beside that of EinNet's log, and whether the found programs are proved.

    python -m bench.searches [--repeats N] [--results FOLDER]

States are all states that a search visited, to its end; EinNet's are those of its log at the least depth that has a match. Times are
processor time. Writes bench/results/searches.json and searches.md.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.record import RESULTS, opening, origin, record
from egraph.derive.emission import programs
from egraph.derive.search import search
from egraph.derive.targets import BAND, PRODUCT, SMALL_WINDOW, Target
from egraph.tensor import AttributeValue, Node, TensorType, attributes, placeholder, walk
from egraph.tensor.expr.parsing import parse_scope
from egraph.tensor.expr.scope import Tensor
from egraph.tensor.ops import apply
from egraph.tensor.ops.expression import text_of
from egraph.tensor.ops.reference import meaning
from verify.application import equal_at_sizes


@dataclass(frozen=True, slots=True)
class Published:
    """A search published by EinNet: its start, its target, the states of its log, and what a state that is the answer contains."""

    name: str
    to: str
    make: Callable[[], Node]
    target: Target
    einnet_states: int
    holds: str


@dataclass(frozen=True, slots=True)
class Row:
    """The effort and the result of one search."""

    name: str
    to: str
    states: int
    einnet_states: int
    search_ms: float
    emit_ms: float
    proof_ms: float
    steps: tuple[str, ...]
    program: str
    found: int
    proved: int


def convolution(data: Sequence[int], weight: Sequence[int], op: str = "Conv", **changed: AttributeValue) -> Node:
    """Return a convolution of constant weights over placeholders: stride 1, no padding, channels first, unless said otherwise."""
    axes = len(data) - 2
    values: dict[str, AttributeValue] = {
        "strides": (1,) * axes, "pads": (0,) * 2 * axes, "dilations": (1,) * axes, "group": 1, "layout": "NCHW",
        **({"output_padding": (0,) * axes} if op == "ConvTranspose" else {}),
    }  # fmt: skip
    operands = placeholder(0, TensorType("float32", tuple(data))), placeholder(1, TensorType("float32", tuple(weight)), constant=True)
    return apply(op, *operands, attributes=attributes(**(values | changed)))


def band(batch: int, rows: int, depth: int, half: int, dilation: int) -> Node:
    """out[b,m,w] = sum_k A[b,m,k] B[b,m + d (w - W),k]: G2BMM"""
    column = f"m+{dilation}*w-{dilation * half}" if dilation > 1 else f"m+w-{half}"
    head = f"{{b<{batch},m<{rows},w<{2 * half + 1}}} sum(k<{depth}) [0<={column}, {column}<{rows} ? "
    tensors = {name: Tensor(name, (batch, rows, depth)) for name in "01"}
    scope = parse_scope(f"{head}($0[b,m,k] * $1[b,{column},k]) : 0]", tensors)
    leaves = [placeholder(k, TensorType("float32", (batch, rows, depth))) for k in (0, 1)]
    return apply("Expression", *leaves, text=text_of(scope))


PUBLISHED = (
    Published(
        "convolution 3x3, 512 channels at 7x7", "product and shifted sum",
        lambda: convolution((1, 512, 7, 7), (512, 512, 3, 3), pads=(1, 1, 1, 1)),
        PRODUCT, 2_340, "sum(r0<3,r1<3)",
    ),
    Published(
        "transposed convolution 4x4, stride 2", "product and shifted sum",
        lambda: convolution((16, 2, 2, 448), (448, 256, 4, 4), "ConvTranspose", strides=(2, 2), pads=(1, 1, 1, 1), layout="NHWC"),
        PRODUCT, 192_079, "sum(r0<4,r1<4)",
    ),
    Published(
        "convolution 5x5", "convolution 3x3 of four times the channels",
        lambda: convolution((16, 32, 224, 224), (1, 32, 5, 5), pads=(2, 2, 2, 2)),
        SMALL_WINDOW, 2_227_699, "sum(r0<2,r1<2)",
    ),
    Published(
        "band product, dilation 4", "band product, dilation folded into the batch",
        lambda: band(8, 10_000, 64, 1_000, 4),
        BAND, 635, "{ni0<8,ni1<2500,ni2<4,ni3<2001}",
    ),
)  # fmt: skip
"""EinNet's states: the lines of its search logs with the least depth that has a match (test/nnet/log of its artefact)."""


def measured(published: Published, repeats: int) -> Row:
    """Search, make programs of all results, prove each; times are medians of the repeats."""
    node = published.make()
    leaves = {str(position): leaf for position, leaf in enumerate(node.inputs)}
    times: list[tuple[float, float, float]] = []
    for _ in range(repeats):
        marks = [time.process_time()]
        states, effort = search(meaning(node), published.target)
        marks.append(time.process_time())
        made = [programs(s.tree, leaves, published.target.operator, free=published.target is BAND) for s in states]
        marks.append(time.process_time())
        proved = [program is not None and equal_at_sizes(node, program) == "" for program in made]
        marks.append(time.process_time())
        search_ms, two, three = (1e3 * (after - before) for before, after in itertools.pairwise(marks))
        times.append((search_ms, two, three))
    published_state = next((k for k, state in enumerate(states) if published.holds in state.text and proved[k]), None)
    spent = [round(statistics.median(column), 1) for column in zip(*times, strict=True)]
    return Row(
        published.name, published.to, effort.seen, published.einnet_states, spent[0], spent[1], spent[2],
        () if published_state is None else tuple(step.rule for step in states[published_state].steps),
        "" if published_state is None else _program_text(made[published_state]), sum(program is not None for program in made), sum(proved),
    )  # fmt: skip


def _program_text(program: Node | None) -> str:
    """Return the operators of a program with their results, without views and leaves."""
    nodes = walk((program,)) if program is not None else ()
    return ", ".join(f"{node.op} {node.type}" for node in nodes if node.op not in ("Placeholder", "Reshape"))


def page(rows: Sequence[Row], where: dict[str, Any]) -> str:
    """Return the rows as Markdown."""
    lines = [
        "# Searches", "", *opening(where, ("egglog", "numpy")),
        "States: all that a search saw; EinNet's: of its log, at the least depth with a match (dual E5-2680 v4). Milliseconds of processor",
        f"time on one core, medians of {where['repeats']} in one process; programs and proofs are those of all states found, not of one.",
        "`found`: states at the target that became programs; `proved`: how many of them the prover proves equal at these sizes.", "",
        "| from | to | states | EinNet's states | search ms | programs ms | proofs ms | found | proved |",
        "|---|---|---|---|---|---|---|---|---|",
        *(
            f"| {r.name} | {r.to if r.steps else 'not found'} | {r.states:,} | {r.einnet_states:,} | {r.search_ms:.0f} | {r.emit_ms:.0f}"
            f" | {r.proof_ms:.0f} | {r.found} | {r.proved} |"
            for r in rows
        ),
        "", "The published program of each, proved, and the steps to it:", "",
        *(f"* {r.name}: {'; '.join(r.steps)}. `{r.program}`" for r in rows if r.steps), "",
    ]  # fmt: skip
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run every search; return 1 if one does not find its published program, or does not prove all that it found."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.searches", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of searches.json and searches.md")
    options = parser.parse_args(arguments)
    rows = [measured(published, options.repeats) for published in PUBLISHED]
    command = ("python -m bench.searches", *((f"--repeats {options.repeats}",) if options.repeats != parser.get_default("repeats") else ()))
    where = origin(1, command, repeats=options.repeats)
    text = page(rows, where)
    record(options.results, "searches", where, rows, text)
    print(text)
    return 0 if all(row.steps and row.proved == row.found for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
