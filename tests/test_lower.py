"""Lowering: candidates over an e-graph, library matching, memory, artefacts; compared with the float64 reference."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from egraph.errors import LowerError
from egraph.ir import (
    Candidate,
    ENode,
    FrozenEGraph,
    Graph,
    Kernel,
    Node,
    Program,
    TensorType,
    attributes,
    format_fragment,
    make,
    placeholder,
    walk,
)  # fmt: skip
from egraph.ops import OPS, apply
from egraph.ops.reference import evaluate
from lower.candidates import candidates
from lower.candidates.tile import Tiling
from lower.compile import CompileOptions, compile_program, plan_program
from lower.library import LibraryCall, match
from lower.library.match import IMPLEMENTATIONS
from lower.memory import Lifetime, plan_arena
from lower.steps import bind
from lower.views import Window, contiguous, read
from runtime.plan import Buffer, Plan

RANDOM = np.random.default_rng(7)


def float32(*shape: int) -> TensorType:
    return TensorType("float32", shape)


class Model:
    """A small graph in the making."""

    def __init__(self) -> None:
        self.tensors: dict[str, np.ndarray] = {}
        self.inputs: list[Node] = []

    def input(self, *shape: int) -> Node:
        node = make("Input", (), attributes(name=f"x{len(self.inputs)}"), float32(*shape))
        self.inputs.append(node)
        return node

    def weight(self, *shape: int) -> Node:
        digest = f"w{len(self.tensors)}"
        self.tensors[digest] = (RANDOM.standard_normal(shape) * 0.3).astype(np.float32)
        return make("Constant", (), attributes(digest=digest), float32(*shape))

    def conv(self, x: Node, outputs: int, kernel: int, *, layout: str = "NCHW", stride: int = 1, group: int = 1, bias: bool = True) -> Node:
        channels = x.type.sizes[1 if layout == "NCHW" else -1]
        values = {"strides": (stride,) * 2, "pads": (kernel // 2,) * 4, "dilations": (1, 1), "group": group, "layout": layout}
        y = apply("Conv", x, self.weight(outputs, channels // group, kernel, kernel), **values)
        return apply("Add", y, self.weight(*((1, outputs, 1, 1) if layout == "NCHW" else (1, 1, 1, outputs)))) if bias else y

    def graph(self, *outputs: Node) -> Graph:
        return Graph("test", tuple(self.inputs), tuple((f"y{i}", node) for i, node in enumerate(outputs)), self.tensors)


def freeze(graph: Graph) -> tuple[FrozenEGraph, dict[int, Node]]:
    """Return the graph itself as an e-graph with one e-node a class."""
    nodes = list(walk(graph.roots))
    number = {node: i for i, node in enumerate(reversed(nodes))}
    constants: set[int] = set()
    for node in nodes:
        if node.op == "Constant" or (node.inputs and all(number[i] in constants for i in node.inputs)):
            constants.add(number[node])
    classes = {number[n]: (ENode(n.op, n.attributes, tuple(number[i] for i in n.inputs)),) for n in nodes}
    named = {i: n for n, i in number.items()}
    types = {i: n.type for i, n in named.items()}
    return FrozenEGraph(classes, types, tuple(number[r] for r in graph.roots), frozenset(constants), named), named


def choose(graph: Graph, prefer: str, supports: Callable[[Node], str | None] | None = None) -> Program:
    """Cover the graph top-down, views first, then the preferred implementation's largest candidate, then the smallest."""
    frozen, nodes = freeze(graph)
    laid = candidates(frozen, "cpu", supports=supports)

    def rank(one: Candidate) -> tuple[bool, bool, int]:
        preferred = one.implementation.startswith(prefer)
        return one.implementation != "view", not preferred, -len(one.covered) if preferred else len(one.covered)

    kernels: dict[int, Kernel] = {}

    def compute(number: int) -> None:
        if number in kernels or number not in laid:
            return
        one = min(laid[number], key=rank)
        for operand in one.operands:
            compute(operand)
        operands = tuple(nodes[i] for i in one.operands)
        assert bind(one.fragment, list(operands)) is nodes[number]
        kernels[number] = Kernel(one.fragment, operands, nodes[number], one.implementation)

    for root in frozen.roots:
        compute(root)
    return Program(graph, tuple(kernels.values()), 0.0)


