"""Measure one row of the benchmark: optimise a model from nothing and once more, then time it beside its peers, in turns."""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from bench.engines import OURS, WITHOUT_DERIVATIONS, largest_value_bytes, outputs_file
from bench.environment import ROOT, commit
from bench.interleave import EngineFailed, EngineProcess, interleave
from bench.models import BenchModel
from bench.products import large_product_gigaflops_s, product_flops
from bench.watched import Watched, by_turns, nearest
from egraph.optimize.check_noise import NOISE_FACTOR, open_onnxruntime, open_shaken, relative_error, shaken
from egraph.optimize.race import available_bytes
from egraph.policy import RacePolicy
from runtime.cache import cache_folder
from runtime.devices.cpu.core_distance import line_ns

MOST_ERROR = 1e-2
"""Relative error against onnxruntime from which an engine is not timed, unless rounding explains it: it computes something else."""
EXACT_VALUES = 8
"""The multiple of a model's largest 32-bit value that its evaluation in 64 bits may hold at once."""
CHECKED = 3
"""Inputs on which outputs are compared; one for large batches."""
SHOWN_CHARACTERS = 400
GRACE_SECONDS = 15.0


class RowFailed(Exception):
    """A model could not be optimised, or not in time."""


@dataclass(frozen=True)
class Request:
    """The settings of every row."""

    engines: tuple[str, ...]
    threads: int
    seconds: float
    """Seconds for timing one engine."""
    limit_seconds: float
    """Seconds after which a row is abandoned."""
    warm: bool = True
    extra: tuple[str, ...] = ()
    """More flags of the optimizer."""


def measure_row(entry: BenchModel, batch: int, request: Request) -> dict[str, Any]:
    """Return the measured row, or the error that prevented it; texts name no folder of this machine."""
    row: dict[str, Any] = {"model": entry.name, "batch": batch, "weights": entry.weights, "commit": commit()}
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        try:
            row |= _measured(entry, batch, request, Path(name), started + request.limit_seconds)
        except RowFailed as error:
            row["error"] = str(error)
        except Exception as error:  # a model of the bench may need a package that is not installed, or more memory
            row["error"] = f"{type(error).__name__}: {error}"
        row["seconds"] = round(time.monotonic() - started, 1)
        cleaned: dict[str, Any] = without_places(row, {name: ".", str(ROOT): ".", str(Path.home()): "~"})
    return cleaned


def without_places(data: Any, names: Mapping[str, str]) -> Any:
    """Return JSON data with the names of folders replaced in all its texts."""
    match data:
        case str():
            for path, name in names.items():
                data = data.replace(path, name)
            return data
        case dict():
            return {key: without_places(value, names) for key, value in data.items()}
        case list() | tuple():
            return [without_places(value, names) for value in data]
        case _:
            return data


