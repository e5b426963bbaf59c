"""Compile kernels in batches, each as a program of its own that can be measured.

Starting the compiler costs as much as compiling several kernels, so one run of it compiles a batch into one shared library.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from egraph.errors import EinsatError, LowerError
from egraph.onnx.integer_ranges import FLAGS, integer_ranges
from egraph.tensor import (
    ELEMENT_TYPES,
    PLAIN,
    Graph,
    Implementation,
    Kernel,
    Node,
    Program,
    TensorType,
    attributes,
    make,
    placeholders,
    rewrite,
    walk,
)
from egraph.tensor.ops import apply
from egraph.tensor.storage import in_one_type
from lower.compile import PLAN, WEIGHTS, CompileOptions, plan_program
from lower.cost.rounding import NEARLY_EXACT, ROUNDED_OPERATORS
from lower.eoperator import KernelRequest
from lower.placement import is_sized
from lower.quantised import MEASURED_RANGE, Scale, expanded, is_quantised
from lower.quantised import PRECISION as IN_BYTES
from lower.targets import Compiled, lowering_for
from lower.weights import write_weights
from runtime.feeds import FeedSpec, Values, random_weights
from runtime.plan import Plan


def compile_batch(
    programs: Sequence[Program], folder: Path, options: CompileOptions, tell: Callable[[float, float], None] = lambda work, seconds: None
) -> list[Path | EinsatError]:
    """Return, for every program, the runnable folder inside ``folder`` or the reason why there is none.

    The folders are for measuring only: they share their kernel library by a link, and have no manifest. ``tell`` is called with the
    ``compile_work`` of the kernels that were compiled, and the seconds that this took.
    """
    planned = [_planned(program, options) for program in programs]
    sources = dict.fromkeys(source for each in planned if isinstance(each, _Planned) for source in each.carried.values())
    requests = {symbol: request for each in planned if isinstance(each, _Planned) for symbol, request in each.requests.items()}
    shared = folder / lowering_for(options.target).generator.file
    failed: dict[str, LowerError] = {}
    with ThreadPoolExecutor() as pool:  # each in a compiler of its own
        libraries = dict(zip(sources, pool.map(lowering_for(options.target).build, sources), strict=True))
    if requests:
        compiled, work = compile_requests(list(requests.values()), shared, options)
        tell(work, compiled.seconds)
        failures = compiled.failures
        failed = {symbol: failures[request] for symbol, request in requests.items() if request in failures}
    results: list[Path | EinsatError] = []
    for number, program_plan in enumerate(planned):
        if isinstance(program_plan, EinsatError):
            results.append(program_plan)
        elif broken := [failed[symbol] for symbol in program_plan.requests if symbol in failed]:
            results.append(broken[0])
        else:
            results.append(_written(program_plan, folder / str(number), shared, libraries))
    return results


def compile_requests(requests: Sequence[KernelRequest], path: Path, options: CompileOptions) -> tuple[Compiled, float]:
    """Compile generated kernels for the target of ``options`` into one file; return it, and the ``compile_work`` that was done."""
    compiler = lowering_for(options.target).generator.compiler
    assert compiler is not None, "only a target with a compiler has requests"
    waiting = _uncompiled(requests, options)
    compiled = compiler.compile(requests, path, threads=options.threads)
    return compiled, compile_work(waiting) * compiled.compiled / max(1, len(waiting))


def uncompiled(programs: Sequence[Program], options: CompileOptions) -> list[KernelRequest]:
    """Return the programs' generated kernels that were not compiled before."""
    return _uncompiled(kernel_requests(programs, options).values(), options)


def _uncompiled(requests: Iterable[KernelRequest], options: CompileOptions) -> list[KernelRequest]:
    """Return the requests that were not compiled before."""
    compiler = lowering_for(options.target).generator.compiler
    return compiler.uncompiled(list(requests), threads=options.threads) if compiler else []


WORK_PER_SQUARE = 1 / 15
"""How much longer a kernel takes to compile, by the square of its operators beyond the first: 639 kernels of six networks took 1.3 s for
22 operators and 0.03 s for one. Their number alone explained 28 % of the variance between batches, this explains 61 %.
"""


def keeps_kernels(options: CompileOptions) -> bool:
    """Return whether a kernel that is compiled ahead need not be compiled again."""
    compiler = lowering_for(options.target).generator.compiler
    return compiler is not None and compiler.keeps_kernels


def compile_work(requests: Iterable[KernelRequest]) -> float:
    """Return how long kernels take to compile, in kernels of one operator."""
    return sum(1.0 + WORK_PER_SQUARE * (_operators(request.fragment) - 1) ** 2 for request in requests)


def _operators(fragment: Node) -> int:
    return sum(node.op != "Placeholder" for node in walk((fragment,)))


