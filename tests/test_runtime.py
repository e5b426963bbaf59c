"""Sessions, dispatcher and opaque steps, through hand-written plans and artefacts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from runtime import Session, openmp
from runtime.errors import ArtefactError, ExecutionError, InvalidArgument, KernelError, LibraryMissing
from runtime.executable import Executable
from runtime.native import build as native_build
from runtime.plan import Buffer, Plan, Port, Step
from runtime.run import main
from runtime.weights import Weights
from tests.plans import buffer, plan, save

RANDOM = np.random.default_rng(3)
ROOT = Path(__file__).resolve().parent.parent
RELU = {"primitive": "eltwise", "arguments": {"src": 0}, "algorithm": "relu"}

KERNELS = """
#include <stdint.h>
typedef struct { int32_t type_index; uint32_t zero; void *pointer; } Value;
typedef struct { void *sync; int32_t num_task; } Environment;
__attribute__((weak, visibility("default"))) int (*__TVMBackendParallelLaunch)(int (*)(int, const Environment *, void *), void *, int) = 0;
int TVMFFIErrorSetRaisedFromCStrParts(const char *, const char **, int); /* never called, never resolved */
static float *data(const Value *a) { return *(float **)a->pointer; }
static int body(int task, const Environment *e, void *p) {
    const Value *a = p;
    for (int i = task; i < 1000; i += e->num_task) data(a + 2)[i] = data(a)[i] * data(a + 1)[i] + e->num_task;
    return 0;
}
__attribute__((visibility("default"))) int __tvm_ffi_multiply(void *self, const Value *a, int32_t n, Value *r) {
    if (n != 3 || a->type_index != 7) return TVMFFIErrorSetRaisedFromCStrParts("", 0, 0);
    return __TVMBackendParallelLaunch(body, (void *)a, 0);
}
__attribute__((visibility("default"))) int __tvm_ffi_fail(void *self, const Value *a, int32_t n, Value *r) { return -3; }
"""


def draw(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape, dtype=np.float32)


def matmul_relu(rows: int = 4) -> tuple[Plan, dict[str, np.ndarray]]:
    """y = relu(x w), with x w in the arena."""
    buffers = [buffer((rows, 6), "input", "x"), buffer((6, 5), "weight", "w"), buffer((rows, 5), "arena"), buffer((rows, 5), "output", "y")]
    multiply = Step(
        "onednn", "multiply", (0, 1), (2,), {"primitive": "matmul", "arguments": {"src": 0, "weights": 1}, "packed": ["weights"]}
    )
    steps = [multiply, Step("onednn", "activate", (2,), (3,), RELU)]
    made = plan(buffers, steps, [Port("x", "float32", (rows, 6), 0)], [Port("y", "float32", (rows, 5), 3)])
    return made, {"w": draw(6, 5)}


def model(nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto]) -> bytes:
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return bytes(proto.SerializeToString())


def opaque(name: str, inputs: tuple[int, ...], outputs: tuple[int, ...], input_names: list[str], output_names: list[str]) -> Step:
    return Step(
        "onnxruntime", name, inputs, outputs, {"model": f"opaque/{name}.onnx", "input_names": input_names, "output_names": output_names}
    )


@pytest.fixture
def session(tmp_path: Path) -> Session:
    made, weights = matmul_relu()
    return Session(save(tmp_path / "m.einsat", made, weights), threads=1)


def expected(session: Session, x: np.ndarray) -> np.ndarray:
    return np.maximum(x @ session.artefact.weights["w"], 0)


def test_session_mirrors_onnxruntime(session: Session, tmp_path: Path) -> None:
    x = draw(4, 6)
    [y] = session.run(None, {"x": x})
    np.testing.assert_allclose(y, expected(session, x), rtol=1e-5, atol=1e-5)
    [port] = session.get_inputs()
    assert (port.name, port.type, port.shape) == ("x", "tensor(float)", [4, 6])
    assert [p.name for p in session.get_outputs()] == ["y"]
    assert session.get_providers() == ["EinsatExecutionProvider"]
    (tmp_path / "m.opt.onnx").write_bytes(b"")
    np.testing.assert_array_equal(Session(tmp_path / "m.opt.onnx", threads=1).run(["y"], {"x": x})[0], y)


def test_outputs_are_fresh_and_inputs_untouched(session: Session) -> None:
    x, other = draw(4, 6), draw(4, 6)
    before = x.copy()
    [first] = session.run(None, {"x": x})
    kept = first.copy()
    [second] = session.run(None, {"x": other})
    session.run_native(3)
    np.testing.assert_array_equal(first, kept)
    np.testing.assert_array_equal(x, before)
    assert not np.shares_memory(first, second)
    target = np.empty_like(first)
    [got] = session.run(None, {"x": x}, out={"y": target})
    assert got is target
    np.testing.assert_array_equal(target, kept)


def test_strided_dlpack_and_output_interchange(session: Session) -> None:
    wide = draw(8, 12)
    strided = wide[::2, ::2]
    assert not strided.flags.c_contiguous
    [y] = session.run(None, {"x": strided})
    np.testing.assert_allclose(y, expected(session, strided), rtol=1e-5, atol=1e-5)

    class Foreign:
        """Only DLPack, as a tensor of another framework."""

        def __init__(self, array: np.ndarray) -> None:
            self.array = array

        def __dlpack__(self, **options: object) -> object:
            return self.array.__dlpack__(**options)  # type: ignore[arg-type]

        def __dlpack_device__(self) -> tuple[int, int]:
            return self.array.__dlpack_device__()

    [again] = session.run(None, {"x": Foreign(np.ascontiguousarray(strided))})
    np.testing.assert_array_equal(again, y)
    np.testing.assert_array_equal(np.from_dlpack(y), y)


def test_wrong_feeds_are_refused_in_onnxruntimes_words(session: Session) -> None:
    x = draw(4, 6)
    with pytest.raises(InvalidArgument, match=r"Required inputs \(\['x'\]\) are missing from input feed \(\['z'\]\)"):
        session.run(None, {"z": x})
    with pytest.raises(InvalidArgument, match="Invalid input name: z"):
        session.run(None, {"x": x, "z": x})
    with pytest.raises(InvalidArgument, match="Invalid output name:q"):
        session.run(["q"], {"x": x})
    with pytest.raises(InvalidArgument, match=r"Actual: \(tensor\(double\)\) , expected: \(tensor\(float\)\)"):
        session.run(None, {"x": x.astype(np.float64)})
    with pytest.raises(InvalidArgument, match="Invalid rank for input: x Got: 1 Expected: 2"):
        session.run(None, {"x": x[0]})
    with pytest.raises(InvalidArgument, match=r"index: 0 Got: 5 Expected: 4(.|\n)*--shape x:5,6"):
        session.run(None, {"x": draw(5, 6)})
    with pytest.raises(InvalidArgument, match="threads must be at least 1"):
        Session(session.artefact.folder, threads=0)


def test_a_closed_session_says_so(session: Session) -> None:
    with session:
        pass
    with pytest.raises(ExecutionError, match="closed"):
        session.run(None, {"x": draw(4, 6)})
    made, weights = matmul_relu()
    executable = Executable(made, weights, threads=1)
    executable.close()
    executable.close()
    for call in (lambda: executable.run({"x": draw(4, 6)}), lambda: executable.run_native(1)):
        with pytest.raises(ExecutionError, match="closed"):
            call()


def test_many_threads_may_share_a_session(session: Session) -> None:
    inputs = [draw(4, 6) for _ in range(8)]
    wanted = [session.run(None, {"x": x})[0] for x in inputs]
    wrong: list[int] = []

    def work(index: int) -> None:
        for _ in range(30):
            if not np.array_equal(session.run(None, {"x": inputs[index]})[0], wanted[index]):
                wrong.append(index)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


def test_several_sessions_and_thread_counts_agree(tmp_path: Path) -> None:
    made, weights = matmul_relu(rows=200)
    folder = save(tmp_path / "m.einsat", made, weights)
    x = draw(200, 6)
    before = openmp.get_threads()
    one, two = Session(folder, threads=1), Session(folder, threads=2)
    np.testing.assert_allclose(one.run(None, {"x": x})[0], two.run(None, {"x": x})[0], rtol=1e-5, atol=1e-6)
    one.close()
    assert two.run(None, {"x": x})[0].shape == (200, 5)
    assert openmp.get_threads() == before


def test_timing_and_profile(session: Session) -> None:
    times = session.run_native(5)
    assert len(times) == 5 and all(0 < t < 1e9 for t in times)
    profile = session.profile(3)
    assert [name for name, _ in profile] == ["multiply", "activate"] and all(us > 0 for _, us in profile)
    assert session.executable.implementations[1].startswith("jit")


def test_evicting_operands_between_runs_is_not_timed_and_costs_time() -> None:
    """A copy that fits into a core's own caches is slower when its operand was evicted, on every machine with caches."""
    buffers = [buffer((1 << 15,), "input", "x"), buffer((1 << 15,), "output", "y")]
    ports = [Port(name, "float32", (1 << 15,), number) for number, name in enumerate("xy")]
    made = plan(buffers, [Step("onednn", "copy", (0,), (1,), RELU)], ports[:1], ports[1:])
    executable = Executable(made, {}, threads=1)
    near, far = min(executable.run_native(300)), min(executable.run_native(300, evict=True))
    assert near < far < 100 * near + 1_000_000