def _measured(entry: BenchModel, batch: int, request: Request, folder: Path, deadline: float) -> dict[str, Any]:
    source = folder / f"{entry.name}.onnx"
    model = entry.make(batch)
    onnx.save(model, source)
    files = [folder / "feeds.npz", *(folder / f"feeds{seed}.npz" for seed in range(1, CHECKED if batch == 1 else 1))]
    for seed, file in enumerate(files):
        np.savez(file, allow_pickle=False, **entry.feeds(model, seed))
    feeds = entry.feeds(model)
    exact = exact_outputs(model, feeds) if exact_bytes(source) <= RacePolicy.memory_share * available_bytes() else None
    del model, feeds
    command = [
        sys.executable, "-m", "egraph.optimize", str(source), "--json", "-q", "--threads", str(request.threads),
        "--database", str(folder / "profile.sqlite"), *(a for shape in entry.shapes for a in ("--shape", shape)),
        *(a for file in files for a in ("--inputs", str(file))), "--check", str(len(files)), *request.extra,
    ]  # fmt: skip
    row: dict[str, Any] = {"optimize_seconds": {}, "failed": {}, "median_us": {}, "max_rel_err": {}}
    for name in ("cold", "warm") if request.warm else ("cold",):
        row["optimize_seconds"][name], printed = run_optimizer([*command, "-o", str(folder / name)], deadline, folder / "cache")
        row.setdefault("optimize", {key: value for key, value in printed.items() if key != "files"})
    if request.warm:
        cold, warm = ((folder / name / f"{entry.name}.opt.onnx").read_bytes() for name in ("cold", "warm"))
        row["warm_is_the_same"] = cold == warm
    if WITHOUT_DERIVATIONS in request.engines:
        command += ["--no-derivations", "-o", str(folder / WITHOUT_DERIVATIONS)]
        row["optimize_seconds"][WITHOUT_DERIVATIONS], printed = run_optimizer(command, deadline, folder / "cache")
        row["predicted_us"] = {"einsat": row["optimize"].get("predicted_us"), WITHOUT_DERIVATIONS: printed.get("predicted_us")}
    artefacts = {"einsat": "cold", WITHOUT_DERIVATIONS: WITHOUT_DERIVATIONS}
    if time.monotonic() > deadline:
        spent = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in row["optimize_seconds"].items())
        raise RowFailed(f"optimising left no time for engines (--limit {request.limit_seconds:.0f}): {spent}")
    with ExitStack() as stack:
        processes: dict[str, EngineProcess] = {}
        for engine in request.engines:
            path = folder / artefacts[engine] / f"{entry.name}.einsat" if engine in OURS else source
            try:
                left = max(1.0, min(240.0, deadline - time.monotonic()))
                processes[engine] = stack.enter_context(EngineProcess(engine, path, folder / "feeds.npz", request.threads, left))
            except EngineFailed as error:
                row["failed"][engine] = str(error)
        row["max_rel_err"], wrong = compare_outputs(folder, list(processes))
        if any(row["max_rel_err"].get(engine, 0.0) > MOST_ERROR for engine in wrong):
            row["noise"] = noise_of(source, folder / "feeds.npz", request.threads)
            most = NOISE_FACTOR * row["noise"]
            wrong = {engine: reason for engine, reason in wrong.items() if row["max_rel_err"].get(engine, inf) > most}
        row["failed"] |= wrong
        processes = {engine: process for engine, process in processes.items() if engine not in wrong}
        if exact is not None:
            row["rounding_error"] = rounding_errors(folder, list(processes), exact)
        watched = {engine: Watched(process, partial(line_ns, request.threads)) for engine, process in processes.items()}
        times, failed = interleave(watched, seconds=request.seconds * len(processes), deadline=deadline)
        row["failed"] |= failed
        watched = {engine: engine_watched for engine, engine_watched in watched.items() if engine not in failed}
        row["near"], row["by_turns"] = nearest(watched), by_turns(watched, "einsat")
    row["median_us"] = {engine: round(statistics.median(values) / 1e3, 2) for engine, values in times.items() if engine not in failed}
    row["runs"] = {engine: len(values) for engine, values in times.items()}
    with np.load(files[0]) as saved:
        sizes = {name: saved[name].shape for name in saved.files}
    row["products_us"] = round(product_flops(source, sizes) / large_product_gigaflops_s(request.threads, folder) / 1e3, 2)
    if "einsat" not in row["median_us"]:
        raise RowFailed(f"our own runtime: {row['failed'].get('einsat', 'no times')}")
    return row


def exact_bytes(model: Path) -> int:
    """Return about how much memory the evaluation of a model in 64-bit floats needs."""
    return EXACT_VALUES * largest_value_bytes(model)


def run_optimizer(command: Sequence[str], deadline: float, cache: Path | None = None) -> tuple[float, dict[str, Any]]:
    """Run the optimizer; return its seconds and what it printed. Processes that it started end with it.

    ``cache`` is a folder for compiled kernels in place of the user's: if it is empty, kernels are compiled again. The libraries that run
    every program are not, because they are built once on a machine.
    """
    environment = dict(os.environ)
    if cache is not None:
        _copy_libraries(cache_folder(), cache)
        environment["EINSAT_CACHE"] = str(cache)
    started = time.monotonic()
    left = max(1.0, deadline - started)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True, env=environment
    ) as process:  # fmt: skip
        try:
            printed, errors = process.communicate(timeout=left)
        except subprocess.TimeoutExpired as error:
            raise RowFailed(f"the optimizer gave no result in {left:.0f} s (--limit)") from error
        finally:
            if process.poll() is None:
                _end(process)
    if process.returncode != 0:
        raise RowFailed(f"the optimizer exited {process.returncode}: {errors.strip()[-SHOWN_CHARACTERS:]}")
    seconds = time.monotonic() - started
    if cache is not None:
        _copy_libraries(cache, cache_folder())
    result: dict[str, Any] = json.loads(printed)
    return round(seconds, 2), result


