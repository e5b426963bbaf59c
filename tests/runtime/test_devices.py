"""Test devices and targets: the libraries that a plan loads, and a whole optimisation on a device that needs none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import parser

from egraph.errors import LowerError
from egraph.optimize.estimated import open_session
from egraph.tensor import Implementation, Node, Program, Target, TensorType, format_fragment, placeholder, walk
from egraph.tensor.ops import apply
from egraph.tensor.ops.reference import evaluate
from lower.compile import CompileOptions, compile_program
from lower.targets import kinds, lowering
from runtime import Executable, Session
from runtime.devices import NAMES, device
from runtime.devices.cpu import device as cpu
from runtime.errors import ArtefactError, KernelError
from runtime.plan import COPY_STEP, Buffer, Plan, Port, Step
from tests.support.commands import module_command
from tests.support.lowering import GRAPHS, choose
from tests.support.paths import ROOT
from tests.support.plans import matmul_relu, save

MODEL = """<ir_version: 9, opset_import: ["" : 20]>
net (float[2,4,8,8] x) => (float[2,6,6,6] y, float[2,6,6,6] angle) <float[6,4,3,3] w, float[6,1,1] b> {
    c = Conv(x, w)
    biased = Add(c, b)
    a = Relu(biased)
    t = Tanh(a)
    y = Mul(t, a)
    angle = Atan(y)
}"""
WITHOUT_COMPILER = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("tvm", "tvm_ffi", "ziglang") or name.startswith(("runtime.devices.cpu", "lower.targets.cpu")):
            raise ImportError("blocked " + name)
sys.meta_path.insert(0, Block())
sys.argv[0] = "egraph.optimize"
import runpy
runpy.run_module("egraph.optimize", run_name="__main__")
"""


