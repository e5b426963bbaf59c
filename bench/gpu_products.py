"""Compare generated kernels with the libraries' on each product for which a GPU has timed both.

    python -m bench.gpu_products bench/results/cuda_h100.jsonl.gz --record

A product is a matrix product or a convolution of certain sizes. Of the kernels that contain it, with any fused operators and in any layout,
the fastest of each library, by any of its plans, is compared with the fastest generated one.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.environment import commit
from bench.record import RESULTS, record
from egraph.tensor import PLAIN, Implementation, Node, walk
from egraph.tensor.text import parse_fragment
from lower.targets.cuda.costs import product_of
from runtime.profile import Record
from runtime.profile.tables import read_line, read_lines

GENERATED = "generated"
LIBRARIES = ("cudnn", "cublas")
PACKED_LAYOUT = "layout"
"""The attribute that is ignored when products are compared: the order in which operands are stored."""


@dataclass(frozen=True)
class Row:
    """One product: ``count`` of [rows, summed] by [summed, columns]; times in microseconds by implementation."""

    op: str
    attributes: str
    count: int
    rows: int
    columns: int
    summed: int
    elements: int
    """The number of elements of the result."""
    times_us: dict[str, float]

    @property
    def over_libraries(self) -> float:
        """Return how many times as fast as the fastest library the generated kernel is."""
        return min(time_us for who, time_us in self.times_us.items() if who != GENERATED) / self.times_us[GENERATED]


def contested(records: Iterable[Record]) -> list[Row]:
    """Return the products for which a library and a generated kernel were timed, in strict float32, the largest gain of ours first."""
    times_us: dict[tuple[str, str, int, int, int, int, int], dict[str, float]] = {}
    for each in records:
        implementation, time_us = Implementation.parse(each.implementation), each.median_us
        who = implementation.library or (GENERATED if implementation.is_generated else "")
        if time_us is None or implementation.precision != PLAIN or who not in (GENERATED, *LIBRARIES):
            continue
        held = [node for node in walk((parse_fragment(each.fragment),)) if product_of(node) is not None]
        if len(held) == 1:
            fastest = times_us.setdefault(_key(held[0]), {})
            fastest[who] = min(time_us, fastest.get(who, math.inf))
    rows = [Row(*key, times) for key, times in times_us.items() if GENERATED in times and len(times) > 1]
    return sorted(rows, key=lambda row: -row.over_libraries)


def _key(node: Node) -> tuple[str, str, int, int, int, int, int]:
    product = product_of(node)
    assert product is not None, "it was asked before"
    attributes = ", ".join(f"{name}={value!r}" for name, value in node.attributes if name != PACKED_LAYOUT)
    return node.op, attributes, product.count, product.rows, product.columns, product.summed, node.type.elements


def page(rows: Sequence[Row], where: Mapping[str, Any]) -> str:
    """Return the page."""

    def mean(ratios: Sequence[float]) -> str:
        return f"{math.exp(math.fsum(map(math.log, ratios)) / len(ratios)):.2f}"

    ratios = [row.over_libraries for row in rows]
    by_op = {op: [row.over_libraries for row in rows if row.op == op] for op in dict.fromkeys(row.op for row in rows)}
    means = ", ".join(f"{op} {mean(each)} ({len(each)})" for op, each in by_op.items())
    faster = sum(ratio > 1 for ratio in ratios)
    lines = [
        "# Products: generated kernels beside the libraries'", "", f"`{where['command']}`, {where['date']}, commit {where['commit']},",
        f"{where['device']}.", "",
        "Strict float32, no tensor cores; kernels timed alone, with operands from memory, each compared with float64. A row is a product",
        "of certain sizes; of the kernels that hold it, whatever is fused to them, the fastest of each. Convolutions are named by the",
        "product that they are.", "",
        f"Over the faster library, geometric mean of {len(rows)}: **{mean(ratios)}**, faster on {faster}; {means}.",
        "", "| operator | product | generated | cuDNN | cuBLAS | over the libraries |", "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for row in rows:
        times = [f"{row.times_us[who]:.1f} us" if who in row.times_us else "" for who in (GENERATED, *LIBRARIES)]
        product = f"{row.count} x [{row.rows}, {row.summed}] [{row.summed}, {row.columns}]"
        lines.append(f"| {row.op} | {product} | {' | '.join(times)} | {row.over_libraries:.2f} |")
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the page; write it if that is asked for."""
    form = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_products", description=__doc__, formatter_class=form)
    parser.add_argument("records", type=Path, help="kernel times, as python -m runtime.profile measure writes them")
    parser.add_argument("--record", type=Path, nargs="?", const=RESULTS, metavar="FOLDER", help="write cuda_products.json and .md")
    parser.add_argument("--date", required=True, help="when they were measured: YYYY-MM-DD")
    arguments = parser.parse_args(argv)
    records = [row for row in map(read_line, read_lines(arguments.records)) if isinstance(row, Record)]
    rows = contested(records)
    if not rows:
        parser.error(f"{arguments.records} has no product that a library and a generated kernel were timed for")
    where = {
        "command": f"python -m bench.gpu_products {arguments.records.name}", "date": arguments.date, "commit": commit(),
        "device": records[0].device,
    }  # fmt: skip
    if arguments.record:
        record(arguments.record, "cuda_products", where, rows, page(rows, where))
    print(page(rows, where))
    return 0


if __name__ == "__main__":
    sys.exit(main())
