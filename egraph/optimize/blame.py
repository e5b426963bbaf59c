"""Find the cause of a program that is wrong on given inputs: kernels that disagree with their fragments, or rules that changed a value.

The reference is onnxruntime without optimisations. It is compared with each kernel alone, on the operands that the kernel has in the
program, and with each value that the program still shares with the input model. It is also compared with each part of the program between
such values: both compute the part from the same values, so that no part inherits the error of another.

A rule may be wrong at sizes that no test drew. If the check of a program failed and no kernel is the cause, the search is therefore
repeated. Each right side is executed beside its left side, at the model's own sizes, on random data. If they differ, the rule is the cause,
however far from the wrong output it was used.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from egraph.engine.saturate import Limits, saturate
from egraph.errors import EinsatError
from egraph.onnx import exporter
from egraph.onnx.integer_ranges import FLAGS, integer_ranges
from egraph.optimize.check_noise import NOISE_FACTOR, open_exported, open_onnxruntime, relative_error, shaken
from egraph.optimize.kernels import compile_batch, in_bytes, leaf_values, rounded
from egraph.policy import SaturationPolicy
from egraph.rule import Binding, MergeRule, Rule
from egraph.tensor import LEAVES, PLAIN, Graph, Kernel, Node, Program, TensorType, attributes, bind, make, numpy_dtype, rewrite, walk
from egraph.tensor.ops import OPS, apply
from egraph.tensor.ops.dtypes import BYTES
from egraph.tensor.storage import without_stored
from egraph.tolerance import Tolerance
from lower.compile import CompileOptions
from lower.targets import name_of
from runtime import Session
from runtime.errors import ExecutionError
from runtime.feeds import Values, random_array
from runtime.judge import TOLERANCE, WrongResult, judge

FEW_DIGITS_BELOW = 2.0**-102
"""Magnitude of float32 below which zeros in place of subnormal operands (2^-126) change more than the last of 24 binary digits."""
MOST_PART_TOLERANCES = 100.0
"""Largest error of a part of a program, in tolerances, that amplified rounding excuses: 1e-2 by default."""
MOST_MOVED_TIES = 1e-2
"""Largest part of a tensor of bytes that may be off if its part of the program rounds to bytes inside, and moving the numbers there has
such an effect.
"""
MOST_TIES = 1e-3
"""Part of a tensor of whole numbers that may be off by one step if its part of the program rounds to them."""
ROUNDING = ("Quantize", "Saturate")
"""Operators that round numbers to bytes."""
ROUNDED = 2.0**-21
"""Error of float32 sums that are added in another order, relative to the largest element of the tensor: four last bits."""
POINTWISE = ("elementwise", "view", "movement")
"""Categories of operators whose elements each depend on single elements of the operands."""
SHOWN_PARTS = 3
"""Largest number of differing parts that a message names."""
SHAKEN = 3
"""Number of times that the operands of a part are changed by their last bit, to learn the effect of rounding."""


@dataclass(frozen=True)
class Parts:
    """The comparison of the parts of a program with those of the model; both compute each part from the same values."""

    count: int = 0
    worst_error: float = 0.0
    wrong: Mapping[str, str] = field(default_factory=dict)
    """The values that differ by more than rounding explains, with their difference and the accepted one."""

    @property
    def agree(self) -> bool:
        """Return whether the program shares values with the model and all parts between them agree."""
        return self.count > 1 and not self.wrong

    def __str__(self) -> str:
        if self.wrong:
            shown = "; ".join(f"{name}: {difference}" for name, difference in [*self.wrong.items()][:SHOWN_PARTS])
            more = f", the first {SHOWN_PARTS}" if len(self.wrong) > SHOWN_PARTS else ""
            return f"{len(self.wrong)} of {self.count} parts of it, computed from the same values, differ{more}: {shown}"
        return f"each of {self.count} parts of it, computed from the same values, agrees within {self.worst_error:.2g}"


@dataclass(frozen=True)
class Blame:
    """The causes of a difference: kernels with the reason, and rules of kernels that compute another value than the model."""

    kernels: tuple[tuple[Kernel, str], ...] = ()
    rules: tuple[str, ...] = ()
    source_nodes: tuple[str, ...] = ()
    parts: Parts = Parts()
    noise: Mapping[str, float] = field(default_factory=dict)
    """How far outputs of the model move if the numbers that become bytes are moved by as much as rounding moves them."""

    def __str__(self) -> str:
        parts = [f"kernel {kernel.implementation}: {reason}" for kernel, reason in self.kernels]
        parts += [f"rules: {', '.join(self.rules)}"] if self.rules else []
        parts += [f"ONNX nodes: {', '.join(self.source_nodes)}"] if self.source_nodes else []
        parts += [str(self.parts)] if self.parts.wrong else []
        return "; ".join(parts) or "every kernel alone and every value by itself agree"


def blame(original: Graph, program: Program, feeds: Mapping[str, Any], options: CompileOptions, tolerance: Tolerance) -> Blame:
    """Return the causes of differences when ``program``, made from ``original``, runs on ``feeds``."""
    with tempfile.TemporaryDirectory(prefix="einsat-blame-") as folder:
        meant = without_stored(program)
        pairs = [(k, m) for k, m in zip(program.kernels, meant.kernels, strict=True) if m.output.type.shape is not None]
        values = kernel_values(meant, feeds, options.threads)
        alone = [
            (k, m)
            for k, m in pairs
            if not (k.implementation.is_free or k.implementation.is_opaque) and all(n in values or n.op == "Constant" for n in m.inputs)
        ]
        wrong = _wrong_kernels(program.graph, meant.graph, alone, values, Path(folder) / "kernels", options)
        parts = Parts() if wrong else compare_parts(original, meant, values, options.threads, tolerance)
        is_explained = wrong or parts.agree
        rules, nodes = ((), ()) if is_explained else changed(original, meant, values, feeds, options.threads)
        noise = {} if wrong else noise_before_bytes(original, feeds, options.threads)
    for kernel, _ in wrong:
        nodes = tuple(dict.fromkeys((*nodes, *program.graph.origins.get(kernel.output, ()))))
        rules = tuple(dict.fromkeys((*rules, *kernel.rules)))
    return Blame(tuple(wrong), rules, nodes, parts, noise)


def noise_before_bytes(original: Graph, feeds: Mapping[str, Any], threads: int) -> dict[str, float]:
    """Return how far, relatively, float outputs of a model that rounds to bytes move if the numbers that become bytes are moved.

    Moving inputs and weights by their last bit need not move these numbers, because gates that saturate, and means, absorb such changes.
    """
    outputs = {name: node for name, node in original.outputs if node.type.dtype == "float32" and node.op not in LEAVES}
    if not outputs or not any(node.op in ROUNDING for node in walk(outputs.values())):
        return {}
    exact, moved = stirred(original, list(outputs.values()), feeds, threads)
    return {name: max(relative_error(exact[node], each[node]) for each in moved) for name, node in outputs.items()}


def stirred(
    graph: Graph, nodes: Sequence[Node], feeds: Mapping[str, Any], threads: int
) -> tuple[dict[Node, np.ndarray], list[dict[Node, np.ndarray]]]:
    """Return the values of nodes, and those of runs where inputs move by their last bit and numbers that become bytes by ``ROUNDED``."""
    becoming = (node.inputs[0] for node in walk(nodes) if node.op in ROUNDING)
    numbers = [node for node in dict.fromkeys(becoming) if node.op not in LEAVES and node.type.is_static]
    stirs = {node: make("Input", (), attributes(name=f"stir {i}"), node.type) for i, node in enumerate(numbers)}

    def change(old: Node, operands: tuple[Node, ...]) -> Node:
        same = make(old.op, operands, old.attributes, old.type)
        return apply("Add", same, stirs[old]) if old in stirs else same

    new = rewrite((*nodes, *numbers), change)
    stirred_graph = replace(graph, inputs=(*graph.inputs, *stirs.values()), names={}, origins={})
    run = opened(stirred_graph, [new[node] for node in (*nodes, *numbers)], threads)
    exact = run({**feeds, **{stir.string("name"): np.zeros(node.type.sizes, np.float32) for node, stir in stirs.items()}})
    moved_runs = []
    for seed in range(SHAKEN):
        generator, moved_feeds = np.random.default_rng(seed), shaken(feeds, seed)
        for node, stir in stirs.items():
            most = ROUNDED * np.max(np.abs(exact[new[node]]), initial=0.0)
            moved_feeds[stir.string("name")] = np.asarray(most * generator.uniform(-1, 1, node.type.sizes), np.float32)
        moved = run(moved_feeds)
        moved_runs.append({node: moved[new[node]] for node in nodes})
    return {node: exact[new[node]] for node in nodes}, moved_runs


def kernel_values(program: Program, feeds: Mapping[str, Any], threads: int) -> dict[Node, np.ndarray]:
    """Return the values that a program's kernels compute and read, by onnxruntime without optimisations: as rewritten, not as compiled.

    They include values of the model that the program has in another layout, in the model's layout. They also include bytes inside of
    kernels that the model has too, because two ways to compute a number differ when it becomes a byte.
    """
    made = [k.output for k in program.kernels if not k.implementation.is_free and k.output.type.shape is not None]
    bytes_inside = frozenset(node for node in walk(made) if node.type.dtype in BYTES)
    named = [node for node in program.graph.names if node in bytes_inside and node.op not in LEAVES]
    moved = program.graph.named_moves(bytes_inside.union(made))
    values = evaluate(program.graph, [*made, *named, *moved], feeds, threads)
    values |= {n: np.asarray(feeds[n.string("name")]) for n in program.graph.inputs if n.string("name") in feeds}
    values |= {n: program.graph.tensors[n.string("digest")] for n in walk(program.graph.roots) if n.op == "Constant"}
    return values


def evaluate(graph: Graph, nodes: Sequence[Node], feeds: Mapping[str, Any], threads: int) -> dict[Node, np.ndarray]:
    """Return the values of a graph's nodes by onnxruntime without optimisations."""
    return opened(graph, nodes, threads)(feeds)


