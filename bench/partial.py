"""Time the gain of partial rewrites, in turns: mutants alone (wrong somewhere; no correction can be faster), corrected, and exact.

Each is compared with the fastest program of the operator itself: by a library, a generated kernel or fast convolution. Programs are
lowered by estimates. ``--record`` also writes them into bench/results/partial.json and .md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.derivations import bind, interleaved, operator
from bench.record import RESULTS, opening, origin, record
from egraph.derive.bilinear import RULES as BILINEAR
from egraph.derive.estimating import estimate as operations
from egraph.errors import EinsatError
from egraph.optimize.admission import agreement_with, boxes_between
from egraph.optimize.estimated import estimate, estimated_program, open_program
from egraph.partial.generation import generated, zeros_around
from egraph.partial.mutants import Mutant, mutants
from egraph.partial.stitching import stitches
from egraph.tensor import Candidate, Node, make, placeholders, rewrite, walk
from egraph.tensor.boxes import axis_names, cells, describe_boxes
from egraph.tensor.ops.reference import evaluate
from runtime import Session

LEADS = {
    "batches folded into narrow rows": ("64@7 n16", "64@13 n4", "16@4 n64"),
    "dilated convolutions on small maps": ("64@14 d2", "64@16 d12", "64@32 g64 d8"),
    "groups merged with their neighbours": ("64@6 g32 n16 d3", "48@32 g4 d8"),
    "parts of an image folded into the batch": ("48@38->64 5x5",),
    "borders of mirrored elements": ("32@128 g32 s2 reflect", "64@112 g64 s2 reflect", "16@256 g16 s2 reflect", "64@56 g64 reflect"),
}
"""Shapes on which partial rewrites might be faster, by the reason."""
MOST_TIMED = 2
"""Corrected mutants of one operator that are timed: half are those with the fewest operations, half those with the fewest cells."""


@dataclass(frozen=True)
class Row:
    """A program beside the fastest of the operator's own, timed in turns; ``kind``: base, mutant alone, corrected, exact."""

    lead: str
    operator: str
    kind: str
    program: str
    corrected_cells: float
    """The fraction of the output that is corrected, or would have to be."""
    where: str
    time_us: float
    threads: int
    times_as_fast: float
    processor_times_as_fast: float
    error: float
    """The largest error over the largest output; for a mutant alone, the error that corrections remove."""


def sessions_of(
    name: str, fragment: Node, leaves: Mapping[Node, np.ndarray], threads: int, preferences: Sequence[str]
) -> Iterator[tuple[str, Session]]:
    """Yield a program's sessions: with kernels chosen by estimates, and with a preference for generated or library kernels."""
    bound = bind(fragment, leaves)
    for preference in preferences:

        def price(laid: Mapping[int, tuple[Candidate, ...]], preference: str = preference) -> Mapping[int, tuple[Candidate, ...]]:
            def weighed(candidate: Candidate) -> Candidate:
                other = candidate.implementation.is_library if preference == "generated" else candidate.implementation.is_generated
                return replace(candidate, cost_us=candidate.cost_us * (100.0 if other and preference else 1.0))

            return {number: tuple(map(weighed, options)) for number, options in estimate(laid).items()}

        try:
            session = open_program(estimated_program(bound.graph, (), price=price), threads=threads)
            session.run(None, dict(bound.feeds))
            yield f"{name}{f', {preference}' if preference else ''}", session
        except EinsatError as error:
            print(f"  {name} {preference}: {error.what}", flush=True)


def fast(node: Node) -> Iterator[tuple[str, Node]]:
    """Yield the two fast convolutions of a program's only convolution with the lowest estimates."""
    convolutions = [each for each in walk((node,)) if each.op == "Conv"]
    if len(convolutions) != 1 or any(operand.op != "Placeholder" for operand in convolutions[0].inputs[1:]):
        return
    (convolution,) = convolutions
    derived = [each for rule in BILINEAR if "Conv" in rule.operators for each in rule.derive(convolution)]
    for each in sorted(derived, key=lambda derivation: operations(derivation.program))[:2]:
        yield each.name, _replaced(node, convolution, each.program)


