"""Time depthwise convolutions in every implementation, in turns: ``python -m bench.depthwise``.

Prints the least time of many runs, with operands outside the cores' private caches as in a program, and how many times as fast as the
vendor library the kernel of ``depthwise.c`` is, alone and with a bias and swish. Channels are last. Weights and inputs are random, and
weights are packed before timing.
``--record`` writes bench/results/depthwise.json and depthwise.md.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.command import without_folders
from bench.record import RESULTS, opening, origin, record
from egraph.onnx.exporter import serialized
from egraph.optimize.kernels import kernel_program
from egraph.tensor import Implementation, Node, TensorType, placeholder
from egraph.tensor.ops import apply
from lower.compile import CompileOptions, compile_program
from lower.roofline import node_flops
from lower.targets import lowering
from runtime import Session

SHAPES = (
    "112x32 3", "112x96 3/2", "56x144 3", "56x144 5/2", "28x240 5", "14x480 3", "14x672 5", "7x1152 5", "56x96 7", "14x384 7", "7x768 7",
)  # fmt: skip
"""Side, channels, taps and stride: of EfficientNet-B0 (Tan and Le, 2019) and ConvNeXt-T (Liu et al., 2022)."""
IMPLEMENTATIONS = ("depthwise.conv", "onednn.convolution", "tvm")
RUNS, TURNS = 5, 30


@dataclass(frozen=True)
class Row:
    """The least time of a convolution in each implementation, in microseconds, and the gigaflops per second of the first."""

    name: str
    threads: int
    times_us: Mapping[str, float]
    flops: float

    @property
    def over_library(self) -> float:
        return self.times_us["onednn.convolution"] / self.times_us["depthwise.conv"]

    def cells(self) -> list[str]:
        times = [f"{self.times_us[each]:.0f}" for each in IMPLEMENTATIONS]
        return [self.name, *times, f"{self.flops / self.times_us['depthwise.conv'] / 1e3:.0f}", f"{self.over_library:.2f}"]


HEADER = ("convolution", *(f"{each} us" for each in IMPLEMENTATIONS), "Gflop/s", "over onednn")


def convolution(text: str, *, with_swish: bool) -> Node:
    """Return the convolution that a text describes, with a bias and swish if ``with_swish``."""
    place, window = text.split()
    side, channels = (int(each) for each in place.split("x"))
    taps, stride = (int(each) for each in f"{window}/1".split("/")[:2])
    x = placeholder(0, TensorType("float32", (1, side, side, channels)))
    w = placeholder(1, TensorType("float32", (channels, 1, taps, taps)), constant=True)
    attributes: dict[str, Any] = {"strides": (stride,) * 2, "pads": (taps // 2,) * 4, "dilations": (1, 1)}
    y = apply("Conv", x, w, group=channels, layout="NHWC", **attributes)
    if not with_swish:
        return y
    y = apply("Add", y, placeholder(2, TensorType("float32", (1, 1, 1, channels)), constant=True))
    return apply("Mul", y, apply("Sigmoid", y))


def measured(texts: Sequence[str], threads: int) -> Iterator[Row]:
    """Compile each convolution, alone and with a bias and swish, in all implementations, and yield its row when it is timed."""
    for text in texts:
        for with_swish in (False, True):
            fragment = convolution(text, with_swish=with_swish)
            with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
                sessions = {}
                for name in IMPLEMENTATIONS:
                    program = kernel_program(fragment, Implementation.parse(name, lowering("cpu").target), seed=0)
                    compile_program(program, Path(folder) / name, CompileOptions(threads=threads, export_graph=serialized))
                    sessions[name] = stack.enter_context(Session(Path(folder) / name, threads=threads))
                least = dict.fromkeys(sessions, math.inf)
                for _ in range(TURNS):
                    for name, session in sessions.items():
                        least[name] = min(least[name], min(session.run_native(RUNS, evict=True)) / 1e3)
            flops = node_flops(convolution(text, with_swish=False))
            yield Row(f"{text}{', swish' if with_swish else ''}", threads, least, flops)


def page(rows: Sequence[Row], where: Mapping[str, Any]) -> str:
    """Return the page about all convolutions."""
    mean = math.exp(math.fsum(math.log(row.over_library) for row in rows) / len(rows))
    lines = ["# Depthwise convolutions", "", *opening(where, ("onednn-cpu-gomp", "apache-tvm", "numpy"))]
    lines += ["The least of many runs in turns, operands outside the cores' own caches."]
    lines += ["`28x240 5/2`: side 28, 240 channels, 5x5 taps, stride 2.", ""]
    lines += [f"| {' | '.join(HEADER)} |", "|" + "---|" * len(HEADER)]
    lines += [f"| {' | '.join(row.cells())} |" for row in rows]
    return "\n".join([*lines, "", f"{mean:.2f} times as fast as the vendor library (geometric mean)", ""])


def main(arguments: Sequence[str] | None = None) -> None:
    """Time the chosen convolutions and print a line for each."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.depthwise", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shapes", nargs="*", metavar="SHAPE", help="as '28x240 5/2'; those of published networks without any")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="of each kernel (default: 1)")
    parser.add_argument("--record", action="store_true", help="write a table")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of depthwise.json and depthwise.md")
    options = parser.parse_args(arguments)
    print("  ".join(f"{each:>18s}" for each in HEADER))
    rows = []
    for row in measured(options.shapes or SHAPES, options.threads):
        rows.append(row)
        print("  ".join(f"{each:>18s}" for each in row.cells()), flush=True)
    if options.record:
        words = sys.argv[1:] if arguments is None else arguments
        where = origin(options.threads, (parser.prog, *without_folders(words)))
        record(options.results, "depthwise", where, rows, page(rows, where))


if __name__ == "__main__":
    main()