def opened(
    graph: Graph, nodes: Sequence[Node], threads: int
) -> Callable[[Mapping[str, Any]], dict[Node, np.ndarray]]:
    """Return a function from a graph's inputs to its nodes' values in onnxruntime without optimisations; leaves are excluded."""
    computed = [node for node in dict.fromkeys(nodes) if node.op not in LEAVES]
    if not computed:
        return lambda feeds: {}
    outputs = tuple((f"einsat value {i}", node) for i, node in enumerate(computed))
    session = open_exported(replace(graph, outputs=outputs), threads, optimise=False)
    names = {port.name for port in session.get_inputs()}

    def run(feeds: Mapping[str, Any]) -> dict[Node, np.ndarray]:
        return dict(zip(computed, session.run(None, {name: feeds[name] for name in names if name in feeds}), strict=True))

    return run


def _wrong_kernels(
    graph: Graph,
    meant_graph: Graph,
    kernels: Sequence[tuple[Kernel, Kernel]],
    values: Mapping[Node, np.ndarray],
    folder: Path,
    options: CompileOptions,
) -> list[tuple[Kernel, str]]:
    """Return the wrong kernels. Each is given with its meaning without narrower storage, whose graph is ``meant_graph``."""
    folder.mkdir()
    wrong = []
    compiled_folders = compile_batch([_alone(graph, kernel) for kernel, _ in kernels], folder, options)
    for (kernel, plain), compiled in zip(kernels, compiled_folders, strict=True):
        if isinstance(compiled, EinsatError):
            continue
        result: Any = None
        operands = [(f"x{i}", *pair) for i, pair in enumerate(zip(kernel.inputs, plain.inputs, strict=True)) if pair[0].op != "Constant"]
        stored = {name: np.require(values[node], numpy_dtype(lies.type.dtype), "C") for name, lies, node in operands}
        feeds = {name: np.require(stored[name], values[node].dtype, "C") for name, _, node in operands}
        meant, expected = _alone(meant_graph, plain), values[plain.output]
        if kernel.implementation.precision != PLAIN or kernel.fragment is not plain.fragment:
            meant = replace(meant, graph=rounded(in_bytes(meant).graph, kernel.implementation.precision))
            (expected,) = evaluate(meant.graph, meant.graph.roots, feeds, options.threads).values()
        try:
            with Session(compiled, threads=options.threads, on=name_of(options.target)) as session:
                result = session.run(None, stored)[0]
            judge(result, expected)
        except WrongResult as error:
            compared = meant, feeds, expected, np.asarray(result, expected.dtype), options.threads
            is_flushed = not options.keep_subnormals and _is_flushed(expected, np.asarray(result))
            if not (is_flushed or _is_rounding(*compared) or _is_single_steps(*compared)):
                wrong.append((kernel, str(error)))
        except (EinsatError, ExecutionError) as error:
            wrong.append((kernel, str(error)))
    return wrong