def export_graph(graph: Graph) -> bytes:
    from egraph.exporter import export

    model: bytes = export(graph).SerializeToString(deterministic=True)
    return model


def check(graph: Graph, program: Program, folder: Path, threads: int = 1) -> Plan:
    """Compile, run and compare with the reference."""
    from runtime import Session

    plan = compile_program(program, folder, CompileOptions(threads=threads, export_graph=export_graph))
    feeds = {str(n.attribute("name")): RANDOM.standard_normal(n.type.sizes).astype(np.float32) for n in graph.inputs}
    leaves = {n: feeds[str(n.attribute("name"))] for n in graph.inputs}
    leaves |= {n: graph.tensors[str(n.attribute("digest"))] for n in walk(graph.roots) if n.op == "Constant"}
    expected = evaluate(graph.roots, leaves)
    with Session(folder, threads=threads) as session:
        for _ in range(2):
            got = session.run(None, feeds)
            for one, other in zip(got, expected, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    return plan


def residual() -> Graph:
    m = Model()
    x = m.input(1, 3, 12, 12)
    a = apply("Relu", m.conv(x, 8, 3, stride=2))
    b = apply("Relu", apply("Add", m.conv(a, 8, 1), a))
    pooled = apply("Reshape", apply("ReduceMean", b, axes=(2, 3)), shape=(1, 8))
    return m.graph(apply("Add", apply("MatMul", pooled, m.weight(8, 10)), m.weight(10)))


def channels_last() -> Graph:
    m = Model()
    x = apply("Transpose", m.input(2, 3, 9, 7), perm=(0, 2, 3, 1))
    a = m.conv(x, 8, 3, layout="NHWC")
    swish = apply("Mul", a, apply("Sigmoid", a))
    b = apply("Clip", m.conv(swish, 8, 3, layout="NHWC", group=8), min=0.0, max=6.0)
    c = m.conv(b, 4, 1, layout="NHWC", stride=2)
    return m.graph(apply("Transpose", apply("Tanh", c), perm=(0, 3, 1, 2)))


def attention() -> Graph:
    m = Model()
    x = m.input(2, 6, 16)

    def heads(perm: tuple[int, ...]) -> Node:
        y = apply("Add", apply("MatMul", x, m.weight(16, 16)), m.weight(16))
        return apply("Transpose", apply("Reshape", y, shape=(2, 6, 4, 4)), perm=perm)

    scores = apply("Softmax", apply("MatMul", heads((0, 2, 1, 3)), heads((0, 2, 3, 1))), axis=3)
    mixed = apply("Transpose", apply("MatMul", scores, heads((0, 2, 1, 3))), perm=(0, 2, 1, 3))
    out = apply("Add", apply("MatMul", apply("Reshape", mixed, shape=(2, 6, 16)), m.weight(16, 16)), x)
    return m.graph(apply("LayerNormalization", out, m.weight(16), m.weight(16), axis=2, epsilon=1e-5))


def concatenation() -> Graph:
    m = Model()
    x = m.input(1, 4, 6, 6)
    a, b = apply("Relu", m.conv(x, 4, 3)), apply("Relu", m.conv(x, 8, 1))
    c = apply("MaxPool", a, kernel_shape=(3, 3), strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), layout="NCHW")
    inner = apply("Concat", b, c, axis=1)
    outer = apply("Concat", a, inner, axis=1)
    return m.graph(m.conv(outer, 4, 1), inner)


def pools() -> Graph:
    m = Model()
    x = m.input(1, 4, 8, 8)
    values = {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1), "dilations": (1, 1), "layout": "NCHW"}
    a = apply("AveragePool", x, count_include_pad=0, **values)
    b = apply("AveragePool", x, count_include_pad=1, **values)
    c = apply("LRN", apply("MaxPool", x, **values), size=3, alpha=0.1, beta=0.75, bias=1.0, axis=1)
    transposed = apply(
        "ConvTranspose", c, m.weight(4, 3, 4, 4),
        strides=(2, 2), pads=(1, 1, 1, 1), dilations=(1, 1), group=1, output_padding=(0, 0), layout="NCHW",
    )  # fmt: skip
    return m.graph(apply("Add", a, b), apply("LeakyRelu", apply("Add", transposed, m.weight(1, 3, 1, 1)), alpha=0.1))