def test_dispatch_costs_single_microseconds() -> None:
    """A hundred small kernels, measured inside the dispatcher; the bound is generous for a busy machine."""
    buffers = [buffer((16,), "input", "x"), *[buffer((16,), "arena", offset=16 * i) for i in range(99)], buffer((16,), "output", "y")]
    steps = [Step("onednn", f"k{i}", (i,), (i + 1,), RELU) for i in range(100)]
    made = plan(buffers, steps, [Port("x", "float32", (16,), 0)], [Port("y", "float32", (16,), 100)])
    executable = Executable(made, {}, threads=1)
    assert min(executable.run_native(200)) / 100 < 3000
    x = draw(16)
    np.testing.assert_array_equal(executable.run({"x": x})["y"], np.maximum(x, 0))


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("kernels") / "kernels.c"
    source.write_text(KERNELS)
    return native_build.build(source, extra_flags=("-Wl,-z,lazy",))


@pytest.mark.parametrize("threads", [1, 2])
def test_generated_kernels_run_on_the_shared_pool(kernels: Path, threads: int) -> None:
    """The kernel adds the number of tasks that it was launched with; an unresolved symbol of its compiler does no harm."""
    buffers = [buffer((1000,), "input", "x"), buffer((1000,), "weight", "w"), buffer((1000,), "output", "y")]
    made = plan(
        buffers, [Step("tvm", "k", (0, 1), (2,), {"symbol": "multiply"})],
        [Port("x", "float32", (1000,), 0)], [Port("y", "float32", (1000,), 2)],
    )  # fmt: skip
    x, w = draw(1000), draw(1000)
    executable = Executable(made, {"w": w}, kernels=kernels, threads=threads)
    for _ in range(3):
        np.testing.assert_allclose(executable.run({"x": x})["y"], x * w + threads, rtol=1e-6, atol=1e-6)


