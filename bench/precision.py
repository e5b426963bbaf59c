"""Time and error by precision: this optimiser in float32 and within a tolerance, beside onnxruntime, OpenVINO and torch.compile.

    python -m bench.precision                          the models below, printed
    python -m bench.precision --record                 also written into bench/results/precision.json and .md
    python -m bench.precision --only resnet50,minilm --budget 20s --tolerance 1e-3
    python -m bench.precision --record --name precision-amx     another processor's, beside the first

On processors with units for bf16, OpenVINO rounds to it by default, torch under autocast, and this optimiser with --precision auto,
kernel by kernel. Errors are relative to the largest output, against onnxruntime on the original model, on the inputs that engines are
timed on.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from bench.engines import OPENVINO_DEFAULT, TORCH_AUTOCAST, outputs_file
from bench.interleave import EngineFailed, EngineProcess, interleave
from bench.models import MODELS, BenchModel
from bench.record import RESULTS, opening, origin, record
from bench.row import RowFailed, run_optimizer, without_places
from bench.run import LISTS
from bench.table import geometric_mean
from bench.watched import Watched
from egraph.optimize.check_noise import relative_error
from runtime.devices.cpu.core_distance import line_ns

CHOSEN = ("bert_base", "minilm", "resnet50", "vit", "distilbert", "mobilenet_v2")
"""Models that spend their time in products and convolutions; those of bench.unseen need torch."""
PEERS: Mapping[str, str] = {
    "onnxruntime": "onnxruntime", "openvino": OPENVINO_DEFAULT, "openvino f32": "openvino", "torch bf16": TORCH_AUTOCAST,
}  # fmt: skip
"""The peers' columns and their engines."""
OURS: Mapping[str, tuple[str, ...]] = {"einsat": (), "einsat auto": ("--precision", "auto")}
"""This optimiser's columns, and the flags that make them."""
COLUMNS = (*PEERS, *OURS)
SECONDS = 1.5
"""Seconds for timing one engine on one model."""
LIMIT_SECONDS = 300.0


@dataclass(frozen=True)
class Row:
    """Medians and errors by column, why others have none, and the optimiser's summary of precisions."""

    model: str
    median_us: Mapping[str, float] = field(default_factory=dict)
    max_rel_err: Mapping[str, float] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    precision: Mapping[str, Any] = field(default_factory=dict)

    def line(self) -> str:
        """Return the row as one of a table: milliseconds, and the error in brackets."""
        cells = []
        for name in COLUMNS:
            time_us, error = self.median_us.get(name), self.max_rel_err.get(name)
            error_text = "" if error is None else f" ({error:.1e})"
            cells.append("failed" if time_us is None else f"{time_us / 1e3:,.3f}{error_text}")
        counts = {**self.precision.get("kernels", {}), "results stored in bf16": self.precision.get("stored", 0)}
        kernels = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        return f"| {self.model} | {' | '.join(cells)} | {kernels} |"

    def ratio(self, peer: str) -> float | None:
        """Return a column's time over that of this optimiser within the tolerance."""
        own_us, peer_us = self.median_us.get("einsat auto"), self.median_us.get(peer)
        return peer_us / own_us if own_us and peer_us else None

    def is_within(self, peer: str, tolerance: float) -> bool:
        """Return whether a column's outputs are as near to onnxruntime's as this optimiser's have to be."""
        return self.max_rel_err.get(peer, math.inf) <= tolerance


def measured(entry: BenchModel, threads: int, budget: str, tolerance: str) -> Row:
    """Optimise a model in each way, then time all in turns."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        source = folder / f"{entry.name}.onnx"
        failed: dict[str, str] = {}
        precision: dict[str, Any] = {}
        try:
            model = entry.make(1)
        except Exception as error:  # a model may need a package that is not installed
            return Row(entry.name, failed=dict.fromkeys(COLUMNS, f"{type(error).__name__}: {error}"))
        onnx.save(model, source)
        feeds = entry.feeds(model)
        paths: dict[str, tuple[str, Path]] = {label: (engine, source) for label, engine in PEERS.items()}
        for label, flags in OURS.items():
            command = ["--json", "-q", "--threads", str(threads), "--budget", budget, "--database", str(folder / "profile.sqlite")]
            command += [a for shape in entry.shapes for a in ("--shape", shape)]
            more = [*flags, "--tolerance", tolerance] if flags else []
            try:
                _, printed = run_optimizer(
                    [sys.executable, "-m", "egraph.optimize", str(source), *command, *more, "-o", str(folder / label.replace(" ", "-"))],
                    time.monotonic() + LIMIT_SECONDS,
                )
            except RowFailed as error:
                failed[label] = str(error)
                continue
            precision = printed.get("precision", precision)
            paths[label] = "einsat", folder / label.replace(" ", "-") / f"{entry.name}.einsat"
        processes: dict[str, EngineProcess] = {}
        for label, (engine, path) in paths.items():
            feeds_folder = folder / f"{label} feeds"
            feeds_folder.mkdir()
            np.savez(feeds_folder / "feeds.npz", allow_pickle=False, **feeds)
            try:
                processes[label] = stack.enter_context(EngineProcess(engine, path, feeds_folder / "feeds.npz", threads))
            except EngineFailed as error:
                failed[label] = str(error)
        errors = {label: _error(folder, label, paths) for label in processes if label != "onnxruntime" and "onnxruntime" in processes}
        watched = {label: Watched(process, partial(line_ns, threads)) for label, process in processes.items()}
        times, late = interleave(watched, seconds=SECONDS * len(watched))
        medians = {label: statistics.median(values) / 1e3 for label, values in times.items() if values}
        return Row(entry.name, medians, errors, without_places({**failed, **late}, {name: "."}), precision)


def _error(folder: Path, label: str, paths: Mapping[str, tuple[str, Path]]) -> float:
    """Return an engine's largest relative error against onnxruntime; infinite if its outputs have other shapes."""
    files = [outputs_file(folder / f"{name} feeds", paths[name][0]) for name in ("onnxruntime", label)]
    with np.load(files[0]) as expected, np.load(files[1]) as actual:
        pairs = [(expected[key], actual[key]) for key in expected if key in actual]
        if len(pairs) != len(expected.files) or any(actual_array.shape != expected_array.shape for actual_array, expected_array in pairs):
            return float("inf")
        return max(relative_error(*pair) for pair in pairs)


