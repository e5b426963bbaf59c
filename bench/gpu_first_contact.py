"""First contact with a GPU: is what was built without one right? Needs Python, numpy, CuPy and the packages runtime/ and bench/; no more.

    python -m bench.gpu_first_contact --prepare FOLDER [MODEL ...] [--target cuda:h200]    where the optimiser is installed
    python -m bench.gpu_first_contact FOLDER [--seconds 540] [-o contact.jsonl]            where the GPU is

The first writes artefacts with inputs and the outputs that onnxruntime computes. The second asks one question after another and writes
each answer down at once: versions; the device beside its description; code, plans of cuDNN and kernels of cuBLASLt as they load; outputs,
launched one by one, captured and replayed; times by events beside the estimates; library calls beside PyTorch's. What cannot be asked
is skipped with the reason, what goes wrong is an answer, too, and the next question follows. It has never run on a GPU.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from runtime import Session
from runtime.artefact import Artefact
from runtime.devices import DESCRIBED
from runtime.devices.cuda import cublas, cudnn, kernels
from runtime.devices.cuda.gpus import GPUS
from runtime.devices.cuda.program import CudaProgram
from runtime.plan import Plan, Step

PREPARED = ("dcgan", "infogan", "fsrcnn", "gcn_block", "longformer_block")
"""Networks whose artefacts together are small enough to travel."""
TOLERANCE = 1e-3
"""The largest difference from onnxruntime, relative to the largest output."""
RUNS = 50
PACKAGES = (
    "numpy", "cupy-cuda13x", "cupy-cuda12x", "torch", "triton", "nvidia-cudnn-frontend", "nvidia-cudnn-cu13", "nvidia-cublas",
)  # fmt: skip
FEEDS, WANTED = "feeds.npz", "wanted.npz"
Answer = Mapping[str, Any]


class Skipped(Exception):
    """A question that cannot be asked here; the text says why."""


def prepare(folder: Path, names: Sequence[str], target: str, budget: str) -> None:
    """Write artefacts for a target, with inputs and what onnxruntime computes from them."""
    import onnx
    import onnxruntime

    from bench.models import MODELS

    for name in names:
        artefact_folder = folder / name
        artefact_folder.mkdir(parents=True, exist_ok=True)
        path = artefact_folder / f"{name}.onnx"
        model = MODELS[name].make(1)
        onnx.save(model, path)
        command = [sys.executable, "-m", "egraph.optimize", str(path), "--target", target, "--budget", budget, "-q"]
        subprocess.run(command, check=True)
        feeds = MODELS[name].feeds(model)
        reference = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        names_out = [output.name for output in reference.get_outputs()]
        outputs: dict[str, Any] = dict(zip(names_out, reference.run(None, feeds), strict=True))
        arrays: dict[str, Any] = dict(feeds)
        np.savez(artefact_folder / FEEDS, **arrays)
        np.savez(artefact_folder / WANTED, **outputs)
        path.unlink()
        (artefact_folder / f"{name}.opt.onnx").unlink()
        print(f"prepared {artefact_folder}")


def versions() -> Answer:
    """Return what is installed."""
    packages = {}
    for package in PACKAGES:
        try:
            packages[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    nvcc = shutil.which("nvcc")
    printed = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False).stdout if nvcc else ""
    return {"python": platform.python_version(), "packages": packages, "nvcc": printed.splitlines()[-1:]}


def properties() -> Answer:
    """Return what the device says of itself beside what we say of such a device."""
    from runtime.devices.cuda.cupy_driver import library

    cupy = library()
    reported = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)
    name = reported["name"].decode()
    described = {
        "multiprocessors": reported["multiProcessorCount"], "capability": [reported["major"], reported["minor"]],
        "shared_bytes": reported["sharedMemPerBlockOptin"], "memory_bytes": reported["totalGlobalMem"], "l2_bytes": reported["l2CacheSize"],
        "clock_khz": reported.get("clockRate"), "memory_clock_khz": reported.get("memoryClockRate"),
    }  # fmt: skip
    gpu = next((gpu for gpu in GPUS.values() if gpu.name in name.lower()), None)
    ours = {key: getattr(gpu, key) for key in described} if gpu else {}
    differing = {key: (value, ours[key]) for key, value in described.items() if gpu and list(np.ravel(value)) != list(np.ravel(ours[key]))}
    return {"name": name, "driver": cupy.cuda.runtime.driverGetVersion(), **described, "differs_from_description": differing}


def _steps(plan: Plan, kind: str) -> Iterator[Step]:
    return (step for step in plan.steps if step.kind == kind)


def code(artefact: Artefact) -> Answer:
    """Load every generated kernel."""
    from runtime.devices.cuda.cupy_driver import CupyDriver

    if artefact.kernels is None:
        raise Skipped("the program has no generated kernels")
    driver, code_of_kernel = CupyDriver(), kernels.read(artefact.kernels)
    for name, kernel in code_of_kernel.items():
        driver.load(name, kernel)
    return {"kernels": len(code_of_kernel), "compiled_here": sum(kernel.cubin is None for kernel in code_of_kernel.values())}


def cudnn_plans(artefact: Artefact) -> Answer:
    """Rebuild the plans that steps name; a driver does so when it plans a step."""
    if not cudnn.is_installed():
        raise Skipped("cuDNN's frontend is not installed")
    return _planned(artefact.plan, cudnn.CUDNN_STEP)


def cublas_kernels(artefact: Artefact) -> Answer:
    """Ask cuBLASLt's heuristics for a kernel for each product."""
    return _planned(artefact.plan, cublas.CUBLAS_STEP)


