"""The engines that a model is timed in, each behind one function: (model file, feeds, threads) -> run().

    python -m bench.engines ENGINE MODEL FEEDS.npz THREADS SETTLE_SECONDS

serves one engine in a process of its own. It prints how long its last warm-up took, then reads one number of runs per line and answers with
their nanoseconds as JSON, once its threads have gone to sleep or SETTLE_SECONDS are over. The processes are separate because thread pools
that spin in one process would slow each other down.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from egraph.optimize.check_noise import open_onnxruntime
from egraph.optimize.race import available_bytes
from egraph.policy import RacePolicy
from runtime.cores import settle

if TYPE_CHECKING:
    import onnx

WARM_UPS = 3
LONG_RUN_NS = 1_000_000_000
"""An engine whose run takes this long is warmed up by two runs, and every later run counts."""
ARENA_VALUES = 4
"""The multiple of a model's largest value that onnxruntime's arena may hold, at least."""
RIGHT = 1e-3
"""The largest accepted difference, relative or absolute, between the outputs of compiled and uncompiled torch."""
ROUNDED_RIGHT = 0.1
"""The same if torch rounds to bf16: not a measure of accuracy, but a limit that tells rounding from a wrong result."""
Run = Callable[[], Sequence[np.ndarray]]
Feeds = Mapping[str, np.ndarray]


def largest_value_bytes(model: Path) -> int:
    """Return the size of the largest intermediate result whose shape onnx can infer."""
    import onnx

    try:
        inferred = onnx.shape_inference.infer_shapes(onnx.load(str(model), load_external_data=False)).graph.value_info
    except (ValueError, onnx.shape_inference.InferenceError):  # larger than a protobuf
        return 0
    types = [value.type.tensor_type for value in inferred]
    sizes = [[dim.dim_value for dim in each.shape.dim] for each in types if each.elem_type == onnx.TensorProto.FLOAT]
    return max((4 * math.prod(shape) for shape in sizes), default=0)


def onnxruntime_engine(model: Path, feeds: Feeds, threads: int) -> Run:
    """onnxruntime with all graph optimisations (its default), without its arena if that would fill the memory.

    Its sums of products of bytes are exact. By default they are exact on few processors only; sums that saturate give other results.
    """
    arena = ARENA_VALUES * largest_value_bytes(model) <= RacePolicy.memory_share * available_bytes()
    session = open_onnxruntime(model, threads, arena=arena)
    return lambda: list(session.run(None, feeds))


def openvino_engine(model: Path, feeds: Feeds, threads: int) -> Run:
    """OpenVINO, latency hint, float32."""
    return _openvino(model, feeds, threads, INFERENCE_PRECISION_HINT="f32")


def openvino_default_engine(model: Path, feeds: Feeds, threads: int) -> Run:
    """OpenVINO, latency hint, in the precision that it chooses for the processor."""
    return _openvino(model, feeds, threads)


def _openvino(model: Path, feeds: Feeds, threads: int, **more: str) -> Run:
    import openvino

    core = openvino.Core()
    network = core.read_model(str(model))
    network.reshape({port.any_name: list(feeds[port.any_name].shape) for port in network.inputs})
    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", **more}
    request = core.compile_model(network, "CPU", settings).create_infer_request()
    return lambda: list(request.infer(feeds).values())


def folded(model: Path, feeds: Feeds) -> onnx.ModelProto:
    """Return a model for inputs of these sizes, with constants folded by onnxruntime: converters that know no sizes can translate it."""
    import onnx
    import onnxruntime

    loaded = onnx.load(str(model))
    for value in loaded.graph.input:
        for dim, size in zip(value.type.tensor_type.shape.dim, feeds[value.name].shape, strict=True):
            dim.dim_value = size
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = str(Path(folder) / "folded.onnx")
        onnxruntime.InferenceSession(loaded.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return onnx.load(options.optimized_model_filepath)


def torch_compile_engine(model: Path, feeds: Feeds, threads: int) -> Run:
    """torch.compile (inductor, max-autotune off) over the nodes as torch functions, after onnxruntime has folded constants.

    Weights are frozen and patterns matched if the results then agree with uncompiled torch; otherwise one or both are switched off.
    """
    return _torch_compile(model, feeds, threads, RIGHT)


def torch_autocast_engine(model: Path, feeds: Feeds, threads: int) -> Run:
    """torch.compile under autocast: products and convolutions round their operands to bf16, as torch chooses."""
    return _torch_compile(model, feeds, threads, ROUNDED_RIGHT, autocast=True)


def _torch_compile(model: Path, feeds: Feeds, threads: int, right: float, *, autocast: bool = False) -> Run:
    import torch

    from bench.torch_model import TorchModel

    torch.set_num_threads(threads)
    loaded = folded(model, feeds)
    eager = TorchModel(loaded).eval()
    operands = [torch.from_numpy(np.array(feeds[i.name])) for i in loaded.graph.input]
    expected = _torch_results(eager, operands, autocast=False)
    for torch._inductor.config.freezing, torch._inductor.config.pattern_matcher in itertools.product((True, False), repeat=2):
        torch._dynamo.reset()
        run = partial(_torch_results, torch.compile(eager), operands, autocast)
        try:
            compiled = run()
        except RuntimeError:  # torch 2.13 fails when it looks for attention or prepares a transposed convolution
            continue
        if all(np.allclose(actual, reference, rtol=right, atol=right) for actual, reference in zip(compiled, expected, strict=True)):
            break  # with frozen weights, PP-OCR's recogniser computes something else
    return run


def _torch_results(module: Callable[..., Sequence[Any]], operands: Sequence[Any], autocast: bool) -> Sequence[np.ndarray]:
    """Return a torch module's results; numpy has no bf16."""
    import torch

    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        return [(result.float() if result.dtype == torch.bfloat16 else result).numpy() for result in module(*operands)]


