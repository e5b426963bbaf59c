"""Time each engine alone, beside one and two busy processes, and beside a second copy of itself, in turns.

    python -m bench.busy                                  four models of each list (python -m bench.models, python -m bench.unseen)
    python -m bench.busy resnet18 segformer               some of either list
    python -m bench.busy exported/*.onnx --seconds 4      files, whose inputs have fixed sizes
    python -m bench.busy --artefacts optimised            keep what is optimised, and take what lies there
    python -m bench.busy --resume                         only the models that are missing or failed
    python -m bench.busy -- --budget 30s                  flags after -- go to egraph.optimize

A busy process computes in an endless loop; it is not pinned to a core and keeps the normal priority. Rows are written as they are measured,
so Ctrl-C keeps all finished rows.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from bench.command import BadArguments, add_result_arguments, read_rows, run_command, write
from bench.environment import commit, environment
from bench.interleave import EngineFailed, EngineProcess
from bench.models import MODELS, BenchModel, of_file
from bench.row import RowFailed, compare_outputs, run_optimizer, without_places
from bench.run import installed_engines
from bench.table import geometric_mean
from bench.unseen import UNSEEN

DEFAULT = ("resnet18", "squeezenet", "inception_v1", "bert_base", "segformer", "distilbert", "mobilenet_v2", "whisper_encoder")
ENGINES = ("einsat", "onnxruntime", "openvino")
ALONE, COPY = "alone", "beside a copy"
BUSY: Mapping[str, int] = {ALONE: 0, "beside 1": 1, "beside 2": 2, COPY: 0}
"""The number of busy processes in every condition."""
BUSY_LOOP = "while True: pass"
SETTLING_SECONDS = 0.3
"""Seconds between the start of busy processes and the first timing: the system first spreads them over the cores."""
TURN_SECONDS = 2.0
"""Seconds for which an engine is timed at once: longer than a program takes to notice that a core is taken."""
OPTIMISER_SECONDS = 900.0
"""Seconds after which an optimiser without a result is ended."""
PERCENTILE = 99
Times = dict[str, dict[str, list[int]]]
"""Nanoseconds by condition and engine."""


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Run busy processes beside the timed engines."""
    with ExitStack() as stack:
        for _ in range(count):
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", BUSY_LOOP]))
            stack.callback(process.kill)
        time.sleep(SETTLING_SECONDS)
        yield


@contextmanager
def running(copy: EngineProcess) -> Iterator[None]:
    """Run the model in a second copy of an engine, again and again."""
    is_over = threading.Event()
    failures: list[EngineFailed] = []

    def work() -> None:
        try:
            while not is_over.is_set():
                copy.time_ns(1)
        except EngineFailed as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
    if failures:
        raise failures[0]


def timed(engines: Mapping[str, EngineProcess], copies: Mapping[str, EngineProcess], *, seconds: float) -> Times:
    """Return the times of all engines under all conditions: each for ``seconds``, in turns."""
    times: Times = {condition: {name: [] for name in engines} for condition in BUSY}
    turn_seconds = min(seconds, TURN_SECONDS)
    for number in range(max(1, round(seconds / turn_seconds))):
        for condition, count in BUSY.items():
            with busy_processes(count):
                for name in list(engines)[:: 1 if number % 2 == 0 else -1]:
                    with running(copies[name]) if condition == COPY else nullcontext():
                        times[condition][name] += turn(engines[name], turn_seconds)
    return times


def turn(engine: EngineProcess, seconds: float) -> list[int]:
    """Time runs that together take ``seconds``; return their nanoseconds."""
    times_ns: list[int] = []
    ends = time.monotonic() + seconds
    while not times_ns or time.monotonic() < ends:
        quickest_ns = min(times_ns, default=engine.warm_up_ns)
        left_ns = (ends - time.monotonic()) * 1e9
        times_ns += engine.time_ns(max(1, min(500, int(left_ns / 8 / max(1, quickest_ns)))))
    return times_ns


def measure(entry: BenchModel, options: argparse.Namespace) -> dict[str, Any]:
    """Return a row, or the error that kept it from being measured."""
    row: dict[str, Any] = {"model": entry.name, "batch": 1, "commit": commit()}
    with tempfile.TemporaryDirectory(prefix="einsat-") as name:
        try:
            row |= measured(entry, options, Path(name))
        except Exception as error:  # a model may need a package that is not installed
            row["error"] = str(error) if isinstance(error, RowFailed) else f"{type(error).__name__}: {error}"
        cleaned: dict[str, Any] = without_places(row, {name: ".", str(options.artefacts or name): ".", str(Path.home()): "~"})
    return cleaned