def _planned(plan: Plan, kind: str) -> Answer:
    from runtime.devices.cuda.cupy_driver import CupyDriver

    driver, workspace_bytes, refused = CupyDriver(), [], []
    for step in _steps(plan, kind):
        operands = cudnn.with_packed(step.spec, [plan.buffers[i] for i in step.inputs])
        try:
            workspace_bytes.append(driver.plan(kind, step.spec, operands, plan.buffers[step.outputs[0]]).workspace_bytes)
        except Exception as error:  # every plan's error is an answer
            refused.append(f"{step.name}: {error}")
    return {"planned": len(workspace_bytes), "workspace_bytes": max(workspace_bytes, default=0), "refused": refused}


def outputs(artefact: Artefact, on: str | None, folder: Path) -> Answer:
    """Run a program launched one by one, captured and replayed, and compare each with onnxruntime."""
    with np.load(folder / FEEDS) as stored, np.load(folder / WANTED) as expected, Session(artefact, on=on) as session:
        feeds = dict(stored)
        errors = []
        for _ in range(3):
            actual = dict(zip((each.name for each in session.get_outputs()), session.run(None, feeds), strict=True))
            errors.append(max(_error(actual[name], expected[name]) for name in expected))
    if not max(errors) <= TOLERANCE:
        raise ArithmeticError(f"relative errors {errors} (launched, captured, replayed) are above {TOLERANCE}")
    return {"relative_errors": errors}


def _error(actual: np.ndarray, expected: np.ndarray) -> float:
    scale = float(np.abs(expected).max(initial=0.0)) or 1.0
    return float(np.abs(actual.astype(np.float64) - expected).max(initial=0.0)) / scale


def times(artefact: Artefact) -> Answer:
    """Return the median time of a replay, and of each step beside its estimate, by the device's events."""
    planned = artefact.plan.steps
    if any(step.kind == "onnxruntime" for step in planned):
        raise Skipped("some steps run on the host")
    with Session(artefact) as session:
        loaded = session.executable.loaded
        assert isinstance(loaded, CudaProgram), "the program is for CUDA"
        replays_ns = loaded.time(RUNS, evict=False, weights_from_memory=False)
        steps = np.median(np.array(loaded.profile(RUNS)), axis=0) / 1e3
    estimated_us = [step.predicted_us for step in planned]
    rows = [(step.name, float(us), step.predicted_us) for step, us in zip(planned, steps, strict=True)]
    replay_us = statistics.median(replays_ns) / 1e3
    return {"replay_us": replay_us, "steps_us": float(steps.sum()), "estimated_us": sum(estimated_us), "steps": rows}


def torch_calls(artefact: Artefact) -> Answer:
    """Time each library call as PyTorch makes it: eager, cuDNN in benchmark mode, strict float32."""
    try:
        import torch
    except ImportError as error:
        raise Skipped("PyTorch is not installed") from error
    torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = True, False
    rows = []
    for step in artefact.plan.steps:
        if step.kind in (cudnn.CUDNN_STEP, cublas.CUBLAS_STEP):
            rows.append((step.name, _torch_us(torch, step, artefact.plan), step.predicted_us))
    return {"calls": rows}


