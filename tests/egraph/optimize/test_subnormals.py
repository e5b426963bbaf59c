"""Subnormal numbers count as zero in all threads of a step unless the plan keeps them; the caller's state does not change."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from egraph.optimize.arguments import parse, to_options
from egraph.optimize.describe import subnormal_count
from egraph.optimize.options import Options
from egraph.optimize.race import Contender, race_key, recorded_race
from egraph.optimize.records import memo_path
from lower.compile import MANIFEST, PLAN
from runtime import Session
from runtime.cache import cache_folder
from runtime.devices.cpu.native import build as native_build
from runtime.errors import KernelError
from runtime.executable import Executable
from runtime.feeds import FeedSpec
from runtime.opaque import FLUSH_ENTRY, OpaqueStep
from runtime.plan import Plan, Port, Step
from runtime.profile import Database, RaceTime
from tests.support.commands import command
from tests.support.paths import ROOT
from tests.support.plans import buffer, model, opaque, plan, save

ELEMENTS = 1 << 16
MULTIPLY = {"primitive": "binary", "arguments": {"src0": 0, "src1": 1}, "algorithm": "mul"}
CONTROL = """
#include <stdint.h>
__attribute__((visibility("default"))) uint64_t control(void) {
#if defined(__x86_64__)
    return __builtin_ia32_stmxcsr();
#elif defined(__aarch64__)
    uint64_t value;
    __asm__ volatile("mrs %0, fpcr" : "=r"(value));
    return value;
#endif
}
"""
KERNELS = """
#include <stdint.h>
typedef struct { int32_t type_index; uint32_t zero; void *pointer; } Value;
typedef struct { void *sync; int32_t num_task; } Environment;
__attribute__((weak, visibility("default"))) int (*__TVMBackendParallelLaunch)(int (*)(int, const Environment *, void *), void *, int) = 0;
static float *data(const Value *a) { return *(float **)a->pointer; }
static int body(int task, const Environment *e, void *p) {
    const Value *a = p;
    for (int i = task; i < ELEMENTS; i += e->num_task) data(a + 2)[i] = data(a)[i] * data(a + 1)[i];
    return 0;
}
__attribute__((visibility("default"))) int __tvm_ffi_multiply(void *self, const Value *a, int32_t n, Value *r) {
    return __TVMBackendParallelLaunch(body, (void *)a, 0);
}
__attribute__((visibility("default"))) int __tvm_ffi_fail(void *self, const Value *a, int32_t n, Value *r) { return -3; }
"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("kernels") / "kernels.c"
    source.write_text(KERNELS.replace("ELEMENTS", str(ELEMENTS)))
    return native_build.build(source, extra_flags=("-Wl,-z,lazy",))


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function that reads the calling thread's floating-point control register."""
    source = tmp_path_factory.mktemp("control") / "control.c"
    source.write_text(CONTROL)
    read = ctypes.CDLL(str(native_build.build(source))).control
    read.restype = ctypes.c_uint64
    return read


MODEL = model(
    [helper.make_node("Mul", ["a", "b"], ["c"])],
    [helper.make_tensor_value_info(name, TensorProto.FLOAT, [ELEMENTS]) for name in "ab"],
    [helper.make_tensor_value_info("c", TensorProto.FLOAT, [ELEMENTS])],
)
STEPS = {
    "library": Step("onednn", "m", (0, 1), (2,), MULTIPLY),
    "generated": Step("tvm", "m", (0, 1), (2,), {"symbol": "multiply"}),
    "onnxruntime": opaque("0", (0, 1), (2,), ["a", "b"], ["c"]),
}


def executable(kind: str, kernels: Path, *, threads: int, keep: bool, symbol: str = "") -> Executable:
    """Return an executable of y = x w, elementwise, with one kind of step."""
    shape = (ELEMENTS,)
    buffers = [buffer(shape, "input", "x"), buffer(shape, "input", "w"), buffer(shape, "output", "y")]
    step = replace(STEPS[kind], spec={"symbol": symbol}) if symbol else STEPS[kind]
    ports = [Port(name, "float32", shape, number) for number, name in enumerate("xwy")]
    made = replace(plan(buffers, [step], ports[:2], ports[2:]), keep_subnormals=keep)
    return Executable(made, {}, kernels=kernels, threads=threads, models=lambda name: MODEL)


