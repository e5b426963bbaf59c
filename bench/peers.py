"""Time the peers beside each other, without our optimiser, to find the fastest for each model.

    python -m bench.peers                       all models, written into bench/results/peers.json and .md
    python -m bench.peers --models minilm       prints a line, writes nothing

A row takes one minute, instead of four with our own engine and all four peers. Rows are written as they are measured.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from bench.engines import ENGINES, OURS, ROUNDING
from bench.interleave import EngineFailed, EngineProcess, interleave
from bench.models import MODELS
from bench.record import RESULTS, opening, origin, record
from bench.row import compare_outputs
from bench.run import installed_engines
from bench.watched import Watched
from runtime.devices.cpu.core_distance import line_ns

PEERS = tuple(name for name in ENGINES if name not in (*OURS, *ROUNDING))
SECONDS = 1.5
"""Seconds for timing one engine on one model."""


@dataclass(frozen=True)
class Row:
    """Medians of the engines with right outputs, and why the others have none."""

    model: str
    median_us: Mapping[str, float]
    failed: Mapping[str, str]

    @property
    def fastest(self) -> str:
        """Return the engine with the least median."""
        return min(self.median_us, key=self.median_us.__getitem__)

    def line(self) -> str:
        """Return the row as one of a table."""
        best_us = self.median_us[self.fastest]
        cells = [f"{time_us / 1e3:,.3f} ({time_us / best_us:.2f})" if (time_us := self.median_us.get(name)) else "failed" for name in PEERS]
        return f"| {self.model} | {' | '.join(cells)} | {self.fastest} |"


def measured(name: str, threads: int, engines: Sequence[str]) -> Row:
    """Time the engines on a model, in turns."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        source, feeds = Path(folder) / f"{name}.onnx", Path(folder) / "feeds.npz"
        model = MODELS[name].make(1)
        onnx.save(model, source)
        np.savez(feeds, allow_pickle=False, **MODELS[name].feeds(model))
        processes: dict[str, EngineProcess] = {}
        failed: dict[str, str] = {}
        for engine in engines:
            try:
                processes[engine] = stack.enter_context(EngineProcess(engine, source, feeds, threads))
            except EngineFailed as error:
                failed[engine] = str(error)
        _, wrong = compare_outputs(Path(folder), list(processes))
        watched = {engine: Watched(process, partial(line_ns, threads)) for engine, process in processes.items() if engine not in wrong}
        times, late = interleave(watched, seconds=SECONDS * len(watched))
        medians = {engine: statistics.median(values) / 1e3 for engine, values in times.items() if values}
        return Row(name, medians, failed | wrong | late)


def page(rows: Sequence[Row], where: Mapping[str, Any]) -> str:
    """Return the page about all models."""
    wins = {name: sum(row.fastest == name for row in rows) for name in PEERS}
    lines = [
        "# Peers beside each other", "", *opening(where, ("onnxruntime", "openvino", "torch", "apache-tvm")),
        "Batch 1, medians in milliseconds, in brackets over the fastest; from numpy inputs to numpy outputs, in turns, each in its own",
        f"process, threads: {where['threads']}. torch_compile is inductor with frozen weights, where that computes the same, and without",
        "max-autotune, tvm is TVM without tuning, both of the model with its constants folded by onnxruntime.", "",
        f"Fastest: {', '.join(f'{name} for {count}' for name, count in wins.items())} of {len(rows)} models.", "",
        f"| model | {' | '.join(PEERS)} | fastest |", "|---|" + "---|" * (len(PEERS) + 1),
        *(row.line() for row in rows), "",
        *(f"* {row.model}, {engine}: {reason}" for row in rows for engine, reason in row.failed.items()),
    ]  # fmt: skip
    return "\n".join([*lines, ""])


def main(arguments: Sequence[str] | None = None) -> None:
    """Time the peers on the chosen models; put all of them on record."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default="", help="comma-separated names (default: all)")
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="of each engine (default: 2)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of peers.json and peers.md")
    options = parser.parse_args(arguments)
    names = options.models.split(",") if options.models else list(MODELS)
    if unknown := [name for name in names if name not in MODELS]:
        parser.error(f"there is no model {', '.join(unknown)}; python -m bench.models lists them")
    engines = [name for name in PEERS if name in installed_engines()]
    where, rows = origin(options.threads, ["python -m bench.peers"]), []
    for name in names:
        rows.append(measured(name, options.threads, engines))
        print(rows[-1].line(), flush=True)
        if not options.models:
            record(options.results, "peers", where, rows, page(rows, where))


if __name__ == "__main__":
    main()