GRAPHS = {f.__name__: f for f in (residual, channels_last, attention, concatenation, pools)}


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("prefer", ["onednn", "tvm"])
def test_compiled_programs_agree_with_the_reference(name: str, prefer: str, tmp_path: Path) -> None:
    graph = GRAPHS[name]()
    check(graph, choose(graph, prefer), tmp_path / "artefact")


@pytest.mark.parametrize("name", GRAPHS)
def test_what_nothing_else_runs_onnxruntime_runs(name: str, tmp_path: Path) -> None:
    graph = GRAPHS[name]()
    plan = check(graph, choose(graph, "opaque", lambda fragment: "nothing is generated here"), tmp_path / "artefact")
    assert {step.kind for step in plan.steps} <= {"onednn", "onnxruntime", "copy"}
    neighbours = [(a.kind, b.kind) for a, b in itertools.pairwise(plan.steps)]
    assert ("onnxruntime", "onnxruntime") not in neighbours  # what follows each other is one model


def test_a_kernel_without_an_exporter_is_an_error_that_says_so(tmp_path: Path) -> None:
    m = Model()
    graph = m.graph(apply("Floor", m.input(2, 3)))
    program = choose(graph, "opaque", lambda fragment: "nothing is generated here")
    with pytest.raises(LowerError, match="no exporter"):
        compile_program(program, tmp_path / "artefact")


POSITIVE = ("Relu", "Sigmoid", "Tanh", "HardSwish", "Mish", "Abs", "Neg")


def random_epilogue(random: Random, node: Node) -> Node:
    """Return the node below a few random operators that the library may fuse."""
    index = 10
    for _ in range(random.randrange(4)):
        sizes = node.type.sizes
        if random.random() < 0.4:
            node = apply(random.choice(POSITIVE), node)
        elif random.random() < 0.2:
            node = apply("Mul", node, apply("Sigmoid", node))
        else:
            shape = random.choice([sizes, (1,) * len(sizes), sizes[-1:], tuple(n if random.random() < 0.5 else 1 for n in sizes)])
            other = placeholder(index, float32(*shape), constant=random.random() < 0.5)
            index += 1
            op = random.choice(("Add", "Mul", "Sub", "Max", "PRelu"))
            node = apply(op, node, other) if op == "PRelu" or random.random() < 0.7 else apply(op, other, node)
    if node.type.sizes and random.random() < 0.3:
        node = apply("Transpose", node, perm=tuple(random.sample(range(node.type.rank), node.type.rank)))
    return node


def library_error(fragment: Node, implementation: str, seed: int) -> float | None:
    """Return the error relative to the largest value, None where the library refuses to be asked at all."""
    from runtime import Executable
    from runtime.errors import KernelError

    fragment, _ = Tiling.canonical(fragment)
    generator = np.random.default_rng(seed)
    leaves = sorted({n for n in walk((fragment,)) if n.op == "Placeholder"}, key=lambda n: int(str(n.attribute("index"))))
    values = {leaf: generator.standard_normal(leaf.type.sizes).astype(np.float32) for leaf in leaves}
    named = {leaf: f"v{i}" for i, leaf in enumerate(leaves)}
    operands = [
        make("Constant", (), attributes(digest=named[leaf]), leaf.type) if leaf.attribute("constant")
        else make("Input", (), attributes(name=named[leaf]), leaf.type) for leaf in leaves
    ]  # fmt: skip
    arrays = {named[leaf]: value for leaf, value in values.items()}
    root = bind(fragment, operands)
    graph = Graph("one", tuple(o for o in operands if o.op == "Input"), (("y", root),), arrays)
    plan, _ = plan_program(Program(graph, (Kernel(fragment, tuple(operands), root, implementation),), 0.0), CompileOptions())
    try:
        executable = Executable(plan, arrays, threads=1)
    except KernelError:
        return None
    got = executable.run({str(o.attribute("name")): arrays[str(o.attribute("name"))] for o in graph.inputs})["y"]
    executable.close()
    (expected,) = evaluate((fragment,), values)
    return float(np.abs(got - expected).max() / (np.abs(expected).max() + 1e-30))