def flushes(step: OpaqueStep) -> bool:
    """Return whether the session asks onnxruntime to take subnormal numbers for zero."""
    try:
        return bool(step.session.get_session_options().get_session_config_entry(FLUSH_ENTRY) == "1")
    except RuntimeError:  # the session has no such entry
        return False


TINY = {"an operand": (np.float32(3e-40), np.float32(1.0)), "the result": (np.float32(1e-20), np.float32(3e-20))}


def feeds(which: str) -> dict[str, np.ndarray]:
    x, w = TINY[which]
    return {"x": np.full(ELEMENTS, x), "w": np.full(ELEMENTS, w)}


@pytest.mark.parametrize("which", TINY)
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("kind", STEPS)
def test_every_thread_flushes_unless_the_plan_keeps(kernels: Path, control: Any, kind: str, threads: int, which: str) -> None:
    """Steps are elementwise, so that every thread's share shows; runs alternate, so that the threads have to change over."""
    values, before = feeds(which), control()
    exact = values["x"] * values["w"]
    assert np.all(exact != 0.0), "this thread keeps subnormal numbers"
    for keep in (False, True, False):
        one = executable(kind, kernels, threads=threads, keep=keep)
        for opaque_step in one._opaque.values():
            assert flushes(opaque_step) == (not keep)
        got = one.run(values)["y"]
        np.testing.assert_array_equal(got, exact if keep else np.zeros_like(exact))
        assert control() | 0x3F == before | 0x3F, "but for the exceptions that were seen (numpy's own)"


def test_the_caller_keeps_its_state_after_a_failing_kernel(kernels: Path, control: Any) -> None:
    failing = executable("generated", kernels, threads=2, keep=False, symbol="fail")
    before = control()
    with pytest.raises(KernelError, match="status -3"):
        failing.run(feeds("the result"))
    assert control() == before


@pytest.mark.parametrize("kind", STEPS)
def test_a_plan_that_keeps_them_does_so_for_a_caller_that_flushes(kernels: Path, control: Any, kind: str) -> None:
    """The plan decides, whoever runs it; afterwards the caller flushes as before."""
    one, values = executable(kind, kernels, threads=2, keep=True), feeds("the result")
    exact = values["x"] * values["w"]
    before = one.arithmetic.set_subnormals(keep=False)
    try:
        state = control()
        got = one.run(values)["y"]
        after = control()
    finally:
        one.arithmetic.restore(before)
    np.testing.assert_array_equal(got, exact)
    assert after | 0x3F == state | 0x3F != before | 0x3F