def model() -> onnx.ModelProto:
    """Return a small network with an operator that only onnxruntime runs."""
    proto = parser.parse_model(MODEL)
    generator = np.random.default_rng(0)
    for name, shape in (("w", (6, 4, 3, 3)), ("b", (6, 1, 1))):
        array = generator.standard_normal(shape, dtype=np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return proto


def test_every_device_has_a_target_and_every_target_a_device() -> None:
    assert set(NAMES) == set(kinds())
    for name in NAMES:
        assert device(name).name == name == lowering(name).target.kind


def test_the_whole_way_without_compiler_or_vendor_library(tmp_path: Path) -> None:
    """Import, saturate, find candidates, price, extract, compile, run, check and publish. No speed-up is claimed."""
    onnx.save(model(), tmp_path / "m.onnx")
    options = f"{tmp_path / 'm.onnx'} --device reference --threads 1 --budget 20s --database {tmp_path / 'p.sqlite'} --json"
    done = subprocess.run([sys.executable, "-c", WITHOUT_COMPILER, *options.split()], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert printed["status"] == "estimated" and printed["device"] == "reference | estimated"
    assert set(printed["speedup"].values()) == set(printed["latency_us"].values()) == {None}
    assert 0 < printed["estimated_us"]["optimized"] < printed["estimated_us"]["unoptimized"]
    assert printed["max_rel_err"] < 1e-5
    assert printed["kernels"]["reference"] > 0 and printed["kernels"]["opaque"] == 1
    assert printed["kernels"]["library"] == printed["kernels"]["eoperator"] == 0
    artefact = tmp_path / "m.einsat"
    assert {path.suffix for path in artefact.iterdir()}.isdisjoint({".so"})
    assert "Estimated:" in (artefact / "report.html").read_text(encoding="utf-8")
    for command in (f"runtime.run {artefact} --threads 1", f"egraph.inspect {artefact}"):
        done = module_command(*command.split())
        assert done.returncode == 0, done.stderr
        assert "is not timed" in done.stdout or "estimated" in done.stdout


@pytest.mark.parametrize("name", GRAPHS)
def test_the_reference_device_computes_what_the_operators_mean(name: str, tmp_path: Path) -> None:
    graph = GRAPHS[name]()
    target = lowering("reference").target
    program = choose(graph, "reference", target=target)
    plan = compile_program(program, tmp_path, CompileOptions(target=target))
    assert {step.kind for step in plan.steps} <= {"reference", COPY_STEP} and plan.device == "reference"
    generator = np.random.default_rng(0)
    feeds = {node.string("name"): generator.standard_normal(node.type.sizes, dtype=np.float32) for node in graph.inputs}
    leaves = {node: feeds[node.string("name")] for node in graph.inputs} | constants(program)
    with Session(tmp_path) as session:
        for got, want in zip(session.run(None, feeds), evaluate(graph.roots, leaves), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def constants(program: Program) -> dict[Node, np.ndarray]:
    """Return the values of a program's constants."""
    nodes = (node for node in walk(program.graph.roots) if node.op == "Constant")
    return {node: program.graph.tensors[node.string("digest")] for node in nodes}


def test_a_model_opens_on_the_reference_device() -> None:
    x = np.random.default_rng(1).standard_normal((2, 4, 8, 8), dtype=np.float32)
    host, reference = open_session(model()), open_session(model(), device="reference")
    for got, want in zip(reference.run(None, {"x": x}), host.run(None, {"x": x}), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    assert {step.kind for step in reference.plan.steps} == {"reference", "onnxruntime"}


def one_step(step: Step, dtype: str = "float32") -> Plan:
    """Return a plan of one step from x to y, each with four elements."""
    buffers = (Buffer(dtype, (4,), (1,), "input", "x"), Buffer(dtype, (4,), (1,), "output", "y"))
    ports = [Port(key, dtype, (4,), index) for index, key in enumerate("xy")]
    return Plan(buffers, (step,), (ports[0],), (ports[1],), 0, device="reference")


def test_large_integers_are_refused_and_not_rounded() -> None:
    fragment = apply("Transpose", placeholder(0, TensorType("int64", (4,))), perm=(0,))
    executable = Executable(one_step(Step("reference", "move", (0,), (1,), {"fragment": format_fragment(fragment)}), "int64"), {})
    small = np.array([0, 1, -(2**53) + 1, 2**53 - 1])
    np.testing.assert_array_equal(executable.run({"x": small})["y"], small)
    with pytest.raises(KernelError, match="not exact in float64"):
        executable.run({"x": small + 2})


def test_what_a_device_cannot_run_is_said() -> None:
    with pytest.raises(ArtefactError, match="knows no steps of kind 'onednn'"):
        Executable(one_step(Step("onednn", "first", (0,), (1,), {})), {})
    with pytest.raises(ArtefactError, match="cannot be read"):
        Executable(one_step(Step("reference", "first", (0,), (1,), {"fragment": "Relu("})), {})
    with pytest.raises(ArtefactError, match="no device 'abacus'"):
        device("abacus")
    with pytest.raises(LowerError, match="no target 'abacus'"):
        lowering("abacus")
    with pytest.raises(LowerError, match="no compiler for C"):
        lowering("reference").build(Path("tiny.c"))


LOADED = """
import sys
import numpy as np
from runtime import Session
with Session(sys.argv[1], threads=1) as session:
    session.run(None, {"x": np.zeros((4, 6), np.float32)})
    print("libdnnl" in open("/proc/self/maps").read(), any("onednn" in name for name in sys.modules))
"""


def test_onednn_is_loaded_where_a_plan_has_a_step_of_it(tmp_path: Path) -> None:
    made, weights = matmul_relu()
    buffers = (Buffer("float32", (4, 6), (6, 1), "input", "x"), Buffer("float32", (4, 6), (6, 1), "output", "y"))
    ports = [Port(key, "float32", (4, 6), index) for index, key in enumerate("xy")]
    copy = Plan(buffers, (Step(COPY_STEP, "copy", (0,), (1,), {}),), (ports[0],), (ports[1],), 0)
    for plan, arrays, loaded in ((made, weights, "True True"), (copy, {}, "False False")):
        folder = save(tmp_path / loaded[:4], plan, arrays)
        done = subprocess.run([sys.executable, "-c", LOADED, folder], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.stdout.strip() == loaded, done.stderr


@pytest.mark.parametrize(
    ("text", "kind", "precision"),
    [
        ("onednn.matmul", "library", "float32"), ("tvm", "generated", "float32"), ("view", "view", ""), ("opaque", "opaque", ""),
        ("reference", "reference", "float32"), ("cudnn.convolution@tf32", "library", "tf32"),
    ],
)  # fmt: skip
def test_an_implementation_is_its_text(text: str, kind: str, precision: str) -> None:
    found = Implementation.parse(text, Target("cuda"))
    assert (found.kind, found.text, found.target.precision if found.target else "") == (kind, text, precision)
    assert Implementation.parse(found.text, Target("cuda")) == found
    assert Implementation.parse(text) == found, "texts leave the target out"


def test_a_processor_is_called_what_the_system_calls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "cpuinfo", lambda: ("processor\t: 0", "model name\t: A  Processor: 7", "model name\t: Another"))
    assert cpu.processor_name() == "A Processor: 7"
    monkeypatch.setattr(cpu, "cpuinfo", lambda: ("processor\t: 0",))
    monkeypatch.setattr(cpu, "platform", SimpleNamespace(processor=lambda: "", machine=lambda: "aarch64"))
    assert cpu.processor_name() == "aarch64"