def tvm_engine(model: Path, feeds: Feeds, threads: int) -> Run:
    """TVM's relax pipeline without tuning, LLVM for this processor, after onnxruntime has folded constants."""
    import os

    os.environ["TVM_NUM_THREADS"] = str(threads)
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    loaded = folded(model, feeds)
    module = from_onnx(loaded, shape_dict={name: list(value.shape) for name, value in feeds.items()})
    module = relax.transform.DecomposeOpsForInference()(module)
    target = tvm.target.Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu(), "num-cores": threads})
    with target:
        module = relax.get_pipeline("zero")(module)
    machine = relax.VirtualMachine(tvm.compile(module, target=target), tvm.cpu())
    operands = [tvm.runtime.tensor(np.array(feeds[i.name])) for i in loaded.graph.input]

    def run() -> Sequence[np.ndarray]:
        result = machine["main"](*operands)
        return [tensor.numpy() for tensor in ([result] if hasattr(result, "numpy") else result)]

    return run


def einsat_engine(model: Path, feeds: Feeds, threads: int) -> Run:
    """Our runtime on an artefact folder."""
    from runtime.session import Session

    session = Session(model, threads=threads)
    return lambda: session.run(None, feeds)


WITHOUT_DERIVATIONS = "einsat_rules_only"
"""Our own optimiser with ``--no-derivations``: not a peer, but shows what derivations add."""
OURS = ("einsat", WITHOUT_DERIVATIONS)
OPENVINO_DEFAULT = "openvino_default"
TORCH_AUTOCAST = "torch_compile_bf16"
ROUNDING = (OPENVINO_DEFAULT, TORCH_AUTOCAST)
"""OpenVINO by default and torch under autocast may round to bf16. Their times need errors beside them: only bench.precision times them."""

ENGINES: Mapping[str, Callable[[Path, Feeds, int], Run]] = {
    "einsat": einsat_engine,
    WITHOUT_DERIVATIONS: einsat_engine,
    "onnxruntime": onnxruntime_engine,
    "openvino": openvino_engine,
    OPENVINO_DEFAULT: openvino_default_engine,
    "torch_compile": torch_compile_engine,
    TORCH_AUTOCAST: torch_autocast_engine,
    "tvm": tvm_engine,
}


def outputs_file(folder: Path, engine: str) -> Path:
    """Return the file of an engine's outputs, which are compared."""
    return folder / f"{engine}.outputs.npz"


def serve(engine: str, model: Path, feeds_file: Path, threads: int, settle_seconds: float) -> None:
    """Prepare the engine, print how long its last warm-up took, then time as many runs as each line asks for."""
    answers = sys.stdout
    sys.stdout = sys.stderr  # what an engine prints must not be read as an answer
    with np.load(feeds_file) as loaded:
        feeds = {name: loaded[name] for name in loaded.files}
    run = ENGINES[engine](model, feeds, threads)
    for number in range(WARM_UPS):
        start = time.perf_counter_ns()
        outputs = run()
        warm_up_ns = time.perf_counter_ns() - start
        if number and warm_up_ns >= LONG_RUN_NS:  # some engines compile in the first warm-up
            break
    named = {f"output{i}": np.asarray(value) for i, value in enumerate(outputs)}
    np.savez(outputs_file(feeds_file.parent, engine), allow_pickle=True, **named)
    del outputs, named
    settle(settle_seconds)
    print(json.dumps([warm_up_ns]), file=answers, flush=True)
    for line in sys.stdin:
        times: list[int] = []
        for _ in range(int(line)):
            start = time.perf_counter_ns()
            run()
            times.append(time.perf_counter_ns() - start)
        settle(settle_seconds)
        print(json.dumps(times), file=answers, flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
