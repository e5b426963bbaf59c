"""First contact with a GPU: test what was built without one. Needs only Python, numpy, CuPy and the packages runtime/ and bench/.

    python -m bench.gpu_first_contact --prepare FOLDER [MODEL ...] [--jobs all] [--target cuda:h200]    where the optimiser is installed
    python -m bench.gpu_first_contact --prepare FOLDER --import-profiles jobs.records.jsonl      again, with the times that it measured
    python -m bench.gpu_first_contact --prepare FOLDER --precision tf32                    beside them, programs for tensor cores
    python -m bench.gpu_first_contact FOLDER [--seconds 540] [-o contact.jsonl]            where the GPU is
    python -m bench.gpu_first_contact FOLDER --resume EARLIER                              again, with the times that it had
    python -m bench.gpu_first_contact FOLDER --compiled                                    networks as PyTorch and XLA compile them

With --prepare it writes, for all batch sizes of each network, artefacts that are compared with onnxruntime, with inputs and outputs; the
kernels to be timed of these networks, or of all that --jobs names, each kernel once; and cuDNN's frontend for Python 3.12 as a wheel, which
is unpacked where the GPU is. It resumes where it was interrupted, and prints whether the folder is small enough to travel.

Where the GPU is, nothing is downloaded. The command asks one question after another and writes each answer at once, into $OUT if that is
set: versions; the device beside its description; whether code, plans of cuDNN and kernels of cuBLASLt load; outputs, launched one by one,
captured and replayed; times by events beside the estimates and the least that arithmetic and memory allow; library calls and whole networks
beside PyTorch's. Then it times kernels for as long as it may. With --compiled it asks instead for networks as PyTorch and, if JAX is
installed, XLA compile them. A question that cannot be asked is skipped with the reason; a failure is an answer, too. Questions are asked in
child processes: one that crashes, hangs or spoils the GPU's context costs only its own answer. Without a GPU, this is reported once, and
the exit code is 2. ``bench.gpu_results`` records the answers.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import metadata
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.drawn_weights import filled, hollow, leave_out, read_feeds, shrink, write_feeds
from bench.drawn_weights import opened as opened_artefact
from bench.gpu_rates import rates
from runtime import Session
from runtime.artefact import Artefact
from runtime.devices import DESCRIBED
from runtime.devices.cuda import cublas, cudnn, kernels
from runtime.devices.cuda.driver import BRANCHES
from runtime.devices.cuda.gpus import GPUS
from runtime.devices.cuda.program import CudaProgram
from runtime.devices.cuda.streams import NOTE, schedule
from runtime.errors import ArtefactError, ExecutionError, LibraryMissing
from runtime.plan import Plan, Step
from runtime.profile.jobs import count_statuses, measure_archive, merge

if TYPE_CHECKING:
    from bench.models import BenchModel

PREPARED = ("dcgan", "infogan", "fsrcnn", "gcn_block", "resnet18", "csrnet", "longformer_block")
"""The networks of the published comparison."""
TOLERANCES = {"float32": 1e-3, "tf32": 1e-2, "fp16": 1e-2}
"""The largest accepted difference from the right outputs, relative to the largest output, by the precision of products.

If operands are rounded, a change of their last bit moves some of them by as much as that precision distinguishes.
"""
SHRINKINGS, SHRUNK = 5, 0.25
"""How often drawn weights are made smaller, at most, and the factor: outputs should not depend on their last bits."""
RUNS = 50
PRECISIONS = ("float32", "tf32", "fp16")
"""The precisions in which networks are computed."""
PLAIN, MARK = PRECISIONS[0], "@"
TF32_GAP, MIDDLES = 2.0**-10, (0.25, 0.5, 0.75)
"""The gap between two tf32 numbers above 1, and fractions of it at which ways of rounding differ."""
MODES = ("max-autotune-no-cudagraphs", "default")
"""Modes of torch.compile: kernels are chosen by their times, which takes minutes for some networks, or by rules."""
XLA_PRECISIONS = {"float32": "highest", "tf32": "tensorfloat32", "fp16": "default"}
"""JAX's names of the precisions of products."""
MOST_COMPARED = 1 << 18
"""Maximum number of elements of an output that are compared, evenly spread over it: they have to travel."""
NETWORK = "network.onnx"
"""The network without its random weights, for PyTorch."""
POLL_SECONDS = 0.1
PATIENCE_SECONDS = 120.0
"""Seconds that one question may take; timing kernels ends by itself."""
GRACE_SECONDS = 20.0
"""Seconds after the end during which a question that has begun may still be answered."""
KERNEL_TIMES, COMPILED, XLA = ": kernel times", ": PyTorch, compiled", ": XLA"
JOBS, RECORDS, PARTS, DATABASE = "jobs.zip", "records.jsonl", ".parts", "profiles.sqlite"
MOST_ARCHIVE_BYTES = 45_000_000
"""Maximum bytes of an archive of kernels; further kernels go into another one."""
MOST_CARRIED_BYTES = 64 << 20
"""Maximum bytes that travel to a machine with a GPU: the repository's files and the prepared folder."""
FRONTEND = "nvidia-cudnn-frontend==1.32.0"
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux2014_x86_64")
PACKAGES = (
    "numpy", "cupy-cuda13x", "cupy-cuda12x", "torch", "triton", "jax", "nvidia-cudnn-frontend", "nvidia-cudnn-cu13", "nvidia-cublas",
)  # fmt: skip
FEEDS, WANTED, WORK, ARCHIVES = "feeds.npz", "wanted.npz", "work.json", "jobs*.zip"
ROOT = Path(__file__).resolve().parent.parent
Answer = Mapping[str, Any]