def _torch_us(torch: Any, step: Step, plan: Plan) -> float:
    buffers = [step.inputs[step.spec["arguments"][role]] for role in ("src", "weights")]
    data, weights = (torch.rand(plan.buffers[buffer].shape, device="cuda") for buffer in buffers)
    call: Callable[[], object]
    if step.spec["primitive"] == "matmul":
        call = partial(torch.matmul, data, weights)
    else:
        extra = {"stride": step.spec["strides"], "dilation": step.spec["dilations"], "padding": step.spec["pads_before"]}
        if step.spec["primitive"] == "convolution":
            call = partial(torch.conv2d, data, weights, groups=data.shape[1] // weights.shape[1], **extra)
        else:
            call = partial(torch.conv_transpose2d, data, weights, **extra)
    for _ in range(5):
        call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    times_us: list[float] = []
    for _ in range(RUNS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times_us.append(1e3 * float(start.elapsed_time(end)))
    return statistics.median(times_us)


def questions(folder: Path, on: str | None) -> Iterator[tuple[str, Callable[[], Answer]]]:
    """Yield what to ask; on a described device only what needs none."""
    yield "versions", versions
    if on is None:
        yield "properties", properties
    for program_folder in sorted(each for each in folder.iterdir() if (each / WANTED).exists()):
        artefact = Artefact.open(next(program_folder.glob("*.einsat")))

        if on is None:
            yield f"{program_folder.name}: code", partial(code, artefact)
            yield f"{program_folder.name}: plans of cuDNN", partial(cudnn_plans, artefact)
            yield f"{program_folder.name}: kernels of cuBLASLt", partial(cublas_kernels, artefact)
        yield f"{program_folder.name}: outputs", partial(outputs, artefact, on, program_folder)
        if on is None:
            yield f"{program_folder.name}: times", partial(times, artefact)
            yield f"{program_folder.name}: calls by PyTorch", partial(torch_calls, artefact)


def ask(folder: Path, seconds: float, written: Path, on: str | None) -> int:
    """Ask until the time is up; return how many answers are errors."""
    started, failed = time.monotonic(), 0
    with written.open("w", encoding="utf-8") as file:
        for name, question in questions(folder, on):
            begun = time.monotonic()
            result: dict[str, Any]
            if begun - started > seconds:
                result = {"status": "skipped", "why": f"{seconds:.0f} seconds are over"}
            else:
                try:
                    result = {"status": "ok", **question()}
                except Skipped as error:
                    result = {"status": "skipped", "why": str(error)}
                except Exception as error:  # an answer: the next question is asked
                    result = {"status": "failed", "why": f"{type(error).__name__}: {error}"}
            failed += result["status"] == "failed"
            line = json.dumps({"question": name, "seconds": round(time.monotonic() - begun, 3), **result}, default=str)
            print(line, flush=True)
            file.write(line + "\n")
            file.flush()
    return failed


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line: 0 all is well, 1 something is not."""
    form = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_first_contact", description=__doc__, formatter_class=form)
    parser.add_argument("folder", type=Path, help="where the artefacts are")
    parser.add_argument("models", nargs="*", default=PREPARED, help=f"with --prepare: which networks (default {' '.join(PREPARED)})")
    parser.add_argument("--prepare", action="store_true", help="write the artefacts; needs the optimiser")
    parser.add_argument("--target", choices=DESCRIBED, default=DESCRIBED[0], help=f"with --prepare: for which GPU (default {DESCRIBED[0]})")
    parser.add_argument("--budget", default="60s", help="with --prepare: time for each network (default 60s)")
    parser.add_argument("--seconds", type=float, default=540.0, help="ask for so long at most (default 540)")
    parser.add_argument("--on", choices=DESCRIBED, help="ask what needs no GPU of the recorded device")
    parser.add_argument("-o", "--output", type=Path, default=Path("contact.jsonl"), help="the answers (default contact.jsonl)")
    arguments = parser.parse_args(argv)
    if arguments.prepare:
        prepare(arguments.folder, arguments.models, arguments.target, arguments.budget)
        return 0
    return int(ask(arguments.folder, arguments.seconds, arguments.output, arguments.on) > 0)


if __name__ == "__main__":
    raise SystemExit(main())