def test_a_kernel_library_written_anew_is_loaded_anew(kernels: Path, tmp_path: Path) -> None:
    """Closing unloads the kernels, so the same file may hold others for the next executable."""
    buffers = [buffer((1000,), "input", "x"), buffer((1000,), "weight", "w"), buffer((1000,), "output", "y")]
    step = Step("tvm", "k", (0, 1), (2,), {"symbol": "multiply"})
    made = plan(buffers, [step], [Port("x", "float32", (1000,), 0)], [Port("y", "float32", (1000,), 2)])
    x, path = draw(1000), tmp_path / "kernels.so"
    source = tmp_path / "other.c"
    source.write_text(KERNELS.replace("+ e->num_task;", "- e->num_task;"))
    other = native_build.build(source, extra_flags=("-Wl,-z,lazy",))
    for library, sign in ((kernels, 1), (other, -1)):
        path.write_bytes(library.read_bytes())
        executable = Executable(made, {"w": x}, kernels=path, threads=1)
        np.testing.assert_allclose(executable.run({"x": x})["y"], x * x + sign, rtol=1e-6, atol=1e-6)
        executable.close()


def test_kernel_failures_name_the_step(kernels: Path) -> None:
    buffers = [buffer((8,), "input", "x"), buffer((8,), "output", "y")]
    ports = [Port("x", "float32", (8,), 0)], [Port("y", "float32", (8,), 1)]
    bad = plan(buffers, [Step("tvm", "bad", (0,), (1,), {"symbol": "fail"})], *ports)
    with pytest.raises(KernelError, match=r"status -3(.|\n)*step 0 bad"):
        Executable(bad, {}, kernels=kernels, threads=1).run({"x": draw(8)})
    with pytest.raises(ArtefactError, match="no kernel 'absent'"):
        Executable(plan(buffers, [Step("tvm", "b", (0,), (1,), {"symbol": "absent"})], *ports), {}, kernels=kernels)
    with pytest.raises(ArtefactError, match="no kernel library"):
        Executable(bad, {})