class Skipped(Exception):
    """A question that cannot be asked here; the text says why."""


class NoDevice(Exception):
    """There is no usable GPU; the text says what is missing. No further question is asked."""


def bench_models() -> Mapping[str, BenchModel]:
    """Return the models of both lists; those of the second only if torch is installed."""
    from bench.cuda_kernels import unseen
    from bench.models import MODELS

    return {**MODELS, **unseen()}


def prepare(
    folder: Path, names: Sequence[str], timed: Sequence[str], target: str, budget: str, profiles: Sequence[Path], precision: str = PLAIN
) -> bool:
    """Write artefacts of networks for a target, and the kernels to time of more networks; return whether they are small enough to travel.

    ``profiles``: kernel times measured on such a GPU, by which programs get the fastest kernels.
    ``precision``: the precision to which products may round operands; unless it is float32, it is part of the folders' names.
    Artefacts that an earlier call has prepared are kept; a network whose kernels cannot be exported is reported and skipped.
    """
    models = bench_models()
    parts = folder.with_name(folder.name + PARTS)
    parts.mkdir(parents=True, exist_ok=True)
    options = ["--target", target, "--budget", budget, "-q", "--database", str(parts / DATABASE)]
    options += [word for path in profiles for word in ("--import-profiles", str(path))]
    options += [] if precision == PLAIN else ["--precision", precision]
    mark = "" if precision == PLAIN else f"{MARK}{precision}"
    archives: list[Path] = []
    for name in dict.fromkeys((*names, *timed)):
        for batch in models[name].batches:
            place = folder / f"{name if batch == 1 else f'{name}.{batch}'}{mark}"
            if name in names and not (place / WANTED).exists():
                prepare_artefact(models[name], batch, place, target, options)
        for batch in models[name].batches if name in timed else (1,):
            archive = parts / f"{name}.{batch}.{target.rpartition(':')[2]}{mark}.zip"
            if not archive.exists():
                prepare_jobs(models[name], batch, archive, options)
            archives += [archive] if archive.exists() else []
    for old in folder.glob(ARCHIVES):
        old.unlink()
    merged = merge(archives, folder / JOBS, MOST_ARCHIVE_BYTES)
    print(
        f"{merged.kernels} kernels to be timed, {merged.repeated} repeated ones left out, of {len(archives)} networks and batches, "
        f"in {len(merged.paths)} archive(s) of {sum(path.stat().st_size for path in merged.paths) / 1e6:.1f} MB"
    )
    if not any(folder.glob("wheels/*.whl")):
        download_wheels(folder / "wheels")
    return is_portable(folder)


def prepare_artefact(network: BenchModel, batch: int, folder: Path, target: str, options: Sequence[str]) -> None:
    """Write a network's artefact, compare it with onnxruntime, then leave its random weights out.

    Beside it are written inputs, the recorded device's outputs for them with the drawn weights, and the network's work.
    """
    import onnx

    from egraph.onnx import importer

    model = network.make(batch)
    amount = work_of(model, network.shapes)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{network.name}.onnx"
    onnx.save(model, path)
    subprocess.run([sys.executable, "-m", "egraph.optimize", str(path), *options, *_sizes(network.shapes)], check=True)
    feeds = write_feeds(folder / FEEDS, network.feeds(model))
    for written in folder.glob("*.onnx*"):
        written.unlink()
    onnx.save(hollow(model), folder / NETWORK)
    leave_out(folder / f"{network.name}.einsat")
    (folder / WORK).write_text(json.dumps(amount), encoding="utf-8")
    constants = importer.load(model).graph.tensors
    outputs = settled_outputs(folder / f"{network.name}.einsat", target, feeds, constants, TOLERANCES[precision_of(folder)])
    np.savez_compressed(folder / WANTED, **{name: compared(array) for name, array in outputs.items()})
    print(f"prepared {folder}", flush=True)


def precision_of(folder: Path) -> str:
    """Return the precision to which products of the program in a folder may round operands, from the folder's name."""
    return folder.name.partition(MARK)[2] or PLAIN