@pytest.mark.parametrize("family", IMPLEMENTATIONS, ids=lambda family: f"{family[0]}-{family[1][0]}")
def test_random_library_calls_agree_with_the_reference(family: tuple[str, tuple[str, ...], object]) -> None:
    """Every operator that the library runs, with random sizes, attributes, epilogues and layouts."""
    implementation, operators, _ = family
    ran = 0
    for seed in range(600):
        if ran == 12:
            break
        random = Random(seed)
        op = random.choice(operators)
        shapes, values = OPS[op].sample(random)
        leaves = [placeholder(i, float32(*shape), constant=i > 0 and random.random() < 0.7) for i, shape in enumerate(shapes)]
        node = apply(op, *leaves, **values)
        fragment = random_epilogue(random, node) if node.type.rank else node
        if isinstance(match(fragment, implementation), str):
            continue
        error = library_error(fragment, implementation, seed)
        assert error is None or error < 5e-5, format_fragment(fragment)
        ran += error is not None
    assert ran == 12


def operation(draw: st.DrawFn, array: np.ndarray, node: Node) -> tuple[np.ndarray | None, Node]:
    """Draw a view; the array is None where numpy itself would have to copy."""
    match draw(st.sampled_from(["Transpose", "Reshape", "Slice"])):
        case "Transpose":
            perm = tuple(draw(st.permutations(range(array.ndim))))
            return array.transpose(perm), apply("Transpose", node, perm=perm)
        case "Reshape":
            sizes, rest = [], array.size
            while rest > 1:
                sizes.append(draw(st.sampled_from([d for d in range(1, rest + 1) if rest % d == 0])))
                rest //= sizes[-1]
            shape = tuple(sizes) or (1,)
            view: np.ndarray | None = array.view()
            try:
                view.shape = shape  # type: ignore[union-attr]
            except AttributeError:
                view = None
            return view, apply("Reshape", node, shape=shape)
        case _:
            starts = tuple(draw(st.integers(0, n - 1)) for n in array.shape)
            steps = tuple(draw(st.integers(1, 2)) for _ in array.shape)
            ends = array.shape
            view = array[tuple(slice(a, b, c) for a, b, c in zip(starts, ends, steps, strict=True))]
            return view, apply("Slice", node, starts=starts, ends=ends, steps=steps)


@pytest.mark.filterwarnings("ignore:Setting the shape:DeprecationWarning")
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_chain_of_views_is_read_as_the_window_that_numpy_reads(data: st.DataObject) -> None:
    """Windows equal numpy's views wherever numpy needs no copy, and are refused wherever it does."""
    shape = data.draw(st.sampled_from([(2, 3, 4, 5), (1, 12, 5), (6, 1, 4), (24,)]))
    base = np.arange(np.prod(shape)).reshape(shape)
    array, node = base, placeholder(0, float32(*shape))
    for _ in range(data.draw(st.integers(1, 4))):
        view, node = operation(data.draw, array, node)
        if view is None:
            reason = read(node, lambda leaf: contiguous(leaf.type.sizes))
            assert isinstance(reason, str) and "not adjacent" in reason
            return
        array = view
    found = read(node, lambda leaf: contiguous(leaf.type.sizes))
    assert not isinstance(found, str)
    window = found[1]
    got = as_strided(base.reshape(-1)[window.offset :], window.shape, tuple(8 * stride for stride in window.strides))
    assert np.array_equal(got, array)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 8), st.integers(0, 8)), max_size=14))
def test_values_alive_together_never_share_memory(drawn: list[tuple[int, int, int]]) -> None:
    lifetimes = [Lifetime(i, size, min(a, b), max(a, b)) for i, (size, a, b) in enumerate(drawn)]
    plan = plan_arena(lifetimes)
    for value in lifetimes:
        assert plan.offsets[value.number] % 64 == 0 and plan.offsets[value.number] + value.size_bytes <= plan.size_bytes
    for one, other in itertools.combinations(lifetimes, 2):
        if one.overlaps(other) and one.size_bytes and other.size_bytes:
            a, b = plan.offsets[one.number], plan.offsets[other.number]
            assert a + one.size_bytes <= b or b + other.size_bytes <= a