@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8", "float16", "complex128"])
def test_copy_any_strides_any_type(dtype: str) -> None:
    x = (100 * RANDOM.standard_normal((3, 4, 5))).astype(dtype)
    source = Buffer(dtype, (5, 3, 4), (1, 20, 5), "input", "x")
    reverse = Buffer(dtype, (5, 3, 4), (-12, 4, 1), "output", "y", 48)
    port = Buffer(dtype, (5, 3, 4), (12, 4, 1), "output", "y")
    made = Plan(
        (source, reverse, port),
        (Step("copy", "c", (0,), (1,), {}),),
        (Port("x", dtype, (3, 4, 5), 0),),
        (Port("y", dtype, (5, 3, 4), 2),),
        0,
    )
    got = Executable(made, {}).run({"x": x})["y"]
    np.testing.assert_array_equal(got, np.transpose(x, (2, 0, 1))[::-1])


def test_outputs_that_are_inputs_weights_or_each_other_do_not_alias() -> None:
    buffers = [buffer((3,), "input", "x"), buffer((3,), "weight", "w"), buffer((3,), "output", "y")]
    made = plan(
        buffers, [Step("copy", "c", (0,), (2,), {})], [Port("x", "float32", (3,), 0)],
        [Port(n, "float32", (3,), i) for n, i in (("same", 0), ("constant", 1), ("y", 2), ("again", 2))],
    )  # fmt: skip
    x, w = draw(3), draw(3)
    got = Executable(made, {"w": w}).run({"x": x})
    np.testing.assert_array_equal(np.stack([got["same"], got["y"], got["again"]]), np.stack([x, x, x]))
    np.testing.assert_array_equal(got["constant"], w)
    arrays = [x, w, *got.values()]
    assert not any(np.shares_memory(a, b) for i, a in enumerate(arrays) for b in arrays[:i])


def test_opaque_step_between_native_ones(tmp_path: Path) -> None:
    """relu by the library, CumSum by onnxruntime, relu again."""
    nodes = [helper.make_node("Constant", [], ["axis"], value_int=0), helper.make_node("CumSum", ["a", "axis"], ["b"])]
    tensor = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [7]) for n in "ab"]
    buffers = [buffer((7,), "input", "x"), buffer((7,), "arena"), buffer((7,), "arena", offset=7), buffer((7,), "output", "y")]
    steps = [
        Step("onednn", "first", (0,), (1,), RELU),
        opaque("cumsum", (1,), (2,), ["a"], ["b"]),
        Step("onednn", "last", (2,), (3,), RELU),
    ]
    made = plan(buffers, steps, [Port("x", "float32", (7,), 0)], [Port("y", "float32", (7,), 3)])
    folder = save(tmp_path / "m.einsat", made, {}, {"opaque/cumsum.onnx": model(nodes, tensor[:1], tensor[1:])})
    session, x = Session(folder, threads=1), draw(7)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], np.cumsum(np.maximum(x, 0)), rtol=1e-5)
    assert [name for name, _ in session.profile(2)] == ["first", "cumsum", "last"]
    assert len(session.run_native(2)) == 2


