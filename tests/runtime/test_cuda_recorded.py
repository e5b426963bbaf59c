"""Run CUDA programs without a GPU, on the recorded device, which rejects each fault that a GPU would not forgive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from egraph.tensor import Graph, TensorType, make
from egraph.tensor.ops import apply
from egraph.tensor.ops.reference import evaluate
from egraph.tensor.types import attributes
from lower.compile import CompileOptions, compile_program
from lower.targets import lowering, name_of
from runtime import Executable, Session
from runtime.devices import DESCRIBED, device
from runtime.devices.cuda import kernels, recorded
from runtime.devices.cuda.driver import BRANCHES, COMPUTE, COPIES, STREAMS, Location
from runtime.devices.cuda.gpus import GPUS, H100
from runtime.devices.cuda.kernels import Kernel, Launch
from runtime.devices.cuda.program import REPEATED_LAUNCHES, CudaProgram
from runtime.devices.cuda.recorded import Event, RecordedDriver, check_live_ranges
from runtime.devices.cuda.streams import NOTE, schedule
from runtime.errors import ArtefactError, ExecutionError, KernelError
from runtime.plan import COPY_STEP, Area, Buffer, Plan, Port, Step
from tests.runtime.test_devices import constants
from tests.support.lowering import GRAPHS, choose

DOUBLE = """extern "C" __global__ void twice(const float* in0, float* out) {
  out[blockIdx.x * 32 + threadIdx.x] = 2.0f * in0[blockIdx.x * 32 + threadIdx.x];
}
"""
TWICE = Kernel(DOUBLE, (Launch("twice", (2, 1, 1), (32, 1, 1), 0, ("in0", "out")),))
SIZE = 64


def buffer(area: Area, key: str = "", offset: int = 0, size: int = SIZE) -> Buffer:
    return Buffer("float32", (size,), (1,), area, key, offset)


def chain() -> Plan:
    """Return y = 8 x in three steps: x -> a -> b -> y, where a and b do not overlap in the arena."""
    buffers = (buffer("input", "x"), buffer("arena"), buffer("arena", offset=SIZE), buffer("output", "y"))
    steps = tuple(Step("cuda", f"double {i}", (i,), (i + 1,), {"symbol": "twice"}) for i in range(3))
    ports = [Port(key, "float32", (SIZE,), index) for key, index in (("x", 0), ("y", 3))]
    return Plan(buffers, steps, (ports[0],), (ports[1],), 8 * SIZE, device="cuda")


def opened(plan: Plan, folder: Path, kernel: Kernel = TWICE) -> Executable:
    kernels.write(folder / kernels.FILE, {"twice": kernel})
    return Executable(plan, {}, kernels=folder / kernels.FILE, on="cuda:h100")


X = np.arange(SIZE, dtype=np.float32)


def test_a_program_runs_captured_and_not(tmp_path: Path) -> None:
    executable = opened(chain(), tmp_path)
    for factor in (1, 2, 3):  # launched one by one, captured, replayed
        np.testing.assert_array_equal(executable.run({"x": factor * X})["y"], 8 * factor * X)
    loaded = executable.loaded
    assert isinstance(loaded, CudaProgram) and isinstance(loaded.driver, RecordedDriver)
    assert list(loaded._graphs) == [(0, 3)] and loaded.driver.launches == 9
    assert loaded.copies == {"to_device": 0, "to_host": 0}
    assert not executable.device.is_timed
    with pytest.raises(KernelError, match="nothing is timed"):
        executable.run_native(1)


def test_a_step_is_timed_by_launches_that_follow_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of a graph launch is divided by the number of launches in it.

    Profiling does not change what the program computes afterwards.
    """
    executable = opened(chain(), tmp_path)
    loaded = executable.loaded
    assert isinstance(loaded, CudaProgram) and isinstance(loaded.driver, RecordedDriver)
    executable.run({"x": X})
    monkeypatch.setattr(RecordedDriver, "elapsed_us", lambda *_: 40.0)
    before = loaded.driver.launches
    assert loaded.profile(2) == [[40_000 // REPEATED_LAUNCHES] * 3] * 2
    assert loaded.driver.launches - before == 3 * (1 + 2 * REPEATED_LAUNCHES)
    np.testing.assert_array_equal(executable.run({"x": X})["y"], 8 * X)


def test_what_a_program_takes_says_something_where_a_device_runs_it() -> None:
    clocks = {name: device(name).keeps_time for name in ("cpu", "cuda", "cuda:h100", "reference")}
    assert clocks == {"cpu": True, "cuda": True, "cuda:h100": False, "reference": False}


@pytest.mark.parametrize("name", GRAPHS)
def test_programs_compute_what_their_operators_mean(name: str, tmp_path: Path) -> None:
    graph = GRAPHS[name]()
    target = lowering("cuda:h100").target
    program = choose(graph, "cuda", target=target)
    plan = compile_program(program, tmp_path, CompileOptions(target=target))
    assert plan.device == "cuda" and {step.kind for step in plan.steps} <= {"cuda", "cudnn", "cublas", COPY_STEP}
    generator = np.random.default_rng(0)
    feeds = {node.string("name"): generator.standard_normal(node.type.sizes, dtype=np.float32) for node in graph.inputs}
    leaves = {node: feeds[node.string("name")] for node in graph.inputs} | constants(program)
    with Session(tmp_path, on="cuda:h100") as session:
        for _ in range(2):
            for got, want in zip(session.run(None, feeds), evaluate(graph.roots, leaves), strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def product_graph() -> Graph:
    x, w = (make("Input", (), attributes(name=name), TensorType("float32", sizes)) for name, sizes in (("x", (70, 64)), ("w", (64, 96))))
    return Graph("product", (x, w), (("y", apply("MatMul", x, w)),), {})


def test_a_generated_product_in_fp16_is_offered_and_runs(tmp_path: Path) -> None:
    lowers, graph = lowering("cuda:h100"), product_graph()
    assert not any(kernel.implementation.precision != "float32" for kernel in choose(graph, "cuda@", target=lowers.target).kernels)
    program = choose(graph, "cuda@fp16", target=replace(lowers.target, precisions=("fp16",)))
    assert [kernel.implementation.text for kernel in program.kernels] == ["cuda@fp16"]
    plan = compile_program(program, tmp_path, CompileOptions(target=lowers.target))
    assert [step.kind for step in plan.steps] == ["cuda"]
    generator = np.random.default_rng(0)
    feeds = {node.string("name"): generator.standard_normal(node.type.sizes, dtype=np.float32) for node in graph.inputs}
    with Session(tmp_path, on="cuda:h100") as session:
        (result,) = session.run(None, feeds)
    left, right = (feeds[node.string("name")] for node in graph.inputs)
    half = left.astype(np.float16).astype(np.float64) @ right.astype(np.float16).astype(np.float64)
    np.testing.assert_allclose(result, half, rtol=1e-5, atol=1e-5)
    assert np.abs(result - left.astype(np.float64) @ right).max() > 1e-4


def test_inputs_and_outputs_stay_on_the_device(tmp_path: Path) -> None:
    loaded = opened(chain(), tmp_path).loaded
    assert isinstance(loaded, CudaProgram)
    for factor in (1, 2, 3):
        np.from_dlpack(loaded.array("x"))[...] = factor * X
        loaded.replay()
        np.testing.assert_array_equal(np.from_dlpack(loaded.array("y")), 8 * factor * X)
    with pytest.raises(ArtefactError, match="does not lie on the device"):
        CudaProgram(replace(chain(), outputs=(Port("a", "float32", (SIZE,), 1),)), {}, frozenset(), loaded.driver, None).array("a")


def overlapping(plan: Plan) -> Plan:
    return replace(plan, buffers=(*plan.buffers[:2], replace(plan.buffers[2], offset=SIZE // 2), plan.buffers[3]), steps=(
        *plan.steps[:2], Step("cuda", "late", (1,), (3,), {"symbol": "twice"})
    ))  # fmt: skip


def in_wrong_order(plan: Plan) -> Plan:
    return replace(plan, steps=(plan.steps[1], plan.steps[0], plan.steps[2]))


@pytest.mark.parametrize(("spoil", "message"), [(overlapping, "overlap in the arena"), (in_wrong_order, "order is wrong")])
def test_a_spoilt_plan_is_refused(spoil: Callable[[Plan], Plan], message: str, tmp_path: Path) -> None:
    check_live_ranges(chain())
    with pytest.raises(ArtefactError, match=message):
        opened(spoil(chain()), tmp_path)


def test_a_value_that_is_written_over_as_a_whole_shows_in_the_results(tmp_path: Path) -> None:
    """y = 2 a reads the memory of a after b has overwritten it.

    The plan does not reveal this, so outputs are compared before a program is shipped.
    """
    plan = chain()
    spoilt = replace(plan, buffers=(*plan.buffers[:2], replace(plan.buffers[2], offset=plan.buffers[1].offset), plan.buffers[3]), steps=(
        *plan.steps[:2], Step("cuda", "late", (1,), (3,), {"symbol": "twice"})
    ))  # fmt: skip
    right = replace(spoilt, buffers=plan.buffers)
    np.testing.assert_array_equal(opened(right, tmp_path).run({"x": X})["y"], 4 * X)
    np.testing.assert_array_equal(opened(spoilt, tmp_path).run({"x": X})["y"], 8 * X)


def test_memory_is_shared_by_values_that_do_not_meet() -> None:
    """Values share memory if their live ranges do not overlap, also values of different sizes, and a part may be read through a view."""
    plan = chain()
    reused = replace(plan, buffers=(*plan.buffers[:3], plan.buffers[3], buffer("arena", size=2 * SIZE)), steps=(
        *plan.steps, Step("cuda", "whole", (0,), (4,), {}), Step("cuda", "read", (4,), (3,), {}), Step("cuda", "view", (1,), (3,), {})
    ))  # fmt: skip
    check_live_ranges(reused)


@pytest.mark.parametrize(
    ("launch", "message"),
    [
        (Launch("twice", (1, 1, 1), (2048, 1, 1), 0, ("in0", "out")), "block of"),
        (Launch("twice", (1, 1, 1), (1, 1, 128), 0, ("in0", "out")), "block of"),
        (Launch("twice", (1, 70000, 1), (32, 1, 1), 0, ("in0", "out")), "grid of"),
        (Launch("twice", (0, 1, 1), (32, 1, 1), 0, ("in0", "out")), "grid of"),
        (Launch("twice", (2, 1, 1), (32, 1, 1), 300 << 10, ("in0", "out")), "shared memory"),
    ],
)
def test_an_oversized_launch_is_refused(launch: Launch, message: str, tmp_path: Path) -> None:
    with pytest.raises(KernelError, match=message):
        opened(chain(), tmp_path, replace(TWICE, launches=(launch,)))


def test_registers_and_architecture_are_checked(tmp_path: Path) -> None:
    big = Launch("twice", (1, 1, 1), (1024, 1, 1), 0, ("in0", "out"))
    with pytest.raises(KernelError, match="registers"):
        opened(chain(), tmp_path, replace(TWICE, launches=(big,), registers=128))
    with pytest.raises(KernelError, match=r"(?s)sm_80 does not run on a NVIDIA H100.*--target cuda:h100"):
        opened(chain(), tmp_path, replace(TWICE, architecture="sm_80"))


FORBIDDEN: dict[str, Callable[[RecordedDriver, int], object]] = {
    "an allocation": lambda driver, address: driver.allocate(4, "late"),
    "a copy from the host": lambda driver, address: driver.upload(address, X, COMPUTE),
    "a copy to the host": lambda driver, address: driver.download(X.copy().view(np.uint8), address, COMPUTE),
    "loading code": lambda driver, address: driver.load("twice", TWICE),
    "planning": lambda driver, address: driver.plan("cudnn", {"workspace_bytes": 0}, [], buffer("arena")),
    "waiting": lambda driver, address: driver.synchronise(COMPUTE),
    "another capture": lambda driver, address: driver.begin_capture(COMPUTE),
    "launching a graph": lambda driver, address: driver.replay(recorded.Graph(COMPUTE, {COMPUTE: [0] * len(STREAMS)}), COMPUTE),
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_a_call_during_capture_is_refused(what: str) -> None:
    driver = RecordedDriver(H100)
    address = driver.allocate(4 * SIZE, "x")
    driver.begin_capture(COMPUTE)
    with pytest.raises(KernelError, match=f"{what}.* forbidden while a stream is captured"):
        FORBIDDEN[what](driver, address)


def test_a_capture_ends_that_was_begun() -> None:
    with pytest.raises(KernelError, match="a capture ends that was not begun"):
        RecordedDriver(H100).end_capture(COMPUTE)


def test_streams_have_to_be_ordered() -> None:
    """An upload on one stream and a copy on another are rejected unless an event orders them or the host waited in between."""
    for how in ("nothing", "event", "host"):
        driver = RecordedDriver(H100)
        source, target = (Location(buffer("arena"), driver.allocate(4 * SIZE, name)) for name in ("source", "target"))
        driver.upload(source.address, X, COPIES)
        if how == "event":
            driver.wait(COMPUTE, driver.record(COPIES))
        if how == "host":
            driver.synchronise(COPIES)
        if how == "nothing":
            with pytest.raises(KernelError, match="nothing orders them"):
                driver.copy(source, target, COMPUTE)
            continue
        driver.copy(source, target, COMPUTE)
        with pytest.raises(KernelError, match="nothing orders them"):
            driver.download(np.empty(4 * SIZE, np.uint8), target.address, COPIES)


def test_a_program_that_forgets_an_event_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executable = opened(chain(), tmp_path)
    monkeypatch.setattr(RecordedDriver, "wait", lambda self, stream, event: None)
    with pytest.raises(KernelError, match="nothing orders them"):
        executable.run({"x": X})


def diamond(streams: int) -> Plan:
    """Return y = 64 x and z = 32 x: x -> a, then a -> b -> d -> y and a -> c -> z, where d reuses the memory of a."""
    areas: tuple[tuple[Area, str, int], ...] = (
        ("input", "x", 0), ("arena", "", 0), ("arena", "", SIZE), ("arena", "", 2 * SIZE), ("arena", "", 3 * SIZE),
        ("arena", "", 0), ("output", "y", 0), ("output", "z", 0),
    )  # fmt: skip
    pairs = ((0, 1), (1, 2), (1, 3), (3, 4), (2, 5), (4, 7), (5, 6))
    steps = tuple(Step("cuda", f"double {a} {b}", (a,), (b,), {"symbol": "twice"}) for a, b in pairs)
    ports = (Port("x", "float32", (SIZE,), 0),), (Port("y", "float32", (SIZE,), 6), Port("z", "float32", (SIZE,), 7))
    buffers = tuple(buffer(*each) for each in areas)
    return Plan(buffers, steps, *ports, 16 * SIZE, device="cuda", notes={NOTE: streams} if streams else {})


def test_branches_run_on_streams_of_their_own(tmp_path: Path) -> None:
    """Branches use as many streams as have work, unless the plan sets the number.

    A step that overwrites memory waits for the readers of the old value, also for those on other streams.
    """
    assert schedule(diamond(2), 0, 7, 1).streams == {COMPUTE}
    planned = schedule(diamond(2), 0, 7, 2)
    stream = {each.step: each.stream for each in planned.placed}
    assert planned.streams == {COMPUTE, BRANCHES[0]} and stream[0] == stream[1] == stream[4] == stream[6]
    assert stream[2] == stream[3] == stream[5] != stream[0]
    waits = {each.step: each.waits for each in planned.placed if each.waits}
    assert waits == {2: (0,), 4: (2,)} and planned.joined == (5,)
    for streams in (1, 2, 9, 0):
        executable = opened(diamond(streams), tmp_path)
        for factor in (1, 2, 3, 4):  # launched one by one, captured, replayed twice
            result = executable.run({"x": factor * X})
            np.testing.assert_array_equal(result["y"], 16 * factor * X)
            np.testing.assert_array_equal(result["z"], 16 * factor * X)
        loaded = executable.loaded
        assert isinstance(loaded, CudaProgram) and isinstance(loaded.driver, RecordedDriver)
        (graph,) = loaded._graphs.values()
        assert isinstance(graph, recorded.Graph) and len(graph.clocks) == min(streams or 2, 2)


@pytest.mark.parametrize("earlier_runs", [0, 1], ids=["launched", "captured"])
@pytest.mark.parametrize("left_out", [1, 2, 3])
def test_a_forgotten_event_between_branches_is_refused(
    left_out: int, earlier_runs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Omit each of the three waits between the streams of a program in turn.

    The first wait of a run is for its inputs and is not omitted.
    """
    executable = opened(diamond(2), tmp_path)
    for _ in range(earlier_runs):
        executable.run({"x": X})
    usual, events = RecordedDriver.wait, []

    def wait(self: RecordedDriver, stream: int, event: Event) -> None:
        events.append(event)
        if len(events) != left_out + 1:
            usual(self, stream, event)

    monkeypatch.setattr(RecordedDriver, "wait", wait)
    with pytest.raises(KernelError, match=r"nothing orders them|waited for all others|waits for an event that is not"):
        executable.run({"x": X})


def test_capturing_several_streams_has_rules() -> None:
    driver = RecordedDriver(H100)
    source, target = (Location(buffer("arena"), driver.allocate(4 * SIZE, name)) for name in ("source", "target"))
    driver.upload(source.address, X, COPIES)
    outside = driver.record(COPIES)
    driver.synchronise(COPIES)
    driver.begin_capture(COMPUTE)
    with pytest.raises(KernelError, match="waits for an event that is not"):
        driver.wait(COMPUTE, outside)
    inside = driver.record(COMPUTE)
    driver.wait(BRANCHES[0], inside)
    driver.copy(source, target, BRANCHES[0])
    forked = driver.record(BRANCHES[0])
    assert not (driver._view(target) == X).any(), "what is captured does not run"
    with pytest.raises(KernelError, match="has waited for all others"):
        driver.end_capture(COMPUTE)
    driver.begin_capture(COMPUTE)
    with pytest.raises(KernelError, match="of a capture that is over"):
        driver.wait(COMPUTE, forked)
    with pytest.raises(KernelError, match="another stream than"):
        driver.end_capture(BRANCHES[0])


def test_streams_do_not_share_a_workspace(tmp_path: Path) -> None:
    """Two products that depend only on the same operand run on two streams. Each stream has a workspace; a common one is rejected."""
    x, weights = ((16, 16), (16, 1)), [((16, 16), (16, 1))] * 2
    buffers = (
        Buffer("float32", *x, "input", "x"), *(Buffer("float32", *each, "input", f"w{k}") for k, each in enumerate(weights)),
        Buffer("float32", *x, "output", "y"), Buffer("float32", *x, "output", "z"),
    )  # fmt: skip
    spec: dict[str, object] = {
        "primitive": "matmul", "arguments": {"src": 0, "weights": 1}, "packed": [], "post_ops": [], "precision": "float32",
        "workspace_bytes": 512,
    }  # fmt: skip
    steps = tuple(Step("cublas", f"product {k}", (0, 1 + k), (3 + k,), spec) for k in range(2))
    ports = tuple(Port(each.key, "float32", each.shape, k) for k, each in enumerate(buffers))
    plan = Plan(buffers, steps, ports[:3], ports[3:], 0, device="cuda", notes={NOTE: 2})
    feeds = {name: np.random.default_rng(k).standard_normal((16, 16), dtype=np.float32) for k, name in enumerate(("x", "w0", "w1"))}
    executable = Executable(plan, {}, on="cuda:h100")
    for _ in range(3):
        result = executable.run(feeds)
        np.testing.assert_allclose(result["z"], feeds["x"] @ feeds["w1"], rtol=1e-4, atol=1e-4)
    shared = Executable(plan, {}, on="cuda:h100")
    assert isinstance(shared.loaded, CudaProgram)
    shared.loaded._workspaces = dict.fromkeys(shared.loaded._workspaces, shared.loaded._workspaces[COMPUTE])
    with pytest.raises(KernelError, match="same bytes of workspace and nothing orders them"):
        shared.run(feeds)


def test_operands_where_cudnn_does_not_take_them_are_copied(tmp_path: Path) -> None:
    """A slice, or a part of a concatenation, may begin at any element, but the frontend declares every tensor as aligned to 16 bytes."""
    image, taps = ((1, 1, 5, 5), (25, 25, 5, 1)), ((1, 1, 1, 1), (1, 1, 1, 1))
    areas: tuple[tuple[Area, str, int], ...] = (("input", "x", 0), ("arena", "", 1), ("arena", "", 30), ("output", "y", 0))
    buffers = [Buffer("float32", *image, area, key, offset) for area, key, offset in areas]
    buffers.append(Buffer("float32", *taps, "input", "w"))
    spec = {
        "primitive": "convolution", "arguments": {"src": 0, "weights": 1}, "packed": [], "post_ops": [],
        "strides": [1, 1], "dilations": [1, 1], "pads_before": [0, 0], "pads_after": [0, 0],
        "precision": "float32", "engine": None, "knobs": {}, "workspace_bytes": 0,
    }  # fmt: skip
    convolution = Step("cudnn", "convolution", (1, 4), (2,), spec)
    steps = (Step(COPY_STEP, "in", (0,), (1,), {}), convolution, Step(COPY_STEP, "out", (2,), (3,), {}))
    ports = (Port("x", "float32", image[0], 0), Port("w", "float32", taps[0], 4)), (Port("y", "float32", image[0], 3),)
    executable = Executable(Plan(tuple(buffers), steps, *ports, 4 * 64, device="cuda"), {}, on="cuda:h100")
    x = np.arange(25, dtype=np.float32).reshape(image[0])
    for factor in (2, 3, 4):  # launched one by one, captured, replayed
        weights = np.full(taps[0], factor, np.float32)
        np.testing.assert_array_equal(executable.run({"x": x, "w": weights})["y"], factor * x)
    driver = RecordedDriver(H100)
    place = driver.allocate(256, "memory")
    operands = [Location(buffer("arena", size=1), place + offset) for offset in (0, 16)]
    call = driver.plan("cudnn", spec, [each.buffer for each in operands], operands[0].buffer)
    with pytest.raises(KernelError, match="multiples of 16"):
        driver.call(call, operands, Location(operands[0].buffer, place + 36), 0, 0, COMPUTE)


def test_memory_is_bounded() -> None:
    driver = RecordedDriver(replace(H100, memory_bytes=1000))
    address = driver.allocate(900, "first")
    with pytest.raises(KernelError, match="more than the 1000"):
        driver.allocate(101, "second")
    with pytest.raises(KernelError, match="belong to no allocation"):
        driver.upload(address + 896, X, COMPUTE)


def test_a_workspace_is_bounded() -> None:
    driver = RecordedDriver(H100)
    places = [Location(buffer("arena"), driver.allocate(4 * SIZE, str(i))) for i in range(3)]
    call = driver.plan("cudnn", {"workspace_bytes": 4096, "primitive": "convolution"}, [], buffer("arena"))
    with pytest.raises(KernelError, match="4096 bytes of workspace and has 4095"):
        driver.call(call, places[:2], places[2], driver.allocate(4095, "workspace"), 4095, COMPUTE)


def test_described_devices_have_their_names() -> None:
    assert {name.partition(":")[2] for name in DESCRIBED} == set(GPUS)
    for name in DESCRIBED:
        way = lowering(name)
        assert name_of(way.target) == name
        assert device(name).architecture == way.target.architecture
        assert "estimated" in device(name).key(1)
    assert name_of(lowering("cpu").target) == "cpu"


def test_a_program_says_where_it_runs(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match="is for the device 'cuda', not for 'cpu'"):
        Executable(chain(), {}, on="cpu")
    kernels.write(tmp_path / kernels.FILE, {})
    with pytest.raises(ArtefactError, match="needs the kernel 'twice'"):
        Executable(chain(), {}, kernels=tmp_path / kernels.FILE, on="cuda:a100")
    with pytest.raises(ExecutionError):
        Executable(replace(chain(), steps=(Step("onednn", "first", (0,), (3,), {}),)), {}, on="cuda:h100")