def _is_flushed(expected: Any, result: Any) -> bool:
    """Return whether both are so small that they may differ because subnormal operands count as zero."""
    return expected.dtype == np.float32 and all(np.max(np.abs(each), initial=0.0) < FEW_DIGITS_BELOW for each in (expected, result))


def _is_rounding(alone: Program, feeds: Mapping[str, np.ndarray], expected: Any, result: Any, threads: int) -> bool:
    """Return whether changing the operands in their last bit moves the result in onnxruntime as far; the kernel is not wrong then."""
    constants = shaken(alone.graph.tensors, 0)
    moved = evaluate(replace(alone.graph, tensors=constants), alone.graph.roots, shaken(feeds, 0), threads)
    noise = max((relative_error(expected, value) for value in moved.values()), default=0.0)
    return bool(relative_error(expected, result) <= NOISE_FACTOR * noise)


def _is_single_steps(alone: Program, feeds: Mapping[str, np.ndarray], expected: Any, result: Any, threads: int) -> bool:
    """Return whether the result is off in few places, by no more than one step of the bytes that the kernel rounds to inside.

    A number halfway between two bytes may go either way, and a kernel that dequantises it again is off by a whole step in one place. The
    effect of a step is computed by onnxruntime for all elements at once, so every element must depend on the bytes at single places.
    """
    (root,) = alone.graph.roots
    inner = [node for node in walk((root,)) if node.op in ROUNDING and node is not root]
    above = {node for node in walk((root,)) if any(byte in walk((node,)) for byte in inner)}
    difference = np.abs(np.asarray(result, np.float64) - np.asarray(expected, np.float64))
    accepted = TOLERANCE * float(np.max(np.abs(expected), initial=0.0))
    is_pointwise = all(OPS[node.op].category in POINTWISE for node in above)
    if not inner or not is_pointwise or np.count_nonzero(~(difference <= accepted)) > 1 + MOST_TIES * difference.size:
        return False
    step = make("Input", (), attributes(name="step"), TensorType("float32", ()))

    def stepped(byte: Node) -> Node:
        def change(old: Node, operands: tuple[Node, ...]) -> Node:
            same = make(old.op, operands, old.attributes, old.type)
            if old is not byte:
                return same
            return apply("Saturate", apply("Add", apply("Cast", same, to="float32"), step), to=old.type.dtype)

        return rewrite((root,), change)[root]

    roots = [stepped(byte) for byte in inner]
    graph = replace(alone.graph, inputs=(*alone.graph.inputs, step))
    run = opened(graph, roots, threads)
    up, down = (run({**feeds, "step": np.asarray(size, np.float32)}) for size in (1, -1))
    reach = sum(np.maximum(np.abs(up[node] - expected), np.abs(down[node] - expected)) for node in roots)
    return bool(np.all(difference <= accepted + reach))