def test_a_whole_model_of_strings_and_dynamic_shapes(tmp_path: Path) -> None:
    """An unchanged model is one opaque step; sizes and strings pass through."""
    nodes = [helper.make_node("Identity", ["s"], ["t"]), helper.make_node("NonZero", ["x"], ["y"])]
    inputs = [
        helper.make_tensor_value_info("s", TensorProto.STRING, ["n"]),
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3]),
    ]
    outputs = [helper.make_tensor_value_info("t", TensorProto.STRING, ["n"]), helper.make_tensor_value_info("y", TensorProto.INT64, None)]
    host = [Buffer(d, (), (), "host", k) for d, k in (("string", "s"), ("float32", "x"), ("string", "t"), ("int64", "y"))]
    ports = (
        [Port("s", "string", ("n",), 0), Port("x", "float32", ("n", 3), 1)],
        [Port("t", "string", ("n",), 2), Port("y", "int64", None, 3)],
    )
    made = Plan(tuple(host), (opaque("all", (0, 1), (2, 3), ["s", "x"], ["t", "y"]),), *map(tuple, ports), arena_bytes=0)
    session = Session(save(tmp_path / "m.einsat", made, {}, {"opaque/all.onnx": model(nodes, inputs, outputs)}), threads=1)
    for n in (2, 5):
        words, x = np.array(["é", "b"] * n, dtype=object)[:n], np.round(draw(n, 3))
        t, y = session.run(None, {"s": words, "x": x})
        assert t.tolist() == words.tolist()
        np.testing.assert_array_equal(y, np.stack(np.nonzero(x)))
    assert session.run(["t"], {"s": np.array(["u", "v"]), "x": draw(2, 3)})[0].tolist() == ["u", "v"]
    with pytest.raises(InvalidArgument, match="index: 1 Got: 4 Expected: 3"):
        session.run(None, {"s": words, "x": draw(5, 4)})


def test_host_values_travel_between_opaque_steps() -> None:
    """A result of unknown size stays a Python object until something reads it."""
    first = model(
        [helper.make_node("NonZero", ["x"], ["i"])], [helper.make_tensor_value_info("x", TensorProto.FLOAT, [6])],
        [helper.make_tensor_value_info("i", TensorProto.INT64, None)],
    )  # fmt: skip
    second = model(
        [helper.make_node("Shape", ["i"], ["n"])], [helper.make_tensor_value_info("i", TensorProto.INT64, None)],
        [helper.make_tensor_value_info("n", TensorProto.INT64, [2])],
    )  # fmt: skip
    buffers = [buffer((6,), "input", "x"), Buffer("int64", (), (), "host"), Buffer("int64", (2,), (1,), "output", "n")]
    steps = [opaque("first", (0,), (1,), ["x"], ["i"]), opaque("second", (1,), (2,), ["i"], ["n"])]
    made = plan(buffers, steps, [Port("x", "float32", (6,), 0)], [Port("n", "int64", (2,), 2), Port("i", "int64", None, 1)])
    models = {"opaque/first.onnx": first, "opaque/second.onnx": second}
    got = Executable(made, {}, models=models.__getitem__, threads=1).run({"x": np.array([0, 1, 2, 0, 3, 0], np.float32)})
    assert got["n"].tolist() == [1, 3] and got["i"].tolist() == [[1, 2, 4]]