def test_the_arena_is_shared_between_steps_that_follow_each_other() -> None:
    plan = plan_arena([Lifetime(i, 1024, i, i + 1) for i in range(10)])
    assert plan.size_bytes == 2048


def image(*shape: int, layout: str) -> Node:
    batch, channels, *space = shape
    return placeholder(0, float32(*((batch, channels, *space) if layout == "NCHW" else (batch, *space, channels))))


def plain_conv(x: Node, w: Node, layout: str) -> Node:
    return apply("Conv", x, w, strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), group=1, layout=layout)


def test_layouts_and_epilogues_become_strides_and_post_operations() -> None:
    x, w, bias, other = (
        image(2, 4, 5, 7, layout="NHWC"), placeholder(1, float32(6, 4, 3, 3), constant=True),
        placeholder(2, float32(1, 1, 1, 6), constant=True), placeholder(3, float32(2, 5, 7, 6)),
    )  # fmt: skip
    fragment = apply("Relu", apply("Add", apply("Add", plain_conv(x, w, "NHWC"), bias), other))
    call = match(fragment, "onednn.convolution")
    assert isinstance(call, LibraryCall)
    assert [a.role for a in call.arguments] == ["src", "weights", "bias", ""]
    assert call.arguments[0].window == Window(0, (2, 4, 5, 7), (140, 1, 28, 4))
    assert call.destination == Window(0, (2, 6, 5, 7), (210, 1, 42, 6))
    assert call.arguments[3].window.strides == (210, 1, 42, 6)
    assert [p.get("algorithm") for p in call.post_operations] == ["add", "relu"]
    assert call.arguments[1].packed and not call.arguments[0].packed
    refused = match(apply("Transpose", plain_conv(x, w, "NHWC"), perm=(0, 3, 1, 2)), "onednn.convolution")
    assert isinstance(refused, str) and "one order" in refused
    refused = match(apply("Transpose", fragment, perm=(0, 3, 1, 2)), "onednn.convolution")
    assert isinstance(refused, str) and "not channels last" in refused


@pytest.mark.parametrize(("shape", "fits"), [((8, 6), True), ((6,), True), ((1,), True), ((8, 1), False)])
def test_operands_beside_a_product_are_whole_or_vary_along_the_columns(shape: tuple[int, ...], fits: bool) -> None:
    product = apply("MatMul", placeholder(0, float32(8, 5)), placeholder(1, float32(5, 6), constant=True))
    assert isinstance(match(apply("Mul", product, placeholder(2, float32(*shape))), "onednn.matmul"), LibraryCall) == fits


def test_axes_of_size_one_take_the_order_of_the_others() -> None:
    pooled = apply("Transpose", apply("ReduceMean", image(1, 8, 5, 7, layout="NHWC"), axes=(1, 2)), perm=(0, 3, 1, 2))
    call = match(pooled, "onednn.pooling")
    assert isinstance(call, LibraryCall)
    assert (call.arguments[0].window.strides, call.destination.strides) == ((280, 1, 56, 8), (8, 1, 8, 8))


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda c: apply("Floor", c), "not an epilogue"),
        (lambda c: apply("Add", c, placeholder(2, float32(3, 2, 6, 5, 7))), "broadcasts"),
        (lambda c: apply("Div", placeholder(2, float32(1)), c), "divided by"),
        (lambda c: apply("Add", c, apply("Relu", c)), "both operands"),
        (lambda c: apply("Clip", c, min=-1.0, max=float("inf")), "finite bounds"),
    ],
)
def test_what_the_library_cannot_fuse_is_refused_with_the_reason(build: object, reason: str) -> None:
    conv = plain_conv(image(2, 4, 5, 7, layout="NCHW"), placeholder(1, float32(6, 4, 3, 3), constant=True), "NCHW")
    refused = match(build(conv), "onednn.convolution")  # type: ignore[operator]
    assert isinstance(refused, str) and reason in refused