def test_threads_with_sessions_of_both_kinds_do_not_disturb_each_other(kernels: Path) -> None:
    """Sessions share the team of threads, which changes its mode from region to region."""
    values, wrong = feeds("the result"), []
    exact = values["x"] * values["w"]

    def work(kind: str, *, keep: bool) -> None:
        one = executable(kind, kernels, threads=2, keep=keep)
        for _ in range(100):
            if not np.array_equal(one.run(values)["y"], exact if keep else np.zeros_like(exact)):
                wrong.append((kind, keep))

    workers = [threading.Thread(target=work, args=(kind,), kwargs={"keep": keep}) for kind in STEPS for keep in (False, True)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


FIRST_SESSION = """
import sys
import numpy as np
from pathlib import Path
from tests.egraph.optimize.test_subnormals import executable, feeds
from runtime.devices.cpu import dispatcher
values = feeds("the result")
one = executable("onnxruntime", Path(), threads=2, keep=False)
assert np.all(values["x"] * values["w"] != 0), "opening the session changed this thread"
assert not one.run(values)["y"].any()
assert np.all(values["x"] * values["w"] != 0), "running it changed this thread"
"""


def test_the_first_session_of_onnxruntime_in_a_process_does_not_change_the_caller_for_good() -> None:
    done = subprocess.run([sys.executable, "-c", FIRST_SESSION], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stderr


FOREIGN_OPENMP = """
import ctypes, sys
import numpy as np
from pathlib import Path
ctypes.CDLL("libgomp.so.1", ctypes.RTLD_GLOBAL)  # as PyTorch loads its own
from tests.egraph.optimize.test_subnormals import executable, feeds
values = feeds("the result")
for run in range(100):
    keep = run % 2 == 0
    result = executable("generated", Path(sys.argv[1]), threads=2, keep=keep).run(values)["y"]
    assert np.all((result != 0) == keep), (run, keep)
"""


def test_an_openmp_that_all_libraries_of_the_process_see_does_not_take_our_regions(kernels: Path) -> None:
    """Its workers keep the floating-point control they started with, and a forked child would wait for them without end."""
    done = subprocess.run([sys.executable, "-c", FOREIGN_OPENMP, str(kernels)], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stderr


RIVAL = """
import sys
import numpy as np
from egraph.optimize.race import Contender, engine_for
from runtime.worker import ENGINES
x = np.full(100, 1e-20, np.float32)
engine = engine_for(Contender("onnxruntime", "", "onnxruntime", sys.argv[1], 1 << 20, sys.argv[2] == "keep"), float(sys.argv[3]))
ENGINES[engine](sys.argv[1], 1, lambda: {"x": np.ones(5, np.float32)})(1)
print("keep" if np.all(x * x != 0) else "flush")
"""


@pytest.mark.parametrize(("what", "most_bytes"), [("keep", 1e9), ("flush", 1e9), ("flush", 1.0)])
def test_programs_race_with_an_onnxruntime_that_does_the_same(tmp_path: Path, what: str, most_bytes: float) -> None:
    """The first session of a process sets the mode of the thread that opens it, which is visible here."""
    path = write_roots(tmp_path / "m.onnx")
    arguments = [sys.executable, "-c", RIVAL, str(path), what, str(most_bytes)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.stdout.strip() == what, done.stderr


def test_weights_that_are_subnormal_cost_little() -> None:
    """Subnormal weights cost little.

    Processors differ: unless such weights count as zero, this takes 100 times as long on some, and no longer on others.
    """
    size, random = 256, np.random.default_rng(0)
    buffers = [buffer((size, size), "input", "x"), buffer((size, size), "weight", "w"), buffer((size, size), "output", "y")]
    step = Step("onednn", "product", (0, 1), (2,), {"primitive": "matmul", "arguments": {"src": 0, "weights": 1}, "packed": ["weights"]})
    ports = [Port("x", "float32", (size, size), 0)], [Port("y", "float32", (size, size), 2)]
    normal = random.standard_normal((size, size), dtype=np.float32)
    subnormal = np.where(random.random((size, size)) < 0.5, normal * np.float32(1e-39), normal)
    assert 0.4 * size * size < subnormal_count([subnormal]) < 0.6 * size * size and subnormal_count([normal]) == 0
    runs = [Executable(plan(buffers, [step], *ports), {"w": weights}, threads=2) for weights in (normal, subnormal)]
    for one in runs:
        one.run({"x": normal})
    rounds = [[min(one.run_native(5)) for one in runs] for _ in range(10)]
    assert min(slow for _, slow in rounds) < 4 * min(fast for fast, _ in rounds)


def test_a_session_does_what_its_plan_says_and_an_old_plan_keeps_them(tmp_path: Path) -> None:
    shape = (ELEMENTS,)
    buffers = [buffer(shape, "input", "x"), buffer(shape, "weight", "w"), buffer(shape, "output", "y")]
    made = plan(buffers, [STEPS["library"]], [Port("x", "float32", shape, 0)], [Port("y", "float32", shape, 2)])
    values = feeds("an operand")
    for name, written, kept in (("a", made, False), ("b", replace(made, keep_subnormals=True), True)):
        assert Plan.from_json(written.to_json()) == written
        with Session(save(tmp_path / name, written, {"w": values["w"]}), threads=2) as session:
            assert bool(session.run(None, {"x": values["x"]})[0].any()) == kept
    old = json.loads(made.to_json())
    del old["keep_subnormals"]
    assert Plan.from_json(json.dumps(old)).keep_subnormals


@pytest.mark.parametrize(("given", "kept"), [((), False), (("--keep-subnormals",), True), (("--allow", "exact"), True)])
def test_the_options_that_keep_them(given: tuple[str, ...], kept: bool) -> None:
    options = to_options(parse(["m.onnx", *given]))
    assert options.is_exact_below_normal == kept == options.stored()["keep_subnormals"]
    assert (memo_path("1", "here", options) == memo_path("1", "here", to_options(parse(["m.onnx"])))) == (not kept)
    assert Options(Path("m.onnx"), allow="exact").is_exact_below_normal


def test_times_of_whole_programs_with_and_without_are_filed_apart() -> None:
    specs = (FeedSpec("x", "float32", (4,)),)
    contenders = {keep: [Contender("one", "digest", "einsat", "", 0, keep)] for keep in (True, False)}
    database = Database.in_memory()
    database.put(RaceTime("d", race_key(contenders[True], specs), "digest", "ok", (3.0,)))
    found = [recorded_race(contenders[keep], specs, database=database, device="d", frozen=False) for keep in (True, False)]
    assert found[0] is not None and found[1] is None


def write_roots(path: Path, *, exponent: int = -39) -> Path:
    """Write y = log(w x^2 + w), which is finite only if subnormal numbers are kept."""
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["s"]),
        helper.make_node("Mul", ["s", "w"], ["t"]),
        helper.make_node("Add", ["t", "w"], ["u"]),
        helper.make_node("Log", ["u"], ["y"]),
    ]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [5]) for name in "xy"]
    weights = numpy_helper.from_array(np.array([1, 2, 3, 4, 5], np.float32) * np.float32(10.0**exponent), "w")
    graph = helper.make_graph(nodes, "roots", ports[:1], ports[1:], [weights])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def _optimised(model: Path, out: Path, *more: str) -> tuple[Mapping[str, Any], Plan]:
    done = command(
        model, "-o", out, "--threads", 1, "--budget", "5s", "--finalists", 1, "--database", out.parent / "p.sqlite",
        "--no-derivations", "--json", "-q", *more, EINSAT_CACHE=str(cache_folder()),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    artefact = next(out.glob("*.einsat"))
    manifest = json.loads((artefact / MANIFEST).read_text())
    made = Plan.from_json((artefact / PLAN).read_text())
    assert manifest["options"]["keep_subnormals"] == manifest["run"]["keeps_subnormals"] == made.keep_subnormals
    told = (artefact / "report.html").read_text()
    assert ("weights are) are kept" in told) == made.keep_subnormals != ("weights are) count as zero" in told)
    return json.loads(done.stdout), made


def test_a_model_that_is_nothing_without_them_keeps_them(tmp_path: Path) -> None:
    """The check fails with zeros, so the artefact keeps subnormal numbers and reports it; the same command again does the same."""
    path = write_roots(tmp_path / "m.onnx")
    for _ in range(2):
        printed, made = _optimised(path, tmp_path / "out")
        assert made.keep_subnormals and printed["subnormals"] == {"kept": True, "weights": 5}
        assert any("subnormal numbers are kept" in note for note in printed["check_notes"])
        with Session(tmp_path / "out" / "m.einsat", threads=1) as session:
            assert np.isfinite(session.run(None, {"x": np.ones(5, np.float32)})[0]).all()
    printed, made = _optimised(path, tmp_path / "kept", "--keep-subnormals")
    assert made.keep_subnormals and not printed["check_notes"]


def test_a_model_with_a_few_has_zeros_for_them(tmp_path: Path) -> None:
    """In y = x w, subnormal results are below the tolerance, so they may be zero."""
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [64]) for name in "xy"]
    values = np.where(np.arange(64) % 4 == 0, np.float32(2e-40), np.float32(1.5))
    weights = [numpy_helper.from_array(values, "w")]
    graph = helper.make_graph([helper.make_node("Mul", ["x", "w"], ["y"])], "few", ports[:1], ports[1:], weights)
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    x = np.arange(1, 65, dtype=np.float32)
    for name, more in (("out", ()), ("exact", ("--allow", "exact"))):
        printed, made = _optimised(path, tmp_path / name, *more)
        assert printed["subnormals"] == {"kept": bool(more), "weights": 16} and made.keep_subnormals == bool(more)
        with Session(tmp_path / name / "m.einsat", threads=2) as session:
            got = session.run(None, {"x": x})[0]
        np.testing.assert_array_equal(got, x * values if more else np.where(values < 1.0, np.float32(0.0), x * values))