def _copy_libraries(source: Path, target: Path) -> None:
    """Copy the shared libraries that one cache has and another lacks."""
    target.mkdir(parents=True, exist_ok=True)
    for library in source.glob("*.so"):
        if not library.name.startswith("cuda-") and not (target / library.name).exists():
            shutil.copyfile(library, target / library.name)


def _end(process: subprocess.Popen[str]) -> None:
    """End the optimizer as Ctrl-C does, so that it ends what it started; by force if it does not respond."""
    process.terminate()
    try:
        process.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def compare_outputs(folder: Path, engines: Sequence[str]) -> tuple[dict[str, float], dict[str, str]]:
    """Return each engine's largest relative error against onnxruntime on the benchmark's inputs, and the engines that are too far off."""
    errors: dict[str, float] = {}
    wrong: dict[str, str] = {}
    for engine in engines if "onnxruntime" in engines else ():
        if engine == "onnxruntime":
            continue
        with np.load(outputs_file(folder, "onnxruntime")) as expected, np.load(outputs_file(folder, engine)) as actual:
            pairs = [(expected[key], actual[key]) if key in actual else None for key in expected]
        if not all(pair and pair[0].shape == pair[1].shape and np.isfinite(pair[1]).all() for pair in pairs):
            wrong[engine] = "its outputs are not of onnxruntime's shapes, or not finite"
            continue
        errors[engine] = max(relative_error(*pair) for pair in pairs if pair)
        if errors[engine] > MOST_ERROR:
            wrong[engine] = f"its outputs differ from onnxruntime's by {errors[engine]:.2g}"
    return errors, wrong


def noise_of(model: Path, feeds: Path, threads: int) -> float:
    """Return the relative change of onnxruntime's outputs without its optimisations, and with the last bit of inputs and of weights.

    The optimiser's check asks for the same. The outputs of a model that rounds to bytes inside change by 1e-2 and more, and tell a right
    program from a wrong one no better.
    """
    with np.load(feeds) as saved:
        inputs = dict(saved)
    plain = open_onnxruntime(model, threads, optimise=False)
    exact, *moved = plain.run(None, inputs), plain.run(None, shaken(inputs, 0)), open_onnxruntime(model, threads).run(None, inputs)
    moved.append(open_shaken(model, threads, feeds.parent, 0).run(None, inputs))
    return max(relative_error(want, got) for outputs in moved for want, got in zip(exact, outputs, strict=True))


def rounding_errors(folder: Path, engines: Sequence[str], exact: Sequence[np.ndarray]) -> dict[str, float]:
    """Return each engine's largest relative error against the outputs in 64-bit floats, onnxruntime's among them."""
    errors: dict[str, float] = {}
    for engine in engines:
        with np.load(outputs_file(folder, engine)) as saved:
            outputs = [saved[f"output{index}"] for index in range(len(saved.files))]
        if [value.shape for value in outputs] == [value.shape for value in exact]:
            errors[engine] = max(relative_error(expected, actual) for expected, actual in zip(exact, outputs, strict=True))
    return errors


def exact_outputs(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray] | None:
    """Return the outputs, computed by torch in 64-bit floats; None if torch is missing or cannot compute them."""
    try:
        import torch

        from bench.torch_model import TorchModel

        module = TorchModel(model, floats=torch.float64)
        operands = [torch.from_numpy(_widened(feeds[value.name])) for value in model.graph.input]
        with torch.inference_mode():
            return [tensor.numpy() for tensor in module(*operands)]
    except (ImportError, LookupError, TypeError, RuntimeError, MemoryError):  # not installed, not translated, refused by torch, too large
        return None


def _widened(value: np.ndarray) -> np.ndarray:
    return value.astype(np.float64) if value.dtype == np.float32 else np.array(value)