def test_attention_is_laid_without_copies() -> None:
    graph = attention()
    frozen, nodes = freeze(graph)
    laid = candidates(frozen, "cpu")
    scores = next(i for i, n in nodes.items() if n.op == "MatMul" and n.type.sizes == (2, 4, 6, 6))
    folded = [one for one in laid[scores] if all(nodes[i].op == "Reshape" for i in one.operands)]
    assert [one.implementation for one in folded] == ["onednn.matmul"]
    merged = next(i for i, n in nodes.items() if n.op == "Transpose" and n.inputs[0].op == "MatMul")
    assert any(one.implementation == "onednn.matmul" and one.covered[0].op == "Transpose" for one in laid[merged])


def test_every_value_has_a_candidate_and_constants_have_none() -> None:
    for build in GRAPHS.values():
        frozen, nodes = freeze(build())
        laid = candidates(frozen, "cpu", supports=lambda fragment: "nothing is generated here")
        for number, node in nodes.items():
            assert bool(laid.get(number)) == (number not in frozen.constants and node.op != "Input"), node
            for one in laid.get(number, ()):
                indices = sorted({int(str(n.attribute("index"))) for n in walk((one.fragment,)) if n.op == "Placeholder"})
                assert indices == list(range(len(one.operands)))
                assert bind(one.fragment, [nodes[i] for i in one.operands]) is node


def test_the_number_of_candidates_grows_linearly() -> None:
    def chain(length: int) -> int:
        m = Model()
        x = m.input(1, 4, 6, 6)
        for _ in range(length):
            x = apply("Relu", apply("Add", m.conv(x, 4, 3), x))
        return sum(map(len, candidates(freeze(m.graph(x))[0], "cpu").values()))

    short, middle, long = chain(4), chain(8), chain(16)
    assert long - middle <= 2.2 * (middle - short)


def test_concatenated_values_are_written_in_place(tmp_path: Path) -> None:
    graph = concatenation()
    plan, _ = plan_program(choose(graph, "onednn"), CompileOptions())
    assert [s.kind for s in plan.steps] == ["onednn"] * 4  # three convolutions and a pool; neither concatenation
    concatenated = [b for b in plan.buffers if b.area == "arena" and b.shape == (1, 16, 6, 6)]
    assert len(concatenated) == 1
    first, second = (plan.buffers[plan.steps[i].outputs[0]] for i in (0, 1))
    assert {first.offset, second.offset} <= {concatenated[0].offset, concatenated[0].offset + 4 * 36, concatenated[0].offset + 12 * 36}


def overlapping(plan: Plan) -> list[tuple[int, int]]:
    """Return pairs (step, input) where a step writes on arena memory that a later step still reads from an earlier one."""

    def span(b: Buffer) -> tuple[int, int]:
        item = np.dtype(b.dtype).itemsize
        return b.offset * item, (b.offset + 1 + sum((n - 1) * s for n, s in zip(b.shape, b.strides, strict=True))) * item

    found = []
    for reader, step in enumerate(plan.steps):
        for number in step.inputs:
            wanted = plan.buffers[number]
            if wanted.area != "arena":
                continue
            low, high = span(wanted)
            writers = [
                i for i in range(reader) for o in plan.steps[i].outputs
                if plan.buffers[o].area == "arena" and span(plan.buffers[o])[0] < high and low < span(plan.buffers[o])[1]
            ]  # fmt: skip
            last = plan.steps[writers[-1]]
            inside = [low <= span(plan.buffers[o])[0] and span(plan.buffers[o])[1] <= high for o in last.outputs]
            covers = [span(plan.buffers[o])[0] <= low and high <= span(plan.buffers[o])[1] for o in last.outputs]
            if not any(inside) and not any(covers):
                found.append((reader, number))
    return found


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("prefer", ["onednn", "tvm"])
def test_no_step_reads_what_another_has_overwritten(name: str, prefer: str) -> None:
    plan, _ = plan_program(choose(GRAPHS[name](), prefer), CompileOptions())
    assert overlapping(plan) == []
    assert Plan.from_json(plan.to_json()).to_json() == plan.to_json()


def test_equal_programs_give_equal_bytes(tmp_path: Path) -> None:
    graph = concatenation()
    for name in ("one", "two"):
        compile_program(choose(graph, "onednn"), tmp_path / name)
    files = sorted(p.name for p in (tmp_path / "one").iterdir())
    assert files == ["manifest.json", "plan.json", "weights.safetensors"]
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