def page(rows: Sequence[Row], where: Mapping[str, Any]) -> str:
    """Return the page about all models."""
    tolerance = float(where["tolerance"].split(",")[0])

    def means(rows: Sequence[Row], peers: Sequence[str]) -> str:
        ratios = {peer: [ratio for row in rows if (ratio := row.ratio(peer)) is not None] for peer in peers}
        return "; ".join(f"{geometric_mean(each):.2f} over {peer} ({len(each)} models)" for peer, each in ratios.items() if each)

    right = [row for row in rows if row.is_within("openvino", tolerance)]
    lines = [
        "# Time and error by precision", "", *opening(where, ("onnxruntime", "openvino", "torch", "onednn-cpu-gomp")),
        "Batch 1, medians in milliseconds, in brackets the largest error of an output over its largest magnitude, against",
        "onnxruntime; from numpy inputs to numpy outputs, in turns, each in its own process, threads:",
        f"{where['threads']}. `openvino` as it comes, `openvino f32` told to stay in float32; `torch bf16` is torch.compile under",
        f"autocast; `einsat auto` with --precision auto --tolerance {where['tolerance']}; --budget {where['budget']}.",
        "", f"`einsat auto` in the geometric mean: {means(rows, COLUMNS[:-1])}.",
        *([f"Where `openvino` itself is within that tolerance: {means(right, ['openvino'])}."] if right else []), "",
        f"| model | {' | '.join(COLUMNS)} | kernels |", "|---|" + "---|" * (len(COLUMNS) + 1), *(row.line() for row in rows), "",
        *(f"* {row.model}: {row.precision['note']}" for row in rows if "note" in row.precision),
        *(f"* {row.model}, {label}: {reason}" for row in rows for label, reason in row.failed.items()),
    ]  # fmt: skip
    return "\n".join([*lines, ""])


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the chosen models; with --record, record each as it is measured."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.precision", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    available = {name: entry for models in LISTS.values() for name, entry in models.items()} | dict(MODELS)
    parser.add_argument("--only", default=",".join(CHOSEN), help=f"comma-separated names (default: {','.join(CHOSEN)})")
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="of each engine (default: 2)")
    parser.add_argument("--budget", default="35s", metavar="TIME", help="of each optimisation (default: 35s)")
    parser.add_argument("--tolerance", default="1e-2", metavar="REL", help="accepted error of `einsat auto` (default: 1e-2)")
    parser.add_argument("--record", action="store_true", help="write the rows and their page")
    parser.add_argument("--name", default="precision", help="of the two files (default: precision)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder that they are written to")
    options = parser.parse_args(arguments)
    names = options.only.split(",")
    if unknown := [name for name in names if name not in available]:
        parser.error(f"there is no model {', '.join(unknown)}; python -m bench.models lists them")
    for package in ("openvino", "torch"):
        if importlib.util.find_spec(package) is None:
            print(f"{package} is not installed: its columns stay empty")
    command = ["python -m bench.precision", f"--only {options.only}"]
    where = origin(options.threads, command, tolerance=options.tolerance, budget=options.budget)
    rows: list[Row] = []
    for name in names:
        rows.append(measured(available[name], options.threads, options.budget, options.tolerance))
        print(rows[-1].line(), flush=True)
        for label, reason in rows[-1].failed.items():
            print(f"  {label}: {reason}", flush=True)
        if options.record:
            record(options.results, options.name, where, rows, page(rows, where))


if __name__ == "__main__":
    main()