def uncompiled_work(kernels: Iterable[tuple[Node, Implementation]], options: CompileOptions) -> float:
    """Return the ``compile_work`` of the generated kernels, for contiguous operands and results, that were not compiled before."""
    requests = {KernelRequest(fragment, precision=each.precision): None for fragment, each in kernels if each.is_generated}
    return compile_work(_uncompiled(requests, options))


@dataclass(frozen=True)
class _Planned:
    program: Program
    plan: Plan
    models: Mapping[str, bytes]
    """Models of opaque steps, by the names of their files."""
    requests: Mapping[str, KernelRequest]
    """Generated kernels by symbol."""
    carried: Mapping[str, Path]
    """C sources of libraries, by the names of the compiled files."""


def _planned(program: Program, options: CompileOptions) -> _Planned | EinsatError:
    try:
        plan, writer = plan_program(program, options)
    except EinsatError as error:
        return error
    return _Planned(writer.program, plan, writer.models, writer.requests, writer.carried)


def _written(planned: _Planned, folder: Path, shared: Path, libraries: Mapping[Path, Path]) -> Path:
    """Write the folder of a program whose generated kernels are in a ``shared`` library; ``libraries`` maps C sources to built files."""
    folder.mkdir(parents=True)
    weights = dict.fromkeys(buffer.key for buffer in planned.plan.buffers if buffer.area == "weight")
    if weights:  # also in their given order, for the reference
        given = (node.string("digest") for node in walk(planned.program.graph.roots) if node.op == "Constant" and is_sized(node))
        write_weights(folder / WEIGHTS, {key: planned.program.graph.tensors[key] for key in dict.fromkeys((*weights, *given))})
    for name, model in planned.models.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(model)
    if planned.requests:
        os.link(shared, folder / shared.name)
    for name, source in planned.carried.items():
        shutil.copyfile(libraries[source], folder / name)
    (folder / PLAN).write_text(planned.plan.to_json(), encoding="utf-8")
    return folder


def kernel_requests(programs: Sequence[Program], options: CompileOptions) -> dict[str, KernelRequest]:
    """Return the generated kernels of programs by symbol, in their order; a program that cannot be planned has none."""
    requests_by_symbol: dict[str, KernelRequest] = {}
    for program in programs:
        try:
            requests = plan_program(program, options)[1].requests
        except EinsatError:
            continue
        requests_by_symbol |= {request.symbol: request for request in requests.values()}
    return requests_by_symbol


TF32_SPLIT, TF32_FACTOR = "einsat.tf32", 2.0**13 + 1
"""A constant's name and value: x c - (x c - x), in float32, is x with the 11 significant bits of tf32."""
NEVER_NEGATIVE = ("Exp", "Abs", "Sigmoid", "Softmax", "Softplus", "Sqrt")
DIVISORS = {"Sqrt": 0, "Log": 0, "Reciprocal": 0, "Pow": 0, "Div": 1}
"""Operators that are undefined or badly conditioned if this operand (by position) is near or below 0."""


def kernel_program(fragment: Node, implementation: Implementation, *, seed: int) -> Program:
    """Return a program of this one kernel, with random weights, for measuring."""
    tensors = random_weights(weight_specs(fragment), seed)
    leaves: dict[Node, Node] = {}
    for leaf in placeholders(fragment):
        index = leaf.integer("index")
        if leaf.attribute("constant"):
            leaves[leaf] = make("Constant", (), attributes(digest=_weight(leaf)), leaf.type)
        else:
            leaves[leaf] = make("Input", (), attributes(name=f"x{index}"), TensorType(leaf.type.dtype, leaf.type.shape))
    root = rewrite((fragment,), lambda old, operands: leaves.get(old) or make(old.op, operands, old.attributes, old.type))[fragment]
    operands = tuple(leaves.values())
    inputs = tuple(node for node in operands if node.op == "Input")
    graph = Graph("kernel", inputs, (("y", root),), tensors)
    kernel = Kernel(fragment, operands, root, implementation)
    return Program(graph, (replace(kernel, source_range=MEASURED_RANGE) if is_quantised(kernel) else kernel,), 0.0)


def _weight(leaf: Node) -> str:
    """Return the name of the weight that a constant placeholder of a kernel becomes."""
    return f"random{leaf.integer('index')}"


def weight_specs(fragment: Node) -> tuple[FeedSpec, ...]:
    """Return the specifications to draw the constants of a kernel."""
    ranges, values = integer_ranges((fragment,)), leaf_values(fragment)
    return tuple(
        FeedSpec(_weight(leaf), leaf.type.dtype, leaf.type.sizes, high + 1, values[leaf], low)
        for leaf in placeholders(fragment)
        if leaf.attribute("constant")
        for low, high in [ranges.get(leaf, FLAGS)]
    )