def measured(entry: BenchModel, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    model = entry.make(1)
    source = folder / f"{entry.name}.onnx"
    onnx.save(model, source)
    side_folders = {side: folder / side for side in ("first", "second")}
    for side_folder in side_folders.values():
        side_folder.mkdir()
        np.savez(side_folder / "feeds.npz", allow_pickle=False, **entry.feeds(model))
    del model
    artefact = (options.artefacts or folder).resolve() / f"{entry.name}.einsat"
    if not artefact.exists():
        command = [sys.executable, "-m", "egraph.optimize", str(source), "--json", "-q", "--threads", str(options.threads)]
        command += [text for shape in entry.shapes for text in ("--shape", shape)]
        run_optimizer([*command, *options.extra, "-o", str(artefact.parent)], time.monotonic() + OPTIMISER_SECONDS)
    row: dict[str, Any] = {"failed": {}, "conditions": {}}
    with ExitStack() as stack:
        sides: dict[str, dict[str, EngineProcess]] = {}
        for (side, side_folder), engine in itertools.product(side_folders.items(), options.engines.split(",")):
            path = artefact if engine == "einsat" else source
            try:
                process = stack.enter_context(EngineProcess(engine, path, side_folder / "feeds.npz", options.threads, settle_seconds=0.0))
            except EngineFailed as error:
                row["failed"][engine] = str(error)
            else:
                sides.setdefault(side, {})[engine] = process
        if len(sides) < len(side_folders):
            raise RowFailed("; ".join(f"{engine}: {reason}" for engine, reason in row["failed"].items()))
        row["max_rel_err"], wrong = compare_outputs(side_folders["first"], [*sides["first"]])
        row["failed"] |= wrong
        first, second = ({name: samples for name, samples in sides[side].items() if name not in row["failed"]} for side in side_folders)
        times = timed(first, second, seconds=options.seconds)
    for condition, of_engines in times.items():
        row["conditions"][condition] = {
            engine: {
                "median_us": round(statistics.median(values) / 1e3, 1),
                "p99_us": round(float(np.percentile(values, PERCENTILE)) / 1e3, 1),
                "runs": len(values),
            }
            for engine, values in of_engines.items()
        }
    return row


def over_best(row: Mapping[str, Any], condition: str, statistic: str) -> float | None:
    """Return our time over the best peer's (less is better); None if either has no time."""
    engines = row.get("conditions", {}).get(condition, {})
    peers = [values[statistic] for engine, values in engines.items() if engine != "einsat"]
    return engines["einsat"][statistic] / min(peers) if peers and "einsat" in engines else None


def table(rows: Sequence[Mapping[str, Any]], where: Mapping[str, Any]) -> str:
    """Return the page of Markdown."""
    engines = list(dict.fromkeys(name for row in rows for by_engine in row.get("conditions", {}).values() for name in by_engine))
    columns = ["model", "condition", *(f"{name} ms" for name in engines), "median over best peer", "p99 over best peer"]
    lines = [
        f"# Beside other work: {where['cpu']}, {where['cores']} cores, {where['threads']} threads", "",
        f"{where['date']}, `{where['command']}`, Python {where['python']}, "
        + ", ".join(f"{name} {version}" for name, version in where["versions"].items()), "",
        "Medians / 99th percentiles of runs in turns, in ms; each engine in a process of its own. A busy process computes without end.", "",
        "| " + " | ".join(columns) + " |", "|" + "---|" * len(columns),
    ]  # fmt: skip
    for row, condition in itertools.product(rows, BUSY):
        if "error" in row:
            if condition == ALONE:
                lines.append(f"| {row['model']} | {' '.join(row['error'].split())} |" + " |" * (len(columns) - 2))
            continue
        of_engines = row["conditions"][condition]
        cells = [f"{v['median_us'] / 1e3:.2f} / {v['p99_us'] / 1e3:.2f}" if (v := of_engines.get(name)) else "" for name in engines]
        ratios = [over_best(row, condition, statistic) for statistic in ("median_us", "p99_us")]
        shown = [f"{ratio:.2f}" if ratio is not None else "" for ratio in ratios]
        lines.append("| " + " | ".join([row["model"] if condition == ALONE else "", condition, *cells, *shown]) + " |")
    for condition in BUSY:
        ratios_by_statistic = [
            [ratio for row in rows if (ratio := over_best(row, condition, statistic)) is not None]
            for statistic in ("median_us", "p99_us")
        ]
        if all(ratios_by_statistic):
            middle, last = (f"{geometric_mean(ratios):.2f} (at most {max(ratios):.2f})" for ratios in ratios_by_statistic)
            lines += ["", f"{condition}: median {middle} of the best peer's, 99th percentile {last}, {len(ratios_by_statistic[0])} models."]
    failed = [f"{row['model']}: {engine} {reason}" for row in rows for engine, reason in row.get("failed", {}).items()]
    return "\n".join([*lines, *(f"\n* {' '.join(text.split())}" for text in failed)]) + "\n"


def entry_of(text: str) -> BenchModel:
    """Return a model of either list, or one from a file."""
    listed = {**MODELS, **UNSEEN}
    if text in listed:
        return listed[text]
    if (given := of_file(text)) is not None:
        return given
    raise BadArguments(f"there is no model and no .onnx file {text}; python -m bench.models and bench.unseen list the models")


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.busy", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    models = f"names of either list, or .onnx files (default: {' '.join(DEFAULT)})"
    parser.add_argument("models", nargs="*", metavar="MODEL", help=models)
    engines = ",".join(name for name in ENGINES if name in installed_engines())
    parser.add_argument("--engines", default=engines, help=f"comma-separated (default: {engines}, of {len(ENGINES)} that may be here)")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each engine under each condition (default: 8)")
    parser.add_argument("--artefacts", type=Path, help="folder with optimised models; those that are missing are added")
    add_result_arguments(parser, "busy")
    return parser


def run(options: argparse.Namespace) -> int:
    """Measure what is asked for; return the exit code."""
    entries = [entry_of(text) for text in options.models or DEFAULT]
    where = environment(options.threads, options.command)
    stem = options.results / options.name
    kept = read_rows(stem.with_suffix(".json"), where) if options.resume else {}
    rows = {name: row for (name, _), row in kept.items() if "error" not in row}
    for entry in entries:
        if entry.name in rows:
            continue
        rows[entry.name] = row = measure(entry, options)
        write(stem, list(rows.values()), where, table(list(rows.values()), where))
        ratios = {condition: over_best(row, condition, "median_us") for condition in BUSY}
        shown = row.get("error") or ", ".join(f"{condition} {ratio:.2f}" for condition, ratio in ratios.items() if ratio is not None)
        print(f"{entry.name}: {shown}", file=sys.stderr, flush=True)
    page = table(list(rows.values()), where)
    write(stem, list(rows.values()), where, page)
    print(page)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    return run_command(build_parser(), run, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