def settled_outputs(
    path: Path, target: str, feeds: Mapping[str, np.ndarray], constants: Collection[str], tolerance: float
) -> dict[str, Any]:
    """Return a program's outputs on the recorded device, with drawn weights for which a change of weights shows and rounding hardly does.

    ``constants``: the names of the model's constants. Weights that the program has transformed lose their relations when they are drawn,
    and values computed from them grow. They are drawn smaller until the outputs can tell a right program from a wrong one; saturated
    outputs cannot.
    """

    def computed(artefact: Artefact) -> dict[str, Any]:
        with Session(artefact, on=target) as session:
            return dict(zip((each.name for each in session.get_outputs()), session.run(None, feeds), strict=True))

    for tries_left in reversed(range(1 + SHRINKINGS)):
        artefact = opened_artefact(path)
        outputs = computed(artefact)
        rounded, changed = (
            computed(replace(artefact, weights={name: nudge(weight) for name, weight in artefact.weights.items()}))
            for nudge in (_rounded, partial(_changed, share=10 * tolerance))
        )  # fmt: skip
        moved, seen = (max(_error(each[name], outputs[name]) for name in outputs) for each in (rounded, changed))
        if moved <= tolerance / 10 and seen >= tolerance:
            return outputs
        kept = [name for name in artefact.weights if name.partition(".")[0] in constants]
        if not tries_left or not shrink(path, SHRUNK, kept):
            break
    why = "move with the last bits of the weights" if moved > tolerance / 10 else "do not move with the weights"
    print(f"{path.name}: outputs {why}, so that errors on the GPU say little", file=sys.stderr, flush=True)
    return outputs