def test_bfloat16_passes_through_onnxruntime() -> None:
    import ml_dtypes

    infos = [helper.make_tensor_value_info(n, TensorProto.BFLOAT16, [3]) for n in "xy"]
    made = Plan(
        (Buffer("bfloat16", (3,), (1,), "input", "x"), Buffer("bfloat16", (3,), (1,), "output", "y")),
        (opaque("id", (0,), (1,), ["x"], ["y"]),), (Port("x", "bfloat16", (3,), 0),), (Port("y", "bfloat16", (3,), 1),), arena_bytes=0,
    )  # fmt: skip
    proto = model([helper.make_node("Identity", ["x"], ["y"])], infos[:1], infos[1:])
    x = np.array([1, -2, 0.5], ml_dtypes.bfloat16)
    got = Executable(made, {}, models=lambda name: proto, threads=1).run({"x": x})["y"]
    assert got.dtype == x.dtype and got.tolist() == x.tolist()


def test_opaque_results_that_break_the_plan_are_refused() -> None:
    proto = model(
        [helper.make_node("NonZero", ["x"], ["y"])], [helper.make_tensor_value_info("x", TensorProto.FLOAT, [6])],
        [helper.make_tensor_value_info("y", TensorProto.INT64, None)],
    )  # fmt: skip
    buffers = [buffer((6,), "input", "x"), Buffer("int64", (1, 6), (6, 1), "arena"), Buffer("int64", (1, 6), (6, 1), "output", "y")]
    steps = (opaque("z", (0,), (1,), ["x"], ["y"]), Step("copy", "c", (1,), (2,), {}))
    made = Plan(tuple(buffers), steps, (Port("x", "float32", (6,), 0),), (Port("y", "int64", (1, 6), 2),), arena_bytes=48)
    executable = Executable(made, {}, models=lambda name: proto, threads=1)
    assert executable.run({"x": np.ones(6, np.float32)})["y"].tolist() == [[0, 1, 2, 3, 4, 5]]
    with pytest.raises(ExecutionError, match=r"int64\[1, 5\] where the plan has int64\[1, 6\]"):
        executable.run({"x": np.array([1, 1, 1, 0, 1, 1], np.float32)})


def test_damaged_artefacts_are_refused(tmp_path: Path) -> None:
    made, weights = matmul_relu()
    with pytest.raises(ArtefactError, match="no such file"):
        Session(tmp_path / "absent.einsat")
    (tmp_path / "lone.opt.onnx").write_bytes(b"")
    with pytest.raises(ArtefactError, match=r"has no artefact folder lone\.einsat"):
        Session(tmp_path / "lone.opt.onnx")
    folder = save(tmp_path / "m.einsat", made, weights)
    whole = (folder / "weights.safetensors").read_bytes()
    for damaged in (whole[:-4], whole[:20], b"", b"\xff" * 40):
        (folder / "weights.safetensors").write_bytes(damaged)
        with pytest.raises(ArtefactError, match="weights"):
            Session(folder)
    (folder / "weights.safetensors").unlink()
    with pytest.raises(ArtefactError, match="the weight 'w' is missing"):
        Session(folder)
    save(tmp_path / "n.einsat", made, weights)
    (tmp_path / "n.einsat" / "dispatch.so").write_bytes(b"no library")
    with pytest.raises(ArtefactError, match="dispatcher cannot be loaded"):
        Session(tmp_path / "n.einsat")
    (tmp_path / "n.einsat" / "dispatch.so").write_bytes(native_build.build_openmp().read_bytes())
    with pytest.raises(ArtefactError, match="interface 0"):
        Session(tmp_path / "n.einsat")
    (folder / "plan.json").write_text(made.to_json().replace('"version":1', '"version":9'))
    with pytest.raises(ArtefactError, match="version 9"):
        Session(folder)
    (folder / "plan.json").write_text("{")
    with pytest.raises(ArtefactError, match="cannot be used"):
        Session(folder)


def test_windows_that_leave_their_area_are_refused() -> None:
    made, weights = matmul_relu()
    with pytest.raises(ArtefactError, match="of an arena of 16"):
        Executable(Plan(made.buffers, made.steps, made.inputs, made.outputs, arena_bytes=16), weights)
    with pytest.raises(ArtefactError, match="of a weight of 20"):
        Executable(made, {"w": weights["w"][:1]})
    negative = Plan((Buffer("float32", (3,), (-1,), "arena"),), (), (), (), arena_bytes=64)
    with pytest.raises(ArtefactError, match="begins before"):
        Executable(negative, {})


