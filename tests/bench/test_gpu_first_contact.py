"""The first contact's questions that need no GPU run on the recorded device; wrong outputs and broken artefacts are reported."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from bench import gpu_first_contact, networks
from bench.drawn_weights import hollow, leave_out, opened, write_feeds
from bench.inputs import feeds_for
from bench.networks import dcgan
from egraph.onnx import importer
from egraph.optimize.estimated import compile_options, estimated_program
from lower.compile import compile_program
from runtime import Session
from runtime.devices.cuda.recorded import RecordedCall, RecordedDriver
from runtime.plan import Buffer
from runtime.profile.jobs import Archive
from tests.runtime.test_devices import model
from tests.support.paths import ROOT

ALONE = """
import sys
allowed = ("numpy", "ml_dtypes", "onnxruntime", "cupy")
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("egraph", "lower", "verify", "onnx", "egglog", "tvm", "ortools", "z3", "cupy"):
            raise ImportError("blocked " + name)
sys.meta_path.insert(0, Block())
import runpy
runpy.run_module("bench.gpu_first_contact", run_name="__main__")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder as --prepare writes it, with one small network."""
    place = tmp_path / "small"
    target = "cuda:h100"
    program = estimated_program(importer.load(model()).graph, device=target)
    compile_program(program, place / "small.einsat", compile_options(1, target))
    x = np.random.default_rng(0).standard_normal((2, 4, 8, 8), dtype=np.float32)
    np.savez(place / gpu_first_contact.FEEDS, x=x)
    with Session(place / "small.einsat", on=target) as session:
        outputs = zip((each.name for each in session.get_outputs()), session.run(None, {"x": x}), strict=True)
        np.savez(place / gpu_first_contact.WANTED, **{name: gpu_first_contact.compared(output) for name, output in outputs})
    return tmp_path


def answers(path: Path) -> dict[str, dict[str, object]]:
    return {line["question"]: line for line in map(json.loads, path.read_text().splitlines())}


def test_what_needs_no_gpu_is_asked_of_the_recorded_device(folder: Path) -> None:
    assert gpu_first_contact.main([str(folder), "--on", "cuda:h100", "-o", str(folder / "out.jsonl")]) == 0
    found = answers(folder / "out.jsonl")
    assert list(found) == ["versions", "small: outputs"] and found["small: outputs"]["status"] == "ok"
    assert len(found["small: outputs"]["relative_errors"]) == 3  # type: ignore[arg-type]


def test_a_wrong_output_is_an_answer(folder: Path) -> None:
    with np.load(folder / "small" / gpu_first_contact.WANTED) as stored:
        wrong = {name: value + 1 for name, value in stored.items()}
    np.savez(folder / "small" / gpu_first_contact.WANTED, **wrong)
    assert gpu_first_contact.main([str(folder), "--on", "cuda:h100", "-o", str(folder / "out.jsonl")]) == 1
    assert answers(folder / "out.jsonl")["small: outputs"]["status"] == "failed"
    assert gpu_first_contact.main([str(folder), "--on", "cuda:h100", "--seconds", "-1", "-o", str(folder / "out.jsonl")]) == 0
    assert {line["status"] for line in answers(folder / "out.jsonl").values()} == {"skipped"}


def test_programs_for_tensor_cores_are_asked_beside_the_others_and_peers_once(folder: Path) -> None:
    """Programs that round operands have their own tolerance."""
    rounded = folder / f"small.16{gpu_first_contact.MARK}tf32"
    shutil.copytree(folder / "small", rounded)
    shutil.copytree(folder / "small", folder / "small.16")
    with np.load(folder / "small" / gpu_first_contact.WANTED) as stored:
        moved = {name: value + 4e-3 * np.abs(value).max() for name, value in stored.items()}
    np.savez(rounded / gpu_first_contact.WANTED, **moved)
    assert gpu_first_contact.main([str(folder), "--on", "cuda:h100", "-o", str(folder / "out.jsonl")]) == 0
    np.savez(folder / "small.16" / gpu_first_contact.WANTED, **moved)
    assert gpu_first_contact.main([str(folder), "--on", "cuda:h100", "-o", str(folder / "out.jsonl")]) == 1
    statuses = {question: line["status"] for question, line in answers(folder / "out.jsonl").items() if ": outputs" in question}
    assert statuses == {"small: outputs": "ok", "small.16: outputs": "failed", "small.16@tf32: outputs": "ok"}
    names = [name for name, _ in gpu_first_contact.questions(folder, None, folder / "out.jsonl", lambda: 1.0)]
    assert [name for name in names if name.endswith(": PyTorch")] == ["small: PyTorch", "small.16: PyTorch"]
    assert "small.16@tf32: times" in names and not any("@tf32" in name and "PyTorch" in name for name in names)


def test_what_is_compared_of_a_large_output_lies_everywhere() -> None:
    """Samples cover each tile of each row, because a stride of a power of two would sample the same column of all tiles."""
    elements = 1 << 22
    found = gpu_first_contact.compared(np.arange(elements, dtype=np.int64).reshape(-1, 4096))
    assert gpu_first_contact.MOST_COMPARED / 2 < found.size <= gpu_first_contact.MOST_COMPARED
    assert set(np.unique(found % 64)) == set(range(64)) and elements - found[-1] <= 17
    assert gpu_first_contact.compared(np.arange(6).reshape(2, 3)).tolist() == [0, 1, 2, 3, 4, 5]


def crash(*_: object) -> gpu_first_contact.Answer:
    os.kill(os.getpid(), signal.SIGTERM)
    return {}


def hang(*_: object) -> gpu_first_contact.Answer:
    time.sleep(600)
    return {}


@pytest.mark.parametrize(("fault", "code"), [(crash, -signal.SIGTERM), (hang, -signal.SIGKILL)])
def test_a_question_that_crashes_or_hangs_costs_its_own_answer(
    folder: Path, monkeypatch: pytest.MonkeyPatch, fault: Callable[..., gpu_first_contact.Answer], code: int
) -> None:
    monkeypatch.setattr(gpu_first_contact, "PATIENCE_SECONDS", 2.0)
    last = ("last", lambda: {"is": "asked"})
    asked = [("versions", dict), ("faulty", fault), last]
    monkeypatch.setattr(gpu_first_contact, "questions", lambda *_, **__: asked)
    assert gpu_first_contact.main([str(folder), "--on", "cuda:h100", "-o", str(folder / "out.jsonl")]) == 1
    given = answers(folder / "out.jsonl")
    assert [line["status"] for line in given.values()] == ["ok", "failed", "ok"] and given["last"]["is"] == "asked"
    assert f"code {int(code)} " in str(given["faulty"]["why"])


def test_kernels_are_timed_as_long_as_there_is_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A question that measures may run longer than other questions, and longer than the time that remains after it."""
    monkeypatch.setattr(gpu_first_contact, "PATIENCE_SECONDS", 0.2)

    def measure() -> gpu_first_contact.Answer:
        time.sleep(1.5)
        return {"records": 1}

    monkeypatch.setattr(gpu_first_contact, "questions", lambda *_, **__: [(f"jobs{gpu_first_contact.KERNEL_TIMES}", measure)])
    assert gpu_first_contact.main([str(folder), "--on", "cuda:h100", "--seconds", "2", "-o", str(folder / "out.jsonl")]) == 0
    assert answers(folder / "out.jsonl")["jobs: kernel times"]["records"] == 1