def _replaced(root: Node, old: Node, new: Node) -> Node:
    return rewrite((root,), lambda node, made: new if node is old else make(node.op, made, node.attributes, node.type))[root]


def chosen(node: Node) -> list[Mutant]:
    """Return the mutants to time: the cheapest corrected ones, those with the fewest cells, and the cheapest exact one."""
    every_mutant = [
        *mutants(node, agreement_with, boxes_between), *generated((node,), agreement_with, boxes_between),
        *zeros_around((node,), boxes_between),
    ]  # fmt: skip
    partly = sorted((each for each in every_mutant if each.cells), key=lambda each: (operations(*each.programs), each.cells))
    fewest = sorted(partly, key=lambda each: (each.cells, operations(*each.programs)))
    exact = sorted((each for each in every_mutant if not each.cells), key=lambda each: operations(*each.programs))
    return list(dict.fromkeys([*partly[: MOST_TIMED // 2], *fewest[: MOST_TIMED // 2], *exact[:1]]))


def measured(lead: str, name: str, options: argparse.Namespace) -> list[Row]:
    """Time one operator's programs at every number of threads, print a line for each, and return them."""
    node = operator(name)
    timed = chosen(node)
    return [row for threads in options.threads for row in _measured(lead, name, node, timed, threads, options)]


def _measured(lead: str, name: str, node: Node, mutants_timed: Sequence[Mutant], threads: int, options: argparse.Namespace) -> list[Row]:
    random = np.random.default_rng(0)
    leaves = {leaf: random.standard_normal(leaf.type.sizes).astype(np.float32) for leaf in placeholders(node)}
    leaves[node.inputs[1]] /= np.sqrt(np.prod(node.inputs[1].type.sizes[1:])).astype(np.float32)
    (expected,) = evaluate([node], leaves)
    opened: dict[str, tuple[Session, str, Mutant | None]] = {}
    mutant: Mutant | None
    for title, fragment, ways in (("itself", node, ("library", "generated")), *((n, p, ("",)) for n, p in fast(node))):
        opened |= {key: (session, "base", None) for key, session in sessions_of(title, fragment, leaves, threads, ways)}
    for mutant in mutants_timed:
        (plain,), (boxes,), title = mutant.programs, mutant.boxes, " and ".join(mutant.moves)
        wrong = "mutant alone" if boxes else "exact"
        for form, program in (("", plain), *((f" by {name}", made) for name, made in list(fast(plain))[:1])):
            forms = [(wrong, program), *(("corrected", whole) for whole in stitches(node, program, boxes) if boxes)]
            ways = ("", "generated") if not form else ("",)
            for number, (kind, fragment) in enumerate(forms):
                for key, session in sessions_of(f"{title}{form}", fragment, leaves, threads, ways):
                    opened[f"{key} [{kind} {number}, {mutant.cells}]"] = session, kind, mutant
    feeds = bind(node, leaves).feeds
    errors = {key: _error(session, feeds, expected) for key, (session, _, _) in opened.items()}
    times = interleaved({key: session for key, (session, _, _) in opened.items()}, options.rounds, options.runs, evict=False)
    base = min((times[key] for key, (_, kind, _) in opened.items() if kind == "base"), key=lambda each: each.wall_us)
    rows = []
    for key, (_, kind, mutant) in opened.items():
        boxes = mutant.boxes[0] if mutant else ()
        where = describe_boxes(boxes, node.type.sizes, axis_names(node)) if boxes else ""
        share = cells(boxes) / node.type.elements
        ratios = base.wall_us / times[key].wall_us, base.processor_us / times[key].processor_us
        rows.append(Row(lead, name, kind, key.split(" [")[0], share, where, times[key].wall_us, threads, *ratios, errors[key]))
        told = f"{threads} threads {times[key].wall_us:9.1f} us {ratios[0]:5.2f}x  processor {ratios[1]:5.2f}x"
        print(f"{name:16s} {kind:13s} {told}  cells {share:4.0%}  error {errors[key]:.0e}  {rows[-1].program}", flush=True)
    return rows


def _error(session: Session, feeds: Mapping[str, np.ndarray], expected: np.ndarray) -> float:
    (result,) = session.run(None, dict(feeds))
    return float(np.max(np.abs(np.asarray(result) - expected)) / np.max(np.abs(expected)))


def page(rows: Sequence[Row], where: Mapping[str, Any]) -> str:
    """Return the page about all operators: the best of every kind, then the reasons."""
    lines = [
        "# What partial rewrites gain", "", *opening(where, ("onednn-cpu-gomp", "apache-tvm")),
        "Times as fast as the fastest of the operator itself (by the library, by a generated kernel, by fast convolution), all timed in",
        "turns, least of many runs; the best of each kind. `alone`: a mutant without corrections, wrong in the cells of the next column,",
        "which is the most that any correction of it could reach. `corrected`: with what corrects it. `exact`: equal without corrections.",
        f"The machine was {where['load']}.", "",
        "| lead | operator | threads | itself us | alone | its cells | corrected | exact | where the best corrected one is corrected |",
        "|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for name, threads in dict.fromkeys((row.operator, row.threads) for row in rows):
        of = [row for row in rows if (row.operator, row.threads) == (name, threads)]
        best = {kind: max((r for r in of if r.kind == kind), key=lambda r: r.times_as_fast, default=None) for kind in KINDS}
        itself = min(row.time_us for row in of if row.kind == "base")
        shown = [f"{each.times_as_fast:.2f}" if (each := best[kind]) else "-" for kind in KINDS[1:]]
        cells_shown = f"{best['mutant alone'].corrected_cells:.0%}" if best["mutant alone"] else "-"
        told = best["corrected"].where if best["corrected"] else ""
        head = f"| {of[0].lead} | {name} | {threads} | {itself:,.1f}"
        lines.append(f"{head} | {shown[0]} | {cells_shown} | {shown[1]} | {shown[2]} | {told} |")
    return "\n".join([*lines, ""])


KINDS = ("base", "mutant alone", "corrected", "exact")


def main(arguments: Sequence[str] | None = None) -> None:
    """Time the chosen operators."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.partial", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: python -m bench.partial '64@14 d2' '64@7 n16' --threads 1 2",
    )  # fmt: skip
    parser.add_argument("operators", nargs="*", help="default: all leads; written as bench.derivations --help says")
    parser.add_argument("--threads", type=int, nargs="+", default=[1], metavar="N", help="of each program, one or several (default: 1)")
    parser.add_argument("--rounds", type=int, default=9, metavar="N", help="turns of all programs (default: 9)")
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="in a row, each round (default: 5)")
    parser.add_argument("--load", default="quiet", help="how the page describes the machine's other work (default: quiet)")
    parser.add_argument("--record", action="store_true", help="also write partial.json and .md")
    parser.add_argument("--results", type=Path, default=RESULTS, help="their folder (default: bench/results)")
    options: Any = parser.parse_args(arguments)
    leads = {"asked for": tuple(options.operators)} if options.operators else LEADS
    for name in (name for names in leads.values() for name in names):
        try:
            operator(name)
        except (ValueError, KeyError):
            parser.error(f"{name!r} is no operator; write it as python -m bench.derivations --help does")
    rows = [row for lead, names in leads.items() for name in names for row in measured(lead, name, options)]
    if options.record:
        asked = [*(f'"{name}"' for name in options.operators), "--threads", *map(str, options.threads)]
        where = origin(max(options.threads), ["python", "-m", "bench.partial", "--record", *asked], load=options.load)
        record(options.results, "partial", where, rows, page(rows, where))


if __name__ == "__main__":
    main()