def test_weights_are_mapped_not_copied(tmp_path: Path) -> None:
    made, weights = matmul_relu()
    read = Weights(save(tmp_path / "m.einsat", made, weights) / "weights.safetensors")
    np.testing.assert_array_equal(read["w"], weights["w"])
    assert not read["w"].flags.writeable and list(read) == ["w"]


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, weights = matmul_relu()
    folder = str(save(tmp_path / "m.einsat", made, weights))
    assert main([folder, "--repeat", "3", "--threads", "1", "--profile"]) == 0
    shown = capsys.readouterr().out
    assert "y: float32[4, 5]" in shown and "latency: median" in shown and "multiply" in shown
    np.save(tmp_path / "x.npy", np.ones((4, 6), np.float32))
    assert main([folder, "--inputs", str(tmp_path / "x.npy"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["outputs"]["y"]["max"] == pytest.approx(float(np.maximum(weights["w"].sum(0), 0).max()), rel=1e-5)
    np.savez(tmp_path / "x.npz", x=np.ones((4, 7), np.float32))
    assert main([folder, "--inputs", str(tmp_path / "x.npz")]) == 2
    assert "Got: 7 Expected: 6" in capsys.readouterr().err


def test_runs_where_nothing_else_is_installed(tmp_path: Path) -> None:
    """A session needs numpy and oneDNN only; the artefact's own dispatcher makes a compiler unnecessary."""
    made, weights = matmul_relu()
    folder = save(tmp_path / "m.einsat", made, weights)
    (folder / "dispatch.so").write_bytes(native_build.build().read_bytes())
    code = f"""
import sys
blocked = ("egglog", "z3", "tvm", "tvm_ffi", "onnx", "onnxruntime", "ml_dtypes", "egraph", "lower", "ziglang", "platformdirs")
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ImportError("blocked " + name)
sys.meta_path.insert(0, Block())
import numpy as np
from runtime import Session
x = np.ones((4, 6), np.float32)
print(float(Session({str(folder)!r}, threads=1).run(None, {{"x": x}})[0].sum()))
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "EINSAT_CACHE": str(tmp_path / "empty"), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(float(4 * np.maximum(weights["w"].sum(0), 0).sum()), rel=1e-5)
    assert not (tmp_path / "empty").exists()


STAND_IN = """
import os, sys, threading
import numpy as np
from runtime.executable import Executable
from tests.test_runtime import matmul_relu
made, weights = matmul_relu(rows=2000)
x = np.random.default_rng(0).standard_normal((2000, 6), dtype=np.float32)
wanted = np.maximum(x @ weights["w"], 0)
def work():
    executable = Executable(made, weights, threads=3)
    for _ in range(50):
        np.testing.assert_allclose(executable.run({"x": x})["y"], wanted, rtol=1e-4, atol=1e-5)
    done.append(1)
done = []
workers = [threading.Thread(target=work) for _ in range(3)]
[w.start() for w in workers]; [w.join() for w in workers]
child = os.fork()
if child == 0:
    work()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0 and len(done) == 3
maps = open("/proc/self/maps").read()
assert "libgomp" not in maps and "openmp-" in maps, maps
"""


def test_a_machine_without_libgomp_uses_the_stand_in() -> None:
    """The vendor library runs on our pool: several sessions on several threads, and in a forked child."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "EINSAT_OPENMP": str(native_build.build_openmp())}
    done = subprocess.run([sys.executable, "-c", STAND_IN], capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr


def test_compile_errors_are_shown_and_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EINSAT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "broken.c").write_text("int f(")
    with pytest.raises(LibraryMissing, match=r"broken\.c failed"):
        native_build.build(tmp_path / "broken.c")
    assert list((tmp_path / "cache").iterdir()) == []