def compared(array: Any) -> Any:
    """Return the elements of an output that are compared: at an odd distance, so that they fall on all places of tiles."""
    return array.reshape(-1)[:: -(-array.size // MOST_COMPARED) | 1]


def _changed(weight: np.ndarray, share: float) -> np.ndarray:
    """Return the weights with every other one larger by a fraction ``share``."""
    if weight.dtype != np.float32:
        return weight
    moved = np.array(weight)
    moved.reshape(-1)[::2] *= np.float32(1 + share)
    return moved


def _rounded(weight: np.ndarray) -> np.ndarray:
    """Return the weights with every other one replaced by the next larger float."""
    if weight.dtype != np.float32:
        return weight
    moved = np.array(weight)
    flat = moved.reshape(-1)
    flat[::2] = np.where(flat[::2] == 0, 0, np.nextafter(flat[::2], np.float32(np.inf)))
    return moved


def work_of(model: Any, shapes: Sequence[str]) -> dict[str, float]:
    """Return a network's arithmetic, and the bytes of its inputs, outputs and weights, each once."""
    from bench.inputs import parse_shapes
    from egraph.onnx import importer
    from egraph.tensor import walk
    from lower.roofline import node_flops, size_bytes

    graph = importer.load(model, shapes=parse_shapes(shapes)).graph
    nodes = list(walk(graph.roots))
    weights = [node for node in nodes if node.op == "Constant"]
    least_bytes = sum(size_bytes(node.type) for node in (*graph.inputs, *graph.roots, *weights))
    return {"flops": sum(node_flops(node) for node in nodes), "size_bytes": least_bytes}


def prepare_jobs(network: BenchModel, batch: int, archive: Path, options: Sequence[str]) -> None:
    """Write the kernels that a search of a network would time; print why if there are none."""
    import onnx

    with tempfile.TemporaryDirectory(prefix="einsat-") as folder:
        path = Path(folder) / f"{network.name}.onnx"
        onnx.save(network.make(batch), path)
        command = [sys.executable, "-m", "egraph.optimize", str(path), *options, *_sizes(network.shapes)]
        done = subprocess.run([*command, "--export-jobs", str(archive)], stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        print(f"{network.name} at batch {batch} is left out: {done.stderr.strip()[-300:]}", file=sys.stderr, flush=True)
        return
    print(f"prepared {archive} ({archive.stat().st_size / 1e6:.1f} MB)", flush=True)


def _sizes(shapes: Sequence[str]) -> list[str]:
    """Return the options that give the input sizes that the model leaves open."""
    return [word for shape in shapes for word in ("--shape", shape)]


def is_portable(folder: Path) -> bool:
    """Print the size of the folder and the repository's files together; return whether they are small enough to travel."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split("\0")
    repository = sum((ROOT / name).stat().st_size for name in listed if name and (ROOT / name).is_file())
    sizes = {each.name: _size_bytes(each) for each in sorted(folder.iterdir())}
    total = repository + sum(sizes.values())
    shown = ", ".join(f"{name} {size / 2**20:.1f}" for name, size in sorted(sizes.items(), key=lambda pair: -pair[1]))
    print(f"{total / 2**20:.1f} of {MOST_CARRIED_BYTES / 2**20:.0f} MiB may travel: the repository {repository / 2**20:.1f}, {shown}")
    if total > MOST_CARRIED_BYTES:
        print(f"that is too much: remove the largest networks from {folder}, or time its archives in several visits", file=sys.stderr)
    return total <= MOST_CARRIED_BYTES


def _size_bytes(path: Path) -> int:
    return sum(each.stat().st_size for each in (path, *path.rglob("*")) if each.is_file())


def download_wheels(folder: Path) -> None:
    """Download cuDNN's frontend for the machine with the GPU; without it, no plan of cuDNN is asked for there."""
    platforms = [word for platform_name in PLATFORMS for word in ("--platform", platform_name)]
    command = ["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--python-version", "3.12", *platforms]
    done = subprocess.run([sys.executable, *command, "-d", str(folder), FRONTEND], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(f"without {FRONTEND}, which cannot be downloaded: {done.stderr.strip()[-300:]}", file=sys.stderr)


def versions() -> Answer:
    """Return what is installed."""
    packages = {}
    for package in PACKAGES:
        try:
            packages[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "python": platform.python_version(), "packages": packages, "nvcc": _printed("nvcc", "--version")[-1:],
        "gpus": _printed("nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.max.sm", "--format=csv,noheader"),
    }  # fmt: skip


def _printed(program: str, *arguments: str) -> list[str]:
    """Return the lines that a program prints; none if it is not installed or does not end."""
    path = shutil.which(program)
    if path is None:
        return []
    try:
        return subprocess.run([path, *arguments], capture_output=True, text=True, check=False, timeout=30).stdout.splitlines()
    except subprocess.TimeoutExpired:
        return []


def present() -> Answer:
    """Return the name of the device; raises NoDevice if CuPy, a driver or a device is missing."""
    from runtime.devices.cuda import cupy_driver

    try:
        return {"name": cupy_driver.device_name()}
    except ExecutionError as error:
        raise NoDevice(error.what) from error


def libraries() -> Answer:
    """Return the versions of the libraries whose kernels are called, as they are loaded here, and PyTorch's beside them."""
    from runtime.devices.cuda import cupy_driver

    answer: dict[str, Any] = {"device": cupy_driver.device_name(), "loaded": cupy_driver.library_versions()}
    for name, load in (("cudnn frontend", cudnn.library), ("cuBLASLt", cublas.library)):
        try:
            load()
        except LibraryMissing as error:
            answer[name] = error.what
    try:
        import torch

        answer["torch"] = {"version": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    except ImportError as error:
        answer["torch"] = str(error)
    return answer


def properties() -> Answer:
    """Return the properties that the device reports beside our description of such a device."""
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


def roundings(device: str = "cuda") -> Answer:
    """Return how libraries round an operand that tf32 cannot represent, in products and convolutions that PyTorch calls.

    The operands lie below, at and above the middle between two tf32 numbers; results are in units of the gap. Rounding to nearest gives
    0, 0 or 1 (depending on whether a tie goes to the even number), 1; truncation gives 0, 0, 0.
    """
    try:
        import torch
    except ImportError as error:
        raise Skipped("PyTorch is not installed") from error
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    kept: dict[str, list[float]] = {"product": [], "convolution": []}
    for share in MIDDLES:
        value, identity = 1.0 + share * TF32_GAP, torch.eye(64, device=device)
        products = torch.full((64, 64), value, device=device) @ identity
        convolved = torch.nn.functional.conv2d(torch.full((1, 64, 16, 16), value, device=device), identity.reshape(64, 64, 1, 1))
        for kind, result in (("product", products), ("convolution", convolved)):
            kept[kind] += sorted({(float(each) - 1.0) / TF32_GAP for each in result.unique()})
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before
    return {"of": MIDDLES, **kept}


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

    driver, workspace_bytes, refused, unavailable = CupyDriver(), [], [], []
    for step in _steps(plan, kind):
        operands = cudnn.with_packed(step.spec, [plan.buffers[i] for i in step.inputs])
        try:
            call = driver.plan(kind, step.spec, operands, plan.buffers[step.outputs[0]])
            workspace_bytes.append(call.workspace_bytes)
            unavailable += [f"{step.name}: {call.unavailable_plan}"] if call.unavailable_plan else []
        except Exception as error:  # every plan's error is an answer
            refused.append(f"{step.name}: {error}")
    most_bytes = max(workspace_bytes, default=0)
    return {"planned": len(workspace_bytes), "workspace_bytes": most_bytes, "refused": refused, "unavailable": unavailable}


def outputs(artefact: Artefact, on: str | None, folder: Path) -> Answer:
    """Run a program launched one by one, captured and replayed, and compare the outputs of each with the right ones."""
    feeds, tolerance = read_feeds(folder / FEEDS), TOLERANCES[precision_of(folder)]
    with np.load(folder / WANTED) as expected, Session(artefact, on=on) as session:
        errors = []
        for _ in range(3):
            actual = dict(zip((each.name for each in session.get_outputs()), session.run(None, feeds), strict=True))
            errors.append(max(_error(compared(actual[name]), expected[name]) for name in expected))
    if not max(errors) <= tolerance:
        raise ArithmeticError(f"relative errors {errors} (launched, captured, replayed) are above {tolerance}")
    return {"relative_errors": errors}


def _error(actual: np.ndarray, expected: np.ndarray) -> float:
    scale = float(np.abs(expected).max(initial=0.0)) or 1.0
    return float(np.abs(actual.astype(np.float64) - expected).max(initial=0.0)) / scale


def least_us(folder: Path, precision: str, name: str) -> float | None:
    """Return a network's least time on the GPU with a driver's name: its arithmetic at the peak, or its bytes at the memory's bandwidth.

    Each input, output and weight counts once, so a network that stays in caches between replays can be faster. None if such a GPU is not
    described, or the network's work was not counted.
    """
    gpu = next((gpu for gpu in GPUS.values() if gpu.is_called(name)), None)
    if gpu is None or not (folder / WORK).exists():
        return None
    amount: dict[str, float] = json.loads((folder / WORK).read_text(encoding="utf-8"))
    peaks = {"float32": gpu.float32_gigaflops_s, "tf32": gpu.tf32_gigaflops_s, "fp16": 2 * gpu.tf32_gigaflops_s}
    bytes_a_float = 0.5 if precision == "fp16" else 1.0
    return max(amount["flops"] / (peaks[precision] * 1e3), bytes_a_float * amount["size_bytes"] / (gpu.memory_gigabytes_s * 1e3))


def shares(folder: Path, times_us: Mapping[str, float | str], name: str) -> dict[str, float]:
    """Return, by precision, a network's least time as a fraction of its time."""
    least = {precision: least_us(folder, precision, name) for precision in times_us}
    return {
        precision: bound / time_us
        for precision, time_us in times_us.items()
        if (bound := least[precision]) is not None and isinstance(time_us, float) and time_us > 0
    }


def _device_name() -> str:
    from runtime.devices.cuda import cupy_driver

    try:
        return cupy_driver.device_name()
    except ExecutionError:
        return ""


def times(artefact: Artefact, folder: Path) -> Answer:
    """Return the median time of a replay, on one stream and, if there are branches, on more, and of each step beside its estimate."""
    planned = artefact.plan.steps
    if any(step.kind == "onnxruntime" for step in planned):
        raise Skipped("some steps run on the host")
    with Session(_on_streams(artefact, 1)) as session:
        loaded = _program(session)
        replay_us = _replay_us(loaded)
        steps = np.median(np.array(loaded.profile(RUNS)), axis=0) / 1e3
    branches_us, precision = {}, precision_of(folder)
    for streams in range(2, 2 + len(BRANCHES)):
        if len(schedule(artefact.plan, 0, len(planned), streams).streams) == streams:
            with Session(_on_streams(artefact, streams)) as session:
                branches_us[streams] = _replay_us(_program(session))
    estimated_us = [step.predicted_us for step in planned]
    rows = [(step.name, float(us), step.predicted_us) for step, us in zip(planned, steps, strict=True)]
    return {
        "replay_us": replay_us, "replay_on_streams_us": branches_us, "steps_us": float(steps.sum()), "estimated_us": sum(estimated_us),
        "roofline_share": shares(folder, {precision: min([replay_us, *branches_us.values()])}, _device_name()), "steps": rows,
    }  # fmt: skip


def _on_streams(artefact: Artefact, streams: int) -> Artefact:
    return replace(artefact, plan=replace(artefact.plan, notes={**artefact.plan.notes, NOTE: streams}))


def _program(session: Session) -> CudaProgram:
    loaded = session.executable.loaded
    assert isinstance(loaded, CudaProgram), "the program is for CUDA"
    return loaded


def _replay_us(loaded: CudaProgram) -> float:
    return statistics.median(loaded.time(RUNS, evict=False, weights_from_memory=False)) / 1e3


def torch_calls(artefact: Artefact) -> Answer:
    """Time each library call as PyTorch makes it: eager, cuDNN in benchmark mode, strict float32."""
    try:
        import torch
    except ImportError as error:
        raise Skipped("PyTorch is not installed") from error
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    rows: list[tuple[str, float | None, float | str]] = []
    for step in artefact.plan.steps:
        if step.kind in (cudnn.CUDNN_STEP, cublas.CUBLAS_STEP):
            try:
                rows.append((step.name, _torch_us(torch, step, artefact.plan), step.predicted_us))
            except (RuntimeError, ValueError, TypeError) as error:
                rows.append((step.name, None, str(error)[:200]))
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
    return _graph_us(torch, call)


def _graph_us(torch: Any, call: Callable[[], object]) -> float:
    """Return the median time of a call that is captured as a CUDA graph and replayed."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # libraries that choose by trials do so before anything is captured
        for _ in range(5):
            call()
    torch.cuda.current_stream().wait_stream(stream)
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


def torch_network(
    folder: Path, *, mode: str = "", precisions: Sequence[str] = PRECISIONS, device: str = "cuda", timed: Callable[..., float] = _graph_us
) -> Answer:
    """Time a whole network in PyTorch, eager with cuDNN in benchmark mode or compiled in one of its modes, in some precisions.

    Weights are drawn, as ours are; outputs are not compared. If PyTorch cannot compute in a precision, only that time is missing.
    """
    try:
        import onnx
        import torch

        from bench.torch_model import TorchModel
    except ImportError as error:
        raise Skipped(f"PyTorch and onnx are needed: {error}") from error
    torch.backends.cudnn.benchmark = True
    feeds, times_us = read_feeds(folder / FEEDS), dict[str, float | str]()
    for precision in precisions:
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        try:
            floats = torch.float16 if precision == "fp16" else torch.float32
            module: Any = TorchModel(filled(onnx.load(folder / NETWORK)), floats=floats).eval().to(device)
            module.weights = {name: weight.to(device) for name, weight in module.weights.items()}
            with torch.inference_mode():
                given = [torch.from_numpy(feeds[name]).to(device) for name in module.inputs]
                given = [each.to(floats) if each.is_floating_point() else each for each in given]
                torch.compiler.reset()  # forgets what was compiled before: after eight networks torch would compute eagerly
                call = torch.compile(module, mode=mode) if mode else module
                times_us[precision] = timed(torch, partial(call, *given))
        except (LookupError, RuntimeError, TypeError, ValueError) as error:
            times_us[precision] = str(error)[:200]
    return {"replay_us": times_us, "roofline_share": shares(folder, times_us, _device_name())} | ({"mode": mode} if mode else {})


def xla_network(folder: Path, *, precisions: Sequence[str] = PRECISIONS, platform_name: str = "gpu") -> Answer:
    """Time a whole network as XLA compiles it, through JAX, in some precisions: one call after another, with no wait between them.

    XLA captures CUDA graphs by itself. If a call is shorter than Python's part in it, the latter is timed; so the time of a call that is
    waited for is given, too.
    """
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # other questions need memory, too
    try:
        import jax
        import onnx

        from bench.jax_model import JaxModel
    except ImportError as error:
        raise Skipped(f"JAX and onnx are needed: {error}") from error
    try:
        place = jax.devices(platform_name)[0]
    except RuntimeError as error:
        raise Skipped(f"JAX has no {platform_name} here: {error}") from error
    feeds, queued_us, waited_us = read_feeds(folder / FEEDS), dict[str, float | str](), dict[str, float]()
    for precision in precisions:
        try:
            model = JaxModel(filled(onnx.load(folder / NETWORK)))
            kind = np.float16 if precision == "fp16" else np.float32
            weights = {name: jax.device_put(value.astype(kind), place) for name, value in model.weights.items()}
            given = [feeds[name].astype(kind) if feeds[name].dtype.kind == "f" else feeds[name] for name in model.inputs]
            operands = [jax.device_put(each, place) for each in given]
            with jax.default_matmul_precision(XLA_PRECISIONS[precision]):
                call = jax.jit(model).lower(weights, *operands).compile()
            for _ in range(5):
                jax.block_until_ready(call(weights, *operands))
            queued_us[precision], waited_us[precision] = _queued_us(jax, partial(call, weights, *operands))
        except (LookupError, RuntimeError, TypeError, ValueError) as error:
            queued_us[precision] = str(error)[:200]
    return {"queued_us": queued_us, "waited_us": waited_us, "roofline_share": shares(folder, queued_us, _device_name())}


def _queued_us(jax: Any, call: Callable[[], object]) -> tuple[float, float]:
    """Return, by the host's clock, the time of a call among calls without waits between them, and of one that is waited for."""
    queued_us, waited_us = [], []
    for _ in range(5):
        begun = time.perf_counter()
        for _ in range(RUNS):
            result = call()
        jax.block_until_ready(result)
        queued_us.append((time.perf_counter() - begun) * 1e6 / RUNS)
    for _ in range(RUNS):
        begun = time.perf_counter()
        jax.block_until_ready(call())
        waited_us.append((time.perf_counter() - begun) * 1e6)
    return statistics.median(queued_us), statistics.median(waited_us)


def kernel_times(archive: Path, records: Path, share: Callable[[], float]) -> Answer:
    """Time an archive's kernels, as ``python -m runtime.profile measure`` does, for this archive's share of the time that is left."""
    from runtime.profile import Database

    done = measure_archive(archive, Database.in_memory(), output=records, seconds=share())
    return {
        "records": len(done.records), "without_a_time": count_statuses(done.records), "remaining": done.remaining,
        "foreign": done.foreign, "lacking": dict(done.lacking), "file": str(records),
    }  # fmt: skip


Question = tuple[str, Callable[[], Answer]]


def questions(folder: Path, on: str | None, written: Path, left_seconds: Callable[[], float], *, mode: str = "") -> list[Question]:
    """Return the questions, the most important first; on a described device only those that need no GPU.

    ``mode``: only time networks, as PyTorch compiles them in this mode and as XLA does.
    """
    prepared = sorted(each for each in folder.iterdir() if (each / WANTED).exists())
    networks = {each.name.partition(MARK)[0]: each for each in reversed(prepared)}  # peers are asked once for all precisions of ours
    if on is not None:
        return [("versions", versions), *((f"{each.name}: outputs", partial(_of_artefact, outputs, each, on, each)) for each in prepared)]
    asked: list[Question] = [("versions", versions), ("device", present)]
    if mode:
        return asked + compiled_questions(networks, mode)
    asked += [("libraries", libraries), ("properties", properties), ("rates", rates), ("roundings", roundings)]
    for each in prepared:
        asked += program_questions(each)
    asked += [(f"{name}: PyTorch", partial(torch_network, each)) for name, each in sorted(networks.items())]
    archives = sorted(folder.glob(ARCHIVES))
    for number, archive in enumerate(archives):
        share = partial(_share, left_seconds, len(archives) - number)
        records = written.with_name(f"{archive.stem}.{RECORDS}")
        asked.append((f"{archive.stem}{KERNEL_TIMES}", partial(kernel_times, archive, records, share)))
    return asked


def program_questions(folder: Path) -> list[Question]:
    """Return the questions about the program in a folder."""
    name = folder.name
    asked: list[Question] = [
        (f"{name}: code", partial(_of_artefact, code, folder)),
        (f"{name}: plans of cuDNN", partial(_of_artefact, cudnn_plans, folder)),
        (f"{name}: kernels of cuBLASLt", partial(_of_artefact, cublas_kernels, folder)),
        (f"{name}: outputs", partial(_of_artefact, outputs, folder, None, folder)),
        (f"{name}: times", partial(_of_artefact, times, folder, folder)),
    ]
    if precision_of(folder) == PLAIN:
        asked.append((f"{name}: calls by PyTorch", partial(_of_artefact, torch_calls, folder)))
    return asked


def compiled_questions(networks: Mapping[str, Path], mode: str) -> list[Question]:
    """Return the questions about compilers, precision by precision, the smallest networks first: more answers fit into the time."""
    smallest_first = sorted(networks.items(), key=lambda pair: (_flops(pair[1]), pair[0]))
    asked: list[Question] = []
    for precision in PRECISIONS:
        asked += [(f"{name}{XLA}, {precision}", partial(xla_network, each, precisions=[precision])) for name, each in smallest_first]
        by_torch = partial(torch_network, mode=mode, precisions=[precision])
        asked += [(f"{name}{COMPILED}, {precision}", partial(by_torch, each)) for name, each in smallest_first]
    return asked


def _of_artefact(question: Callable[..., Answer], folder: Path, *rest: Any) -> Answer:
    """Answer a question about the artefact in a folder, with drawn weights."""
    return question(opened_artefact(next(folder.glob("*.einsat"))), *rest)


def _flops(folder: Path) -> float:
    """Return the number of arithmetic operations of a prepared network."""
    return float(json.loads((folder / WORK).read_text(encoding="utf-8"))["flops"]) if (folder / WORK).exists() else 0.0


def _share(left_seconds: Callable[[], float], parts: int) -> float:
    return left_seconds() / parts


def ask(folder: Path, seconds: float, written: Path, on: str | None, *, mode: str = "") -> int:
    """Ask until the time is up; return the exit code: 0 all is well, 1 something is not, 2 there is no GPU.

    Each process asks questions until one of them ends it, or fails in a way that may have spoilt the device's context.
    """
    deadline = time.monotonic() + seconds

    def left_seconds() -> float:
        return deadline - time.monotonic()

    asked = questions(folder, on, written, left_seconds, mode=mode)
    written.write_text("")
    answered = 0
    while answered < len(asked):
        process = get_context("fork").Process(target=_answer, args=(asked, answered, written, left_seconds, on is None))
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # numpy's threads are idle meanwhile
            process.start()
        latest, since = answered, time.monotonic()
        while process.is_alive():
            process.join(POLL_SECONDS)
            latest, before = _count(written), latest
            since = time.monotonic() if latest > before else since
            is_measuring = latest < len(asked) and asked[latest][0].endswith(KERNEL_TIMES)
            is_late = not is_measuring and time.monotonic() - since > PATIENCE_SECONDS
            if is_late or left_seconds() < -GRACE_SECONDS:
                process.kill()
                process.join()
        latest = _count(written)
        if latest < len(asked) and process.exitcode != 0:
            how = f"the process ended with code {process.exitcode} (below zero: by that signal)"
            _write(written, asked[latest][0], time.monotonic() - since, {"status": "failed", "why": how})
            latest += 1
        answered = latest
    given = [json.loads(line) for line in written.read_text(encoding="utf-8").splitlines()]
    for missing in (line["why"] for line in given if line["status"] == "absent"):
        print(f"error: there is no GPU that can be asked: {missing}", file=sys.stderr)
        return 2
    return int(any(line["status"] == "failed" for line in given))


def _count(written: Path) -> int:
    return written.read_bytes().count(b"\n")


def _write(written: Path, name: str, seconds: float, result: Mapping[str, Any]) -> None:
    line = json.dumps({"question": name, "seconds": round(seconds, 3), **result}, default=str)
    print(line, flush=True)
    with written.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def _answer(asked: Sequence[Question], first: int, written: Path, left_seconds: Callable[[], float], is_gpu: bool) -> None:
    """Answer questions from the first one on; end early if the GPU's context may be spoilt."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the parent's handler is not for this process, which ends
    is_absent = False
    for name, question in asked[first:]:
        begun = time.monotonic()
        result: dict[str, Any]
        is_spoilt = False
        if is_absent or left_seconds() <= 0.0:
            result = {"status": "skipped", "why": "there is no GPU that can be asked" if is_absent else "the time is over"}
        else:
            try:
                result = {"status": "ok", **question()}
            except Skipped as error:
                result = {"status": "skipped", "why": str(error)}
            except NoDevice as error:
                result, is_absent = {"status": "absent", "why": str(error)}, True
            except Exception as error:  # an answer: the next question is asked
                result = {"status": "failed", "why": f"{type(error).__name__}: {error}"}
                is_spoilt = is_gpu and not isinstance(error, (ArtefactError, LibraryMissing))
        _write(written, name, time.monotonic() - begun, result)
        if is_spoilt:
            return


def unpack_wheels(folder: Path) -> None:
    """Make packages that travelled as wheels importable, here and in the processes that measure."""
    if wheels := sorted(folder.glob("wheels/*.whl")):
        place = tempfile.mkdtemp(prefix="einsat-wheels-")
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as zipped:
                zipped.extractall(place)
        sys.path.insert(0, place)
        os.environ["PYTHONPATH"] = os.pathsep.join([place, *filter(None, [os.environ.get("PYTHONPATH")])])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line: 0 all is well, 1 something is not, 2 there is no GPU."""
    form = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_first_contact", description=__doc__, formatter_class=form)
    parser.add_argument("folder", type=Path, help="where the artefacts are")
    parser.add_argument("models", nargs="*", default=PREPARED, help=f"with --prepare: which networks (default {' '.join(PREPARED)})")
    parser.add_argument("--prepare", action="store_true", help="write the artefacts; needs the optimiser")
    parser.add_argument(
        "--jobs", nargs="+", metavar="MODEL", default=None,
        help="with --prepare: networks whose kernels are to be timed, at all their batch sizes, 'all' of both lists (default: MODEL ...)",
    )  # fmt: skip
    parser.add_argument("--target", choices=DESCRIBED, default=DESCRIBED[0], help=f"with --prepare: for which GPU (default {DESCRIBED[0]})")
    parser.add_argument("--budget", default="60s", help="with --prepare: time for each network (default 60s)")
    precision_help = f"with --prepare: to what products may round their operands (default {PLAIN})"
    parser.add_argument("--precision", choices=PRECISIONS, default=PLAIN, help=precision_help)
    imported_help = "with --prepare: kernel times that such a GPU has measured"
    parser.add_argument("--import-profiles", nargs="+", type=Path, default=[], metavar="FILE", help=imported_help)
    parser.add_argument("--seconds", type=float, default=540.0, help="ask for so long at most (default 540)")
    compiled_help = f"time networks as PyTorch, in a mode (default {MODES[0]}), and XLA compile them, and nothing else"
    parser.add_argument("--compiled", nargs="?", choices=MODES, const=MODES[0], default="", metavar="MODE", help=compiled_help)
    parser.add_argument("--on", choices=DESCRIBED, help="ask what needs no GPU of the recorded device")
    default = Path(os.environ.get("OUT", ".")) / "contact.jsonl"
    parser.add_argument("-o", "--output", type=Path, default=default, help="the answers (default $OUT/contact.jsonl)")
    parser.add_argument("--resume", type=Path, metavar="FOLDER", help=f"where earlier *.{RECORDS} lie: what is timed is not timed again")
    arguments = parser.parse_args(argv)
    if arguments.prepare:
        known = bench_models()
        timed = list(known) if arguments.jobs == ["all"] else arguments.jobs or []
        if unknown := [name for name in (*arguments.models, *timed) if name not in known]:
            parser.error(f"there are no networks {', '.join(unknown)}: python -m bench.models lists them")
        given = (arguments.target, arguments.budget, arguments.import_profiles, arguments.precision)
        return int(not prepare(arguments.folder, arguments.models, timed, *given))
    for earlier in arguments.resume.glob(f"*.{RECORDS}") if arguments.resume else ():
        shutil.copyfile(earlier, arguments.output.with_name(earlier.name))
    unpack_wheels(arguments.folder)
    return ask(arguments.folder, arguments.seconds, arguments.output, arguments.on, mode=arguments.compiled)


if __name__ == "__main__":
    raise SystemExit(main())