def test_packages_that_travel_as_wheels_can_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wheels").mkdir()
    with zipfile.ZipFile(tmp_path / "wheels" / "travelled-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("travelled_package.py", "VALUE = 7")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    gpu_first_contact.unpack_wheels(tmp_path)
    assert __import__("travelled_package").VALUE == 7
    assert os.environ["PYTHONPATH"].split(os.pathsep)[1:] == ["elsewhere"]


def test_on_a_bare_machine_without_a_gpu_it_is_said_once_what_is_missing(folder: Path) -> None:
    """If only numpy and the runtime can be imported, all questions to a GPU are skipped, and the exit code is 2."""
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(folder), "-o", str(folder / "out.jsonl")], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1 and "there is no GPU that can be asked: CuPy cannot be loaded" in done.stderr
    found = answers(folder / "out.jsonl")
    assert found["versions"]["status"] == "ok"
    assert found["device"]["status"] == "absent" and "CuPy cannot be loaded" in str(found["device"]["why"])
    others = [line for question, line in found.items() if question not in ("versions", "device")]
    assert len(others) == 11 and all(line["status"] == "skipped" for line in others)


@pytest.mark.usefixtures("forked_python")
def test_artefacts_and_kernels_are_prepared_through_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kernels of several networks and batches form one archive; a second call remakes nothing; files too large to travel are reported."""
    from bench.models import MODELS, BenchModel

    made: list[str] = []

    def making(name: str) -> Callable[[int], onnx.ModelProto]:
        def make(batch: int) -> onnx.ModelProto:
            made.append(f"{name} {batch}")
            network = model()
            network.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"  # the benchmark's models name this size
            return network

        return make

    for name, batch in (("tiny", 1), ("other", 2)):
        monkeypatch.setitem(MODELS, name, BenchModel(name, making(name), ("x:2,4,8,8",), batches=(batch,)))
    downloaded: list[Path] = []
    monkeypatch.setattr(gpu_first_contact, "download_wheels", downloaded.append)
    folder = tmp_path / "contact"
    arguments = [str(folder), "tiny", "--prepare", "--jobs", "tiny", "other", "--target", "cuda:a100", "--budget", "15s"]
    assert gpu_first_contact.main(arguments) == 0
    assert made == ["tiny 1", "tiny 1", "other 2"]
    files = {"tiny.einsat", gpu_first_contact.NETWORK, gpu_first_contact.FEEDS, gpu_first_contact.WANTED, gpu_first_contact.WORK}
    assert {path.name for path in (folder / "tiny").iterdir()} == files and downloaded == [folder / "wheels"]
    assert json.loads((folder / "tiny" / gpu_first_contact.WORK).read_text())["flops"] > 0
    assert not list(folder.rglob("*.safetensors")), "weights are drawn where they are needed"
    assert (folder / gpu_first_contact.JOBS).stat().st_size < gpu_first_contact.MOST_ARCHIVE_BYTES
    merged = Archive.open(folder / gpu_first_contact.JOBS)
    assert merged.origin.architecture == "sm_80" and len({job.problem for job in merged.jobs}) == len(merged.jobs) > 0
    assert all(Archive.open(path).jobs for path in (tmp_path / f"contact{gpu_first_contact.PARTS}").glob("*.zip"))
    assert f"{len(merged.jobs)} kernels to be timed, " in capsys.readouterr().out
    monkeypatch.setattr(gpu_first_contact, "MOST_CARRIED_BYTES", 1000)
    assert gpu_first_contact.main(arguments) == 1 and len(made) == 3
    assert "too much" in capsys.readouterr().err
    assert gpu_first_contact.main([str(folder), "--on", "cuda:a100", "-o", str(folder / "out.jsonl")]) == 0


def test_plans_that_this_version_does_not_have_are_left_to_the_library(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "small" / "small.einsat"
    numbers = [number for number, step in enumerate(json.loads((path / "plan.json").read_text())["steps"]) if step["kind"] == "cudnn"]
    usual = RecordedDriver.plan

    def planned(self: RecordedDriver, kind: str, spec: Mapping[str, Any], operands: Sequence[Buffer], output: Buffer) -> RecordedCall:
        unavailable = "cuDNN 1 does not offer engine 41" if kind == "cudnn" else ""
        return replace(usual(self, kind, spec, operands, output), unavailable_plan=unavailable)

    monkeypatch.setattr(RecordedDriver, "plan", planned)
    with Session(path, on="cuda:h100") as session:
        chosen = session.executable.implementations
    assert numbers and list(chosen) == numbers
    assert all("does not offer engine 41: the library's favourite runs" in text for text in chosen.values())


def test_a_whole_network_is_timed_in_each_precision_of_pytorch(tmp_path: Path) -> None:
    """A stand-in for the clock calls the function to capture; if PyTorch refuses a precision, only that precision has no time."""
    torch = pytest.importorskip("torch")
    write_network(dcgan(1), tmp_path)
    assert (tmp_path / gpu_first_contact.NETWORK).stat().st_size < 100_000
    types = []

    def timed(_: object, call: Callable[[], Sequence[Any]]) -> float:
        types.append(call()[0].dtype)
        if len(types) == 2:
            raise RuntimeError("refused")
        return float(len(types))

    answer = gpu_first_contact.torch_network(tmp_path, device="cpu", timed=timed)
    assert answer == {"replay_us": {"float32": 1.0, "tf32": "refused", "fp16": 3.0}, "roofline_share": {}}
    assert types == [torch.float32, torch.float32, torch.float16]


def test_torch_forgets_what_it_compiled_before_each_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a reset, PyTorch would run eagerly after eight networks in one process, and eager times would be recorded as compiled."""
    torch = pytest.importorskip("torch")
    write_network(dcgan(1), tmp_path)
    calls: list[str] = []

    def compiled(module: Callable[..., Any], mode: str) -> Callable[..., Any]:
        calls.append(mode)
        return module

    monkeypatch.setattr(torch, "compile", compiled)
    monkeypatch.setattr(torch.compiler, "reset", lambda: calls.append("reset"))
    answer = gpu_first_contact.torch_network(
        tmp_path, mode="default", precisions=["float32"], device="cpu", timed=lambda _, call: float(len(call()))
    )
    assert calls == ["reset", "default"] and answer["replay_us"] == {"float32": 1.0} and answer["mode"] == "default"


