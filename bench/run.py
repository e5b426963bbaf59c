"""Optimise every bench model and time it beside its peers, in turns in the same run.

    python -m bench.run                                   all models, all engines that are installed
    python -m bench.run --models resnet18,dcgan --batch 1 --engines onnxruntime,openvino

Counted: everything from numpy inputs to numpy outputs through each engine's Python call, 32-bit floats, random
weights and inputs. Not counted: loading, compiling, optimising (reported on their own). Medians.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import importlib.util
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from bench.engines import ENGINES
from bench.interleave import EngineFailed, EngineProcess, interleave
from bench.models import MODELS, BenchModel

RESULTS = Path(__file__).parent / "results"
NEEDS = {"einsat": "runtime", "onnxruntime": "onnxruntime", "openvino": "openvino", "torch_compile": "torch", "tvm": "tvm"}
VERSIONS = ("apache-tvm", "numpy", "onednn-cpu-gomp", "onnx", "onnxruntime", "openvino", "torch")


def installed_engines() -> list[str]:
    return [name for name in ENGINES if importlib.util.find_spec(NEEDS[name]) is not None]


def feeds_for(model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]], seed: int = 0) -> dict[str, np.ndarray]:
    """Return random inputs: normal floats, token ids below 1000, masks of ones."""
    random = np.random.default_rng(seed)
    feeds = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        shape = shapes.get(value.name) or tuple(d.dim_value for d in tensor.shape.dim)
        if tensor.elem_type == onnx.TensorProto.FLOAT:
            feeds[value.name] = random.normal(size=shape).astype(np.float32)
        elif "mask" in value.name:
            feeds[value.name] = np.ones(shape, np.int64)
        else:
            feeds[value.name] = random.integers(0, 1000, shape)
    return feeds


def bench_model(
    entry: BenchModel, batch: int, engines: Sequence[str], threads: int, *, seconds: float, extra: Sequence[str]
) -> dict[str, Any]:
    """Optimise and time one model; return what was measured, or why it could not be."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        model = entry.make(batch)
        onnx.save(model, folder / "model.onnx")
        shapes = {s.split(":")[0]: tuple(int(v) for v in s.split(":")[1].split(",")) for s in entry.shapes}
        np.savez(folder / "feeds.npz", **feeds_for(model, shapes))  # type: ignore[arg-type]
        command = [sys.executable, "-m", "egraph.optimize", str(folder / "model.onnx"), "--json", "-q", "--threads", str(threads), *extra]
        started = time.monotonic()
        done = subprocess.run([*command, *(a for s in entry.shapes for a in ("--shape", s))], capture_output=True, text=True, check=False)
        row: dict[str, Any] = {"model": entry.name, "batch": batch, "group": entry.group, "optimize_seconds": time.monotonic() - started}
        if done.returncode != 0:
            return row | {"error": f"optimize exited {done.returncode}: {done.stderr.strip()[-400:]}"}
        row["optimize"] = json.loads(done.stdout)
        processes: dict[str, EngineProcess] = {}
        row["failed"] = {}
        for engine in engines:
            path = folder / ("model.einsat" if engine == "einsat" else "model.onnx")
            try:
                processes[engine] = stack.enter_context(EngineProcess(engine, path, folder / "feeds.npz", threads))
            except EngineFailed as error:
                row["failed"][engine] = str(error)
        times = interleave(processes, seconds=seconds * len(processes))
        row["median_us"] = {engine: statistics.median(values) / 1e3 for engine, values in times.items()}
        return row


def environment(threads: int) -> dict[str, Any]:
    cpu = next((line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "")
    versions = {}
    for package in VERSIONS:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "date": datetime.date.today().isoformat(), "command": " ".join(["python -m bench.run", *sys.argv[1:]]), "cpu": cpu,
        "cores": os.cpu_count(), "threads": threads, "python": platform.python_version(), "versions": versions,
    }  # fmt: skip


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(math.log(v) for v in values) / len(values)) if values else float("nan")