def leaf_values(fragment: Node) -> dict[Node, Values]:
    """Return how to draw each placeholder: away from 0 if a root, logarithm or quotient requires it.

    Exponents are whole numbers, because a power of a base near 0 would magnify its rounding without bound.
    """
    critical: set[Node] = set()
    stack = [node.inputs[DIVISORS[node.op]] for node in walk((fragment,)) if node.op in DIVISORS]
    while stack:
        node = stack.pop()
        is_square = node.op == "Mul" and node.inputs[0] is node.inputs[1]
        if node not in critical and node.op not in NEVER_NEGATIVE and not is_square:
            critical.add(node)
            stack.extend(node.inputs)
    exponents = {leaf for node in walk((fragment,)) if node.op == "Pow" for leaf in walk(node.inputs[1:])}

    def values(leaf: Node) -> Values:
        return "whole" if leaf in exponents else "positive" if leaf in critical else "normal"

    return {node: values(node) for node in walk((fragment,)) if node.op == "Placeholder"}


def feed_specs(program: Program) -> tuple[FeedSpec, ...]:
    """Return the specifications to draw the inputs of a program of one kernel."""
    ranges = integer_ranges(program.graph.roots)
    (kernel,) = program.kernels
    values = leaf_values(kernel.fragment)
    drawn = {kernel.inputs[leaf.integer("index")]: value for leaf, value in values.items()}
    return tuple(
        FeedSpec(node.string("name"), node.type.dtype, node.type.sizes, high + 1, drawn.get(node, "normal"), low)
        for node in program.graph.inputs
        for low, high in [ranges.get(node, FLAGS)]
    )


def reference_graph(graph: Graph) -> Graph:
    """Return the graph with its constants as inputs named by their digests, so that its size does not depend on the weights."""
    constants = sorted((node for node in walk(graph.roots) if node.op == "Constant"), key=lambda node: node.string("digest"))
    inputs = {node: make("Input", (), attributes(name=node.string("digest")), node.type) for node in constants}
    roots = list(dict.fromkeys(graph.roots))
    new = rewrite(roots, lambda old, operands: inputs.get(old) or make(old.op, operands, old.attributes, old.type))
    return replace(
        graph, inputs=(*graph.inputs, *inputs.values()), outputs=tuple((name, new[node]) for name, node in graph.outputs), tensors={}
    )  # fmt: skip


def in_float32(graph: Graph) -> Graph:
    """Return the graph of one kernel with stored bf16 operands and results in float32, because onnxruntime does not read bf16."""
    roots = list(dict.fromkeys((*graph.roots, *graph.inputs)))
    new = in_one_type(roots, lambda leaf: PLAIN if leaf.type.dtype == "bfloat16" else leaf.type.dtype)
    outputs = tuple((name, new[node]) for name, node in graph.outputs)
    return replace(graph, inputs=tuple(new[node] for node in graph.inputs), outputs=outputs)


def rounded(graph: Graph, precision: str) -> Graph:
    """Return the graph with the operands of its products rounded, as kernels of this precision compute.

    The graph is unchanged for kernels in bytes, whose expanded program already rounds, and for nearly exact ones, whose errors are no
    larger than others'.
    """
    if precision in (PLAIN, IN_BYTES, *NEARLY_EXACT):
        return graph

    def change(old: Node, operands: tuple[Node, ...]) -> Node:
        if old.op in ROUNDED_OPERATORS:
            operands = (*(rounded_operand(operand, precision) for operand in operands[:2]), *operands[2:])
        return make(old.op, operands, old.attributes, old.type)

    roots = list(dict.fromkeys(graph.roots))
    new = rewrite(roots, change)
    tensors = {**graph.tensors, TF32_SPLIT: np.array(TF32_FACTOR, np.float32)} if precision == "tf32" else graph.tensors
    return replace(graph, outputs=tuple((name, new[node]) for name, node in graph.outputs), tensors=tensors)


def in_bytes(program: Program) -> Program:
    """Return the program of one kernel, with quantised operators if it computes in bytes."""
    return expanded(program, program.kernels[0].implementation)


def quantised_operand(node: Node, scale: Scale) -> Node:
    """Return a value quantised to bytes and back."""
    return apply("Dequantize", apply("Quantize", node, *scale.constants), *scale.constants)


def rounded_operand(node: Node, precision: str) -> Node:
    """Return a value converted to the element type of a precision and back; tf32 uses float32 arithmetic (Veltkamp's splitting)."""
    if precision == "tf32":
        split = make("Constant", (), attributes(digest=TF32_SPLIT), TensorType(node.type.dtype, ()))
        wide = apply("Mul", node, split)
        return apply("Sub", wide, apply("Sub", wide, node))
    narrow = make("Cast", (node,), (), TensorType(ELEMENT_TYPES[precision], node.type.shape))
    return make("Cast", (narrow,), (), node.type)