def test_a_device_without_tf32_keeps_what_tf32_does_not_hold() -> None:
    torch = pytest.importorskip("torch")
    torch.backends.cuda.matmul.allow_tf32 = False
    answer = gpu_first_contact.roundings("cpu")
    assert answer["product"] == answer["convolution"] == list(gpu_first_contact.MIDDLES)
    assert not torch.backends.cuda.matmul.allow_tf32, "what is asked next is asked in strict float32"


def write_network(network: onnx.ModelProto, folder: Path) -> None:
    """Write a network and its inputs as --prepare does."""
    onnx.save(hollow(network), folder / gpu_first_contact.NETWORK)
    write_feeds(folder / gpu_first_contact.FEEDS, feeds_for(network, {}))


def test_what_a_network_takes_at_least_is_a_share_of_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The least time is bound by arithmetic or by memory; an unknown device or a missing time gives no share."""
    work = gpu_first_contact.work_of(dcgan(1), ())
    assert work["flops"] > 1e8 and work["size_bytes"] > 1e7
    written = tmp_path / gpu_first_contact.WORK
    h100 = "NVIDIA H100 80GB HBM3"
    assert gpu_first_contact.least_us(tmp_path, "float32", h100) is None
    written.write_text(json.dumps({"flops": 66.9e9, "size_bytes": 1}))
    assert gpu_first_contact.least_us(tmp_path, "float32", h100) == pytest.approx(1000)
    assert gpu_first_contact.shares(tmp_path, {"float32": 4000.0, "tf32": "refused"}, h100) == {"float32": pytest.approx(0.25)}
    written.write_text(json.dumps({"flops": 1, "size_bytes": 3352e6}))
    assert gpu_first_contact.least_us(tmp_path, "tf32", h100) == pytest.approx(1000)
    assert gpu_first_contact.least_us(tmp_path, "fp16", h100) == pytest.approx(500)
    assert gpu_first_contact.shares(tmp_path, {"float32": 4000.0}, "NVIDIA RTX 1") == {}


@pytest.mark.parametrize("missing", ["jax", "gpu"])
def test_without_jax_or_its_gpu_xla_is_skipped_with_the_reason(missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def devices(_: str) -> list[object]:
        raise RuntimeError("Unknown backend: 'gpu' requested, but no platforms that are instances of gpu are present")

    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(devices=devices) if missing == "gpu" else None)
    monkeypatch.setitem(sys.modules, "bench.jax_model", SimpleNamespace(JaxModel=None))
    with pytest.raises(gpu_first_contact.Skipped, match="no platforms" if missing == "gpu" else "JAX and onnx are needed"):
        gpu_first_contact.xla_network(tmp_path)


@pytest.mark.parametrize("name", ["dcgan", "fsrcnn", "csrnet", "resnet18", "longformer_block"])
def test_xla_computes_what_onnxruntime_does(name: str, tmp_path: Path) -> None:
    jax = pytest.importorskip("jax")
    from bench.jax_model import JaxModel

    small = {"sequence": 256, "width": 64, "heads": 2, "window": 32} if name == "longformer_block" else {}
    network = getattr(networks, name)(2, **small)
    feeds = feeds_for(network, {})
    expected = onnxruntime.InferenceSession(network.SerializeToString()).run(None, feeds)
    built = JaxModel(network)
    for actual, right in zip(jax.jit(built)(built.weights, *(feeds[each] for each in built.inputs)), expected, strict=True):
        np.testing.assert_allclose(actual, right, rtol=1e-3, atol=1e-4 * np.abs(right).max())


@pytest.mark.parametrize("name", ["mobilenet_v2", "vit", "gpt2"])
@pytest.mark.parametrize("peer", ["jax", "torch"])
def test_peers_compute_networks_that_torch_exports(name: str, peer: str) -> None:
    """In half precision, all floats have that type, including results of casts to float."""
    jax, torch = pytest.importorskip("jax"), pytest.importorskip("torch")
    from bench.jax_model import JaxModel
    from bench.torch_model import TorchModel

    network = gpu_first_contact.bench_models()[name]
    model = network.make(1)
    feeds = network.feeds(model)
    (right,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    for kind, tolerance in ((np.float32, 1e-4), (np.float16, 1e-2)):
        given = {key: array.astype(kind) if array.dtype.kind == "f" else array for key, array in feeds.items()}
        if peer == "jax":
            built = JaxModel(model)
            weights = {key: array.astype(kind) for key, array in built.weights.items()}
            actual = np.asarray(jax.jit(built)(weights, *(given[each] for each in built.inputs))[0])
        else:
            module = TorchModel(model, floats=torch.float16 if kind == np.float16 else torch.float32)
            with torch.inference_mode():
                actual = module(*(torch.from_numpy(given[each]) for each in module.inputs))[0].numpy()
        assert actual.dtype == kind
        np.testing.assert_allclose(actual.astype(np.float32), right, rtol=0, atol=tolerance * np.abs(right).max())


def test_a_network_is_timed_as_xla_compiles_it_in_each_precision(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    write_network(dcgan(1), tmp_path)
    answer = gpu_first_contact.xla_network(tmp_path, platform_name="cpu")
    assert set(answer["queued_us"]) == set(answer["waited_us"]) == set(gpu_first_contact.PRECISIONS)
    assert all(isinstance(each, float) and each > 0 for each in answer["queued_us"].values())


def test_compiled_peers_are_asked_for_small_networks_first_and_for_float32_before_all_else(tmp_path: Path) -> None:
    """Compiling takes minutes, so if time runs out, large networks and precisions other than float32 are dropped first."""
    for name, flops in (("large", 1e9), ("small", 1e6)):
        (tmp_path / name / f"{name}.einsat").mkdir(parents=True)
        (tmp_path / name / gpu_first_contact.WANTED).touch()
        (tmp_path / name / gpu_first_contact.WORK).write_text(json.dumps({"flops": flops}))
    asked = gpu_first_contact.questions(tmp_path, None, tmp_path / "contact.jsonl", lambda: 1.0, mode="default")
    late = [name for name, _ in asked if "XLA" in name or "compiled" in name]
    kinds = [
        (network, kind, precision)
        for precision in gpu_first_contact.PRECISIONS for kind in ("XLA", "PyTorch, compiled") for network in ("small", "large")
    ]  # fmt: skip
    assert late == [f"{network}: {kind}, {precision}" for network, kind, precision in kinds]
    assert [name for name, _ in asked] == ["versions", "device", *late], "what needs no compiler was asked before"
    plain = gpu_first_contact.questions(tmp_path, None, tmp_path / "contact.jsonl", lambda: 1.0)
    assert not [name for name, _ in plain if "XLA" in name or "compiled" in name]


def drawn_artefact(path: Path, deviation: float, operator: str = "Sin") -> Path:
    """Write the artefact of y = sin(x w), which depends on the last bits of large weights, or of softmax(x w), which they saturate."""
    size, port = 256, onnx.helper.make_tensor_value_info
    weights = (np.random.default_rng(1).standard_normal((size, size)) * deviation).astype(np.float32)
    nodes = [onnx.helper.make_node("MatMul", ["x", "w"], ["t"]), onnx.helper.make_node(operator, ["t"], ["y"])]
    ports = [port(name, onnx.TensorProto.FLOAT, (4, size)) for name in "xy"]
    graph = onnx.helper.make_graph(nodes, "g", ports[:1], ports[1:], [onnx.numpy_helper.from_array(weights, "w")])
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    compile_program(estimated_program(importer.load(made).graph, device="cuda:h100"), path, compile_options(1, "cuda:h100"))
    leave_out(path)
    return path


def test_weights_are_drawn_so_that_outputs_do_not_hang_on_their_last_bits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    feeds = {"x": np.random.default_rng(2).standard_normal((4, 256)).astype(np.float32)}

    def settled(path: Path, own: Sequence[str] = ()) -> tuple[np.ndarray, float]:
        outputs = gpu_first_contact.settled_outputs(path, "cuda:h100", feeds, own, gpu_first_contact.TOLERANCES["float32"])
        (weights,) = opened(path).weights.values()
        with Session(opened(path), on="cuda:h100") as session:
            np.testing.assert_array_equal(outputs["y"], session.run(None, feeds)[0])
        return outputs["y"], float(weights.std())

    _, calm = settled(drawn_artefact(tmp_path / "calm", 0.1))
    assert abs(calm - 0.1) < 0.01, "nothing is changed without need"
    outputs, deviation = settled(drawn_artefact(tmp_path / "wild", 400.0))
    assert deviation < 101 and np.abs(outputs).max() > 0.5
    outputs, _ = settled(drawn_artefact(tmp_path / "saturated", 400.0, "Softmax"))
    assert len(np.unique(outputs)) > 4, "more than ones and zeros"
    assert not capsys.readouterr().err
    own = list(opened(drawn_artefact(tmp_path / "own", 400.0)).weights)
    assert settled(tmp_path / "own", own)[1] > 390, "the model's own weights are its own"
    assert "move with the last bits" in capsys.readouterr().err
    monkeypatch.setattr(gpu_first_contact, "SHRINKINGS", 1)
    assert settled(drawn_artefact(tmp_path / "wilder", 1e5))[1] > 2e4
    assert "move with the last bits" in capsys.readouterr().err, "what is returned is of the weights that are left, as above"