def table(rows: Sequence[Mapping[str, Any]], where: Mapping[str, Any]) -> str:
    """Return the results as Markdown: times, ratios to onnxruntime and to the best peer, errors."""
    versions = ", ".join(f"{k} {v}" for k, v in where["versions"].items())
    columns = ("model", "batch", "einsat ms", "onnxruntime ms", "best peer", "over onnxruntime", "over best peer", "max rel. error")
    lines = [
        f"# Benchmark, {where['date']}",
        f"{where['cpu']}, {where['cores']} cores, {where['threads']} threads; {versions}",
        f"`{where['command']}`",
        (__doc__ or "").split("\n\n")[-1].strip(),
        "| " + " | ".join((*columns, "optimise s", "status")) + " |\n" + "|---" * (len(columns) + 2) + "|",
    ]
    lines = ["\n\n".join(lines)]
    over_ort, over_best = [], []
    for row in rows:
        if "error" in row:
            lines.append(f"| {row['model']} | {row['batch']} | failed: {row['error'].splitlines()[-1][:120]} | | | | | | | |")
            continue
        times = row["median_us"]
        peers = {k: v for k, v in times.items() if k != "einsat"}
        best = min(peers, key=lambda k: peers[k])
        if "onnxruntime" in peers:
            over_ort.append(peers["onnxruntime"] / times["einsat"])
        over_best.append(peers[best] / times["einsat"])
        baseline = peers.get("onnxruntime", float("nan"))
        lines.append(
            f"| {row['model']} | {row['batch']} | {times['einsat'] / 1e3:.3f} | {baseline / 1e3:.3f} | {best} {peers[best] / 1e3:.3f} "
            f"| {baseline / times['einsat']:.2f} | {over_best[-1]:.2f} | {row['optimize']['max_rel_err']:.1e} "
            f"| {row['optimize_seconds']:.0f} | {row['optimize']['status']} |"
        )
    lines.append(
        f"\nGeometric mean over {len(over_ort)} models: {geometric_mean(over_ort):.3f}x over onnxruntime, "
        f"{geometric_mean(over_best):.3f}x over the best peer of each."
    )
    failed = [f"{row['model']} b{row['batch']}: {engine}: {why}" for row in rows for engine, why in row.get("failed", {}).items()]
    if failed:
        lines += ["", "Peers that could not run a model:", *(f"- {text}" for text in failed)]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run the benchmark; write bench/results/<name>.json and .md."""
    parser = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS), help="comma-separated names (python -m bench.models lists them)")
    parser.add_argument("--batch", type=int, default=0, help="only this batch size (default: every size of each model)")
    parser.add_argument("--engines", default=",".join(installed_engines()), help="comma-separated; default: all that are installed")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=4.0, help="timing budget an engine and model")
    parser.add_argument("--name", default="cpu", help="stem of the result files")
    parser.add_argument("extra", nargs="*", help="after --, passed to egraph.optimize")
    options = parser.parse_args()
    unknown = [name for name in options.models.split(",") if name not in MODELS]
    unknown += [engine for engine in options.engines.split(",") if engine not in ENGINES]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}")
    where, rows = environment(options.threads), []
    RESULTS.mkdir(exist_ok=True)
    for name in options.models.split(","):
        for batch in MODELS[name].batches:
            if options.batch and batch != options.batch:
                continue
            engines = list(dict.fromkeys(["einsat", *options.engines.split(",")]))
            row = bench_model(MODELS[name], batch, engines, options.threads, seconds=options.seconds, extra=options.extra)
            rows.append(row)
            shown = row.get("error") or {k: round(v) for k, v in row["median_us"].items()}
            print(f"{name} b{batch}: {shown} ({row['optimize_seconds']:.0f} s)", file=sys.stderr, flush=True)
            (RESULTS / f"{options.name}.json").write_text(json.dumps({"environment": where, "rows": rows}, indent=1, sort_keys=True))
            (RESULTS / f"{options.name}.md").write_text(table(rows, where))
    print(table(rows, where))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
