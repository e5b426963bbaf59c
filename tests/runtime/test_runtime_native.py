"""Test the dispatcher, generated kernels, copies and the OpenMP stand-in through hand-written plans."""

from __future__ import annotations

import ctypes
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lower.targets import lowering
from runtime.cache import cache_folder
from runtime.devices.cpu.native import build as native_build
from runtime.errors import ArtefactError, KernelError, LibraryMissing
from runtime.executable import Executable
from runtime.plan import Buffer, Plan, Port, Step
from tests.support.paths import ROOT
from tests.support.plans import RANDOM, RELU, buffer, draw, plan

CHASED = 2048
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
__attribute__((visibility("default"))) int __tvm_ffi_chase(void *self, const Value *a, int32_t n, Value *r) {
    const float *next = data(a);
    int place = 0;
    for (int i = 0; i < CHASED; i++) place = (int)next[place];
    data(a + 1)[0] = (float)place;
    return 0;
}
static int fail_second(int task, const Environment *e, void *p) { return task == 1 ? -4 : 0; }
__attribute__((visibility("default"))) int __tvm_ffi_fail_in_a_task(void *self, const Value *a, int32_t n, Value *r) {
    return __TVMBackendParallelLaunch(fail_second, (void *)a, 3);
}
""".replace("CHASED", str(CHASED))


def test_evicting_operands_between_runs_is_not_timed_and_costs_time(kernels: Path) -> None:
    """A chain of dependent loads is slower if its operand was evicted, on every machine with caches."""
    elements = CHASED * 16
    buffers = [buffer((elements,), "input", "x"), buffer((1,), "output", "y")]
    ports = [Port("x", "float32", (elements,), 0)], [Port("y", "float32", (1,), 1)]
    executable = Executable(plan(buffers, [Step("tvm", "chase", (0,), (1,), {"symbol": "chase"})], *ports), {}, kernels=kernels, threads=1)
    order = 16 * np.random.default_rng(0).permutation(CHASED)
    x = np.zeros(elements, np.float32)
    x[order] = np.roll(order, -1)
    executable.run({"x": x})
    turns = [[min(executable.run_native(40, evict=evicts)) for evicts in (False, True)] for _ in range(20)]
    assert all(far < 100 * near + 1_000_000 for near, far in turns)
    slowdown = statistics.median(far / near for near, far in turns)
    assert slowdown > 1.3


def test_weights_from_memory_take_longer_than_from_the_shared_cache() -> None:
    """The packed constant of a product is evicted from all caches before each run; inputs are not."""
    wide = 1024
    buffers = [buffer((1, wide), "input", "x"), buffer((wide, wide), "weight", "w"), buffer((1, wide), "output", "y")]
    step = Step("onednn", "product", (0, 1), (2,), {"primitive": "matmul", "arguments": {"src": 0, "weights": 1}, "packed": ["weights"]})
    made = plan(buffers, [step], [Port("x", "float32", (1, wide), 0)], [Port("y", "float32", (1, wide), 2)])
    executable = Executable(made, {"w": draw(wide, wide)}, threads=1)
    turns = [[min(executable.run_native(20, evict=True, weights_from_memory=far)) for far in (False, True)] for _ in range(10)]
    assert all(flushed < 100 * cached + 1_000_000 for cached, flushed in turns)
    assert statistics.median(flushed / cached for cached, flushed in turns) > 1.3


def test_dispatch_costs_single_microseconds() -> None:
    """Time a hundred small kernels inside the dispatcher. The bound is generous for a busy machine."""
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
    """The kernel adds the number of its chunks, four per thread. An unresolved symbol of its compiler does no harm."""
    buffers = [buffer((1000,), "input", "x"), buffer((1000,), "weight", "w"), buffer((1000,), "output", "y")]
    made = plan(
        buffers, [Step("tvm", "k", (0, 1), (2,), {"symbol": "multiply"})],
        [Port("x", "float32", (1000,), 0)], [Port("y", "float32", (1000,), 2)],
    )  # fmt: skip
    x, w = draw(1000), draw(1000)
    executable = Executable(made, {"w": w}, kernels=kernels, threads=threads)
    for _ in range(3):
        np.testing.assert_allclose(executable.run({"x": x})["y"], x * w + (1 if threads == 1 else 4 * threads), rtol=1e-6, atol=1e-6)


def test_a_kernel_library_written_anew_is_loaded_anew(kernels: Path, tmp_path: Path) -> None:
    """Closing an executable unloads its kernels, so the same file may hold other kernels for the next one."""
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
    in_a_task = plan(buffers, [Step("tvm", "part", (0,), (1,), {"symbol": "fail_in_a_task"})], *ports)
    for threads in (1, 2):
        with pytest.raises(KernelError, match=r"status -4(.|\n)*step 0 part"):
            Executable(in_a_task, {}, kernels=kernels, threads=threads).run({"x": draw(8)})
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


@pytest.mark.parametrize(
    ("source", "target"), [((20, 5, 1), (35, 7, 1)), ((35, 7, 1), (20, 5, 1)), ((35, 7, 1), (35, 7, 1)), ((20, 5, 1), (24, 5, 1))]
)
def test_copy_of_axes_that_lie_behind_each_other_on_one_side(source: tuple[int, ...], target: tuple[int, ...]) -> None:
    """Axes are merged only if they are contiguous in both source and target. Elements between the rows of the target stay unchanged."""
    shape, elements = (3, 4, 5), 105
    buffers = [
        Buffer("float32", (elements,), (1,), "input", "x"), Buffer("float32", shape, source, "input", "x"),
        Buffer("float32", (elements,), (1,), "input", "z"), Buffer("float32", (elements,), (1,), "output", "y"),
        Buffer("float32", shape, target, "output", "y"),
    ]  # fmt: skip
    steps = [Step("copy", "keep", (2,), (3,), {}), Step("copy", "c", (1,), (4,), {})]
    ports = [Port("x", "float32", (elements,), 0), Port("z", "float32", (elements,), 2)]
    made = plan(buffers, steps, ports, [Port("y", "float32", (elements,), 3)])
    x, z = draw(elements), draw(elements)
    expected = z.copy()
    for place in np.ndindex(shape):
        expected[np.dot(place, target)] = x[np.dot(place, source)]
    np.testing.assert_array_equal(Executable(made, {}).run({"x": x, "z": z})["y"], expected)


STAND_IN = """
import os, sys, threading
import numpy as np
from runtime.devices.cpu import openmp
openmp.NAME = sys.argv[1]
from runtime.executable import Executable
from tests.support.plans import matmul_relu
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
assert ("libgomp" in maps) == (sys.argv[1] == "libgomp.so.1") and "openmp-" in maps, maps
"""


@pytest.mark.parametrize("libgomp", ["libgomp.so.1", "libgomp-is-missing.so"])
def test_the_vendor_library_runs_on_our_pool_with_libgomp_and_without(libgomp: str) -> None:
    """Test several sessions on several threads, and a forked child."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", STAND_IN, libgomp], capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr


def test_the_compiler_keeps_its_own_files_where_ours_are_and_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """zig never terminates if it cannot write into its folder, and the home of a container may be read-only."""
    places: list[str] = []

    def never_ends(command: list[str], *, env: dict[str, str], timeout: float, **other: object) -> None:
        places.extend(env[name] for name in native_build.ZIG_FOLDERS)
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setenv("EINSAT_CACHE", str(tmp_path))
    for name in native_build.ZIG_FOLDERS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("runtime.devices.cpu.native.build.subprocess.run", never_ends)
    with pytest.raises(LibraryMissing, match=r"did not end(.|\n)*EINSAT_CACHE"):
        native_build.build()
    assert places == [str(tmp_path / "zig")] * 2 and not list(tmp_path.glob("*.so"))


def test_a_changed_header_is_compiled_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EINSAT_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "kernels"
    folder.mkdir()
    (tmp_path / "deep.h").write_text("#define NUMBER 1\n")
    (tmp_path / "shared.h").write_text('#include <stdint.h>\n#include "deep.h"\n')
    source = folder / "numbers.c"
    source.write_text('#include "../shared.h"\n__attribute__((visibility("default"))) int number(void) { return NUMBER; }\n')
    first = native_build.build(source)
    assert native_build.build(source) == first
    (tmp_path / "deep.h").write_text("#define NUMBER 2\n")
    second = native_build.build(source)
    assert [ctypes.CDLL(str(library)).number() for library in (first, second)] == [1, 2]


def test_libraries_need_nothing_of_the_compilers_runtime() -> None:
    """They are linked without it, and every symbol that they use is resolved when they are loaded."""
    sources = [library.source for library in lowering("cpu").libraries if library.source is not None]
    assert len(sources) >= 5
    for path in (native_build.build(), native_build.build_openmp(), *map(native_build.build, sources)):
        ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_LOCAL)


def test_compile_errors_are_shown_and_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EINSAT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "broken.c").write_text("int f(")
    with pytest.raises(LibraryMissing, match=r"broken\.c failed"):
        native_build.build(tmp_path / "broken.c")
    assert [path.name for path in (tmp_path / "cache").iterdir()] in ([], ["zig"]), "nothing but what zig keeps for the next time"


SIGNALS = """
import signal, sys, tempfile
import numpy as np
from pathlib import Path
from egraph.tensor import TensorType, placeholder
from egraph.tensor.ops import apply
from egraph.optimize.kernels import kernel_program
from lower.compile import compile_program
from lower.targets import lowering
from runtime import Session
x = placeholder(0, TensorType("float32", (1, 24, 60, 60)))
w = placeholder(1, TensorType("float32", (24, 24, 3, 3)), constant=True)
conv = apply("Conv", x, w, strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), group=1, layout="NCHW")
with tempfile.TemporaryDirectory() as folder:
    compile_program(kernel_program(conv, lowering().implementation("onednn.convolution"), seed=0), Path(folder))
    with Session(folder, threads=int(sys.argv[1])) as session:
        feeds = {"x0": np.random.default_rng(0).standard_normal((1, 24, 60, 60), dtype=np.float32)}
        before = session.run(None, feeds)[0]
        seen = []
        signal.signal(signal.SIGALRM, lambda number, frame: seen.append(number))
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        results = [session.run(None, feeds)[0] for _ in range(100)]
        signal.setitimer(signal.ITIMER_REAL, 0)
assert all(np.array_equal(result, before) for result in results)
assert len(seen) > 1, "they arrive after each run"
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_signals_wait_until_a_run_is_over(threads: int) -> None:
    """oneDNN's x64:gemm:jit uses the stack pointer for data, so a signal's stack frame would overwrite the heap."""
    done = subprocess.run([sys.executable, "-c", SIGNALS, str(threads)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_libraries_are_the_same_bytes_wherever_they_are_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Artefacts contain these libraries, so they must not contain paths of the build machine."""
    for variable in native_build.ZIG_FOLDERS:
        monkeypatch.setenv(variable, str(cache_folder() / "zig"))
    built = []
    for place in ("here", "elsewhere"):
        folder = tmp_path / place
        folder.mkdir()
        source = Path(shutil.copyfile(native_build.SOURCE, folder / native_build.SOURCE.name))
        monkeypatch.setenv("EINSAT_CACHE", str(folder / "cache"))
        built.append(native_build.build(source).read_bytes())
    assert built[0] == built[1] and str(tmp_path).encode() not in built[0]