def _alone(graph: Graph, kernel: Kernel) -> Program:
    """Return the program of this one kernel: computed operands become inputs, constants stay."""
    operands = tuple(
        node if node.op == "Constant" else make("Input", (), attributes(name=f"x{i}"), TensorType(node.type.dtype, node.type.shape))
        for i, node in enumerate(kernel.inputs)
    )
    root = bind(kernel.fragment, operands)
    tensors = {n.string("digest"): graph.tensors[n.string("digest")] for n in operands if n.op == "Constant"}
    inputs = tuple(node for node in operands if node.op == "Input")
    return Program(Graph("kernel", inputs, (("y", root),), tensors), (replace(kernel, inputs=operands, output=root),), 0.0)


def changed(
    original: Graph, program: Program, values: Mapping[Node, np.ndarray], feeds: Mapping[str, Any], threads: int
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the rules and source nodes of the first kernels whose value is no longer the model's."""
    named = {name: node for node, name in original.names.items()}
    named |= dict(original.outputs)
    named_values = {node: name for node, name in program.graph.names.items() if name in named and node in values}
    named_values |= {node: name for name, node in program.graph.outputs if node in values}
    before = evaluate(original, [named[name] for name in named_values.values()], feeds, threads)
    for kernel in program.kernels:  # in running order: return the first one that differs, with all that led to it
        node = kernel.output
        if node not in named_values or named[named_values[node]] not in before:
            continue
        try:
            judge(values[node], before[named[named_values[node]]])
        except WrongResult:
            inside = _since(program, kernel, set(named_values))
            rules = dict.fromkeys(rule for k in inside for rule in k.rules)
            nodes = dict.fromkeys(name for k in inside for name in program.graph.origins.get(k.output, ()))
            return tuple(rules), tuple(nodes)
    return (), ()


def compare_parts(
    original: Graph, program: Program, values: Mapping[Node, np.ndarray], threads: int, tolerance: Tolerance
) -> Parts:
    """Compare every value that program and model share; the model computes it from the program's shared values below it.

    By induction over these parts, the program equals the model up to the returned errors. If a part rounds to bytes, single bytes may be
    off by a step, because a value between two steps goes either way. They may be off by several steps if the part rounds to coarser bytes
    below.
    """
    named = {name: node for node, name in original.names.items()} | dict(original.outputs)
    names = {**program.graph.names, **{node: name for name, node in program.graph.outputs}}
    shared = {named[name]: values[node] for node, name in names.items() if name in named and node in values and node.op not in LEAVES}
    shared = {node: value for node, value in shared.items() if node.op not in LEAVES and node.type.is_static}
    feeds = {f"cut {i}": value for i, value in enumerate(shared.values())}
    cuts = {
        node: make("Input", (), attributes(name=name), TensorType(node.type.dtype, node.type.shape))
        for node, name in zip(shared, feeds, strict=True)
    }
    below = dict.fromkeys(operand for node in shared for operand in node.inputs)
    cut = rewrite(tuple(below), lambda old, operands: cuts.get(old) or make(old.op, operands, old.attributes, old.type))
    parts = {node: make(node.op, [cut[operand] for operand in node.inputs], node.attributes, node.type) for node in shared}
    inputs = {node: values[node] for node in original.inputs if node in values}
    feeds |= {node.string("name"): value for node, value in inputs.items()}
    graph = replace(original, inputs=(*inputs, *cuts.values()), names={}, origins={})
    expected, moved = stirred(graph, list(parts.values()), feeds, threads)
    wrong, worst_error = {}, 0.0
    for node, part in parts.items():
        error, difference = _part_error(expected[part], shared[node], [each[part] for each in moved], tolerance)
        worst_error = max(worst_error, error)
        if difference:
            wrong[original.names.get(node, node.op)] = difference
    return Parts(len(parts), worst_error, wrong)


def _part_error(want: np.ndarray, got: np.ndarray, moved: Sequence[np.ndarray], tolerance: Tolerance) -> tuple[float, str]:
    """Return the error of a part, and a text if it exceeds the tolerance and what rounding explains, else an empty one."""
    if want.shape != got.shape or want.dtype != got.dtype:
        return float("inf"), f"{got.dtype}{list(got.shape)} in place of {want.dtype}{list(want.shape)}"
    if want.dtype.kind in "iub":
        steps = np.abs(want.astype(np.int64) - got.astype(np.int64))
        off, most_off, most_steps = int(np.count_nonzero(steps)), 0, 1
        if want.dtype.name in BYTES:
            moved_steps = [np.abs(want.astype(np.int64) - each.astype(np.int64)) for each in moved]
            most_steps = max(1, *(int(np.max(each, initial=0)) for each in moved_steps))
            moved_off = NOISE_FACTOR * max(int(np.count_nonzero(each)) for each in moved_steps)
            most_off = int(max(1 + MOST_TIES * want.size, min(moved_off, MOST_MOVED_TIES * want.size)))
        if off == 0 or (int(steps.max()) <= most_steps and off <= most_off):
            return 0.0, ""
        accepted = f"{most_off} by up to {most_steps}" if most_off else "none"
        return 0.0, f"{off} of {want.size} whole numbers are off, by up to {int(steps.max())} (accepted: {accepted})"
    strange = ~np.isfinite(want)
    if not np.array_equal(strange, ~np.isfinite(got)) or not np.array_equal(want[strange], got[strange], equal_nan=True):
        return float("inf"), "NaN or infinity at other places, or of another sign"
    error = relative_error(want, got)
    if error <= tolerance.relative:
        return error, ""
    noise = max(relative_error(want, each) for each in moved)
    most_error = max(tolerance.relative, min(NOISE_FACTOR * noise, MOST_PART_TOLERANCES * tolerance.relative))
    is_explained = error <= most_error
    return error, "" if is_explained else f"an error of {error:.2g} (accepted: {most_error:.2g}, as rounding explains {noise:.2g})"


def _since(program: Program, kernel: Kernel, shared: set[Node]) -> list[Kernel]:
    """Return a kernel and the kernels that feed it, back to values that the input model has too."""
    by_output = {k.output: k for k in program.kernels}
    kernels: list[Kernel] = []
    stack = [kernel]
    while stack:
        current = stack.pop()
        if current not in kernels:
            kernels.append(current)
            stack += [by_output[node] for node in current.inputs if node in by_output and node not in shared]
    return kernels


def wrong_rules(
    graph: Graph, rules: Sequence[Rule | MergeRule], limits: Limits, *, seed: int, policy: SaturationPolicy = SaturationPolicy()
) -> dict[str, str]:
    """Return the rules that have a wrong instance in the e-graph of ``graph``, each with the difference of its sides."""
    reasons: dict[str, str] = {}

    def watched(rule: Rule | MergeRule) -> Rule | MergeRule:
        def admits(bindings: Sequence[Binding], lefts: Sequence[Node], rights: Sequence[Node]) -> str:
            if rule.admits is not None and (reason := rule.admits(bindings, lefts, rights)):
                return reason
            wrong = difference(rule, bindings, seed=seed)
            if wrong:
                reasons.setdefault(rule.name, wrong)
            return wrong  # rejected, so that a wrong equation puts the blame on no other rule

        return replace(rule, admits=admits)

    saturate(graph, [watched(rule) for rule in rules], limits, policy=policy)
    return reasons


def difference(rule: Rule | MergeRule, bindings: Sequence[Binding], *, seed: int) -> str:
    """Return how an instance's sides differ on random data, executed by onnxruntime; empty if they agree."""
    numbers: dict[int, float] = {}
    lefts: tuple[Node, ...]
    rights: tuple[Node, ...]
    if isinstance(rule, Rule):
        left, rights = replace(rule, admits=None).programs(bindings[0])
        lefts = (left,) * len(rights)
        numbers = {i: bindings[0].numbers[v.name] for i, v in enumerate(rule.variables) if v.name in bindings[0].numbers}
    else:
        lefts, rights = replace(rule, admits=None).apply(bindings)
    leaves = {node.integer("index"): node for node in walk((*lefts, *rights)) if node.op == "Placeholder"}
    feeds = _data((*lefts, *rights), leaves, numbers, seed)
    try:
        for result, expected in zip(_run(rights, leaves, feeds), _run(lefts, leaves, feeds), strict=True):
            judge(result, expected)
    except WrongResult as error:
        return str(error)
    return ""


def _data(roots: Sequence[Node], leaves: Mapping[int, Node], numbers: Mapping[int, float], seed: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    ranges = {leaf: range(low, high + 1) for leaf, (low, high) in integer_ranges(roots).items()}
    flags = range(FLAGS[0], FLAGS[1] + 1)
    values: dict[Node, Values] = {}
    for root in roots:
        values |= {leaf: how for leaf, how in leaf_values(root).items() if values.get(leaf, "normal") == "normal"}
    return {
        f"x{index}": np.full(leaf.type.sizes, numbers[index], leaf.type.dtype)
        if index in numbers
        else random_array(leaf.type.dtype, leaf.type.sizes, generator, bound=interval.stop, values=values[leaf], low=interval.start)
        for index, leaf in sorted(leaves.items())
        for interval in [ranges.get(leaf, flags)]
    }


def _run(roots: Sequence[Node], leaves: Mapping[int, Node], feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Return the values of fragments by onnxruntime without optimisations."""
    inputs = {leaf: make("Input", (), attributes(name=f"x{i}"), TensorType(leaf.type.dtype, leaf.type.shape)) for i, leaf in leaves.items()}
    new = rewrite(roots, lambda old, operands: inputs.get(old) or make(old.op, operands, old.attributes, old.type))
    graph = Graph("instance", tuple(inputs.values()), tuple((f"y{i}", new[root]) for i, root in enumerate(roots)), {})
    session = open_onnxruntime(exporter.export(graph).SerializeToString(), 1, optimise=False)
    names = [port.name for port in session.get_inputs()]
    return [np.asarray(value) for value in session.run(None, {name: feeds[name] for name in names})]
