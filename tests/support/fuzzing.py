"""Execute everything that an e-graph offers: every e-node, every kernel candidate, and programs chosen at random.

A wrong rule gives a class two values. A wrong tile gives a fragment another value than its class. A wrong matcher or generator gives a
kernel another result than its fragment. Each is tested separately, so that a finding names one rule, one fragment or one kernel.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx

from egraph.errors import EinsatError, ExtractError
from egraph.extract import extract
from egraph.onnx import exporter
from egraph.onnx.types import tensor_digest
from egraph.optimize.estimated import Price, compile_options, open_program
from egraph.tensor import (
    Candidate,
    FrozenEGraph,
    Graph,
    Kernel,
    Node,
    Program,
    Selection,
    attributes,
    bind,
    format_fragment,
    make,
    placeholder,
    placeholders,
    rewrite,
    walk,
)
from egraph.tensor.ops import OPS
from egraph.tensor.ops.reference import evaluate
from lower.compile import plan_program
from lower.targets.cpu.generator import compile_library

RELATIVE = 2e-5
"""Accepted error of float32 results, relative to the largest magnitude of the result."""
AMPLIFIED = 40.0
"""Accepted multiple of the change in a result when its operands change by a relative 1e-6."""
Values = dict[int, np.ndarray]


@dataclass(frozen=True)
class Finding:
    """A defect: the executed object and its error."""

    what: str
    error: str

    def __str__(self) -> str:
        return f"{self.what}\n    {self.error}"


def run_onnxruntime(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Return the outputs of an unmodified model."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [np.asarray(value) for value in session.run(None, dict(feeds))]


def leaf_values(graph: Graph, feeds: Mapping[str, np.ndarray]) -> dict[Node, np.ndarray]:
    """Return the values of inputs, constants and opaque results (as onnxruntime computes them)."""
    nodes = list(walk(graph.roots))
    values: dict[Node, np.ndarray] = {node: feeds[node.string("name")] for node in graph.inputs}
    values |= {node: graph.tensors[node.string("digest")] for node in nodes if node.op == "Constant"}
    opaque = [node for node in nodes if node.op == "OpaqueOutput"]
    if opaque:
        model = exporter.export(replace(graph, outputs=tuple((f"opaque.{i}", node) for i, node in enumerate(opaque))))
        used = {value.name for value in model.graph.input}
        values |= dict(zip(opaque, run_onnxruntime(model, {k: v for k, v in feeds.items() if k in used}), strict=True))
    return values


def difference(want: np.ndarray, got: np.ndarray, allowed: np.ndarray | float) -> str:
    """Return how ``got`` differs by more than is allowed, or an empty text; only finite reference values count."""
    want, got = np.asarray(want, np.float64), np.asarray(got, np.float64)
    if want.shape != got.shape:
        return f"shape {got.shape} instead of {want.shape}"
    finite = np.isfinite(want)
    off = finite & ~(np.abs(got - want) <= allowed)
    if not off.any():
        return ""
    place = tuple(int(i) for i in np.argwhere(off)[0])
    return f"{int(off.sum())} of {want.size} elements; at {place}: {got[place]:.9g} instead of {want[place]:.9g}"


def size_of(value: np.ndarray) -> float:
    finite = np.abs(np.asarray(value, np.float64)[np.isfinite(np.asarray(value, np.float64))])
    return float(finite.max()) if finite.size else 0.0


def shaken(values: Mapping[Node, np.ndarray], seed: int) -> dict[Node, np.ndarray]:
    """Return the values with floats changed by about 1e-6 of their size."""
    generator = np.random.default_rng(seed)

    def change(value: np.ndarray) -> np.ndarray:
        if np.asarray(value).dtype.kind != "f":
            return value
        noise = generator.uniform(-1e-6, 1e-6, np.shape(value))
        return np.asarray(value, np.float64) * (1 + noise) + noise * 1e-2

    return {node: change(value) for node, value in values.items()}


def reference(roots: Sequence[Node], leaves: Mapping[Node, np.ndarray]) -> list[np.ndarray]:
    """Return the float64 values of nodes, computed from the nodes whose values are given."""
    stand = {node: placeholder(i, node.type) for i, node in enumerate(leaves)}
    cut = rewrite(roots, lambda old, operands: stand.get(old) or make(old.op, operands, old.attributes, old.type))
    return evaluate([cut[root] for root in roots], {stand[node]: value for node, value in leaves.items()})


def allowance(roots: Sequence[Node], leaves: Mapping[Node, np.ndarray]) -> list[np.ndarray]:
    """Return the accepted float32 error of each root, which is larger if small changes of the operands have large effects."""
    base = reference(roots, leaves)
    moved = [reference(roots, shaken(leaves, seed)) for seed in (1, 2, 3)]
    changes = [np.max([np.abs(np.asarray(m[i], np.float64) - b) for m in moved], axis=0) for i, b in enumerate(base)]
    return [RELATIVE * size_of(b) + AMPLIFIED * np.nan_to_num(c, nan=math.inf) + 1e-6 for b, c in zip(base, changes, strict=True)]


def class_values(frozen: FrozenEGraph, graph: Graph, feeds: Mapping[str, np.ndarray]) -> tuple[Values, list[Finding]]:
    """Return every class's float64 value, and the e-nodes that disagree with their class."""
    leaves = leaf_values(graph, feeds)
    values: Values = {number: np.asarray(leaves[node]) for number, node in frozen.source.items() if node in leaves}
    findings: list[Finding] = []
    waiting = [(number, node) for number, nodes in frozen.classes.items() for node in nodes if node.op in OPS]
    while waiting:
        ready = [(number, node) for number, node in waiting if all(child in values for child in node.children)]
        waiting = [entry for entry in waiting if entry not in ready]
        for number, node in ready:
            operands = [placeholder(i, frozen.types[child]) for i, child in enumerate(node.children)]
            term = make(node.op, operands, node.attributes, frozen.types[number])
            given = {operand: values[child] for operand, child in zip(operands, node.children, strict=True)}
            found = np.asarray(evaluate([term], given)[0])
            if number not in values:
                values[number] = found
                continue
            error = difference(values[number], found, 1e-6 * size_of(values[number]) + 1e-9)
            if error and any(difference(values[number], found, a + 1e-6) for a in allowance([term], given)):
                others = sorted({other.rule for other in frozen.classes[number]} - {""})
                findings.append(Finding(f"rule {node.rule or '(input)'} (rules of the class: {others}): {format_fragment(term)}", error))
        if not ready:
            break
    return values, findings


def wrong_fragments(candidates: Mapping[int, Sequence[Candidate]], values: Values) -> Iterator[Finding]:
    """Yield the candidates whose fragment has another value than their class."""
    for number, one in _executable(candidates, values):
        leaves = _operands(one, values)
        found = np.asarray(evaluate([one.fragment], leaves)[0])
        error = difference(values[number], found, 1e-6 * size_of(values[number]) + 1e-9)
        if error and difference(values[number], found, allowance([one.fragment], leaves)[0]):
            yield Finding(f"tile for {one.implementation}: {format_fragment(one.fragment)}", error)


def _executable(candidates: Mapping[int, Sequence[Candidate]], values: Values) -> Iterator[tuple[int, Candidate]]:
    for number, options in candidates.items():
        for one in options:
            known = number in values and all(operand in values for operand in one.operands)
            if known and all(node.op in OPS or node.op == "Placeholder" for node in walk((one.fragment,))):
                yield number, one


def _operands(one: Candidate, values: Values) -> dict[Node, np.ndarray]:
    return {leaf: values[number] for leaf, number in zip(placeholders(one.fragment), one.operands, strict=True)}


@dataclass(frozen=True)
class Trial:
    """A kernel with its operands and the expected result."""

    candidate: Candidate
    operands: tuple[np.ndarray, ...]

    @property
    def key(self) -> str:
        return f"{self.candidate.implementation} {format_fragment(self.candidate.fragment)}"


def trials(candidates: Mapping[int, Sequence[Candidate]], values: Values, seen: set[str]) -> list[Trial]:
    """Return the kernels that have not been tried before."""
    found = []
    for _, one in _executable(candidates, values):
        leaves = placeholders(one.fragment)
        operands = tuple(
            np.asarray(values[c]).astype(leaf.type.dtype).reshape(leaf.type.sizes) for c, leaf in zip(one.operands, leaves, strict=True)
        )
        trial = Trial(one, operands)
        if trial.key not in seen:
            seen.add(trial.key)
            found.append(trial)
    return found


def trial_programs(found: Sequence[Trial]) -> list[tuple[Program, list[Trial]]]:
    """Return programs that run many kernels side by side; kernels with the same meaning go into different programs."""
    groups: list[dict[Node, tuple[Trial, Kernel]]] = []
    tensors: dict[str, np.ndarray] = {}
    for trial in found:
        leaves = placeholders(trial.candidate.fragment)
        operands = []
        for leaf, data in zip(leaves, trial.operands, strict=True):
            digest = tensor_digest(data)
            tensors[digest] = data
            named = attributes(digest=digest) if leaf.attribute("constant") else attributes(name=digest)
            operands.append(make("Constant" if leaf.attribute("constant") else "Input", (), named, leaf.type))
        root = bind(trial.candidate.fragment, operands)
        kernel = Kernel(trial.candidate.fragment, tuple(operands), root, trial.candidate.implementation)
        group = next((g for g in groups if root not in g), None)
        if group is None:
            group = {}
            groups.append(group)
        group[root] = (trial, kernel)
    return [(_program(group, tensors), [trial for trial, _ in group.values()]) for group in groups]


def _program(group: Mapping[Node, tuple[Trial, Kernel]], tensors: Mapping[str, np.ndarray]) -> Program:
    read = dict.fromkeys(node for _, kernel in group.values() for node in kernel.inputs)
    digests = {node.string("digest") for node in read if node.op == "Constant"}
    outputs = tuple((f"y{i}", root) for i, root in enumerate(group))
    inputs = tuple(node for node in read if node.op == "Input")
    graph = Graph("kernels", inputs, outputs, {digest: tensors[digest] for digest in sorted(digests)})
    return Program(graph, tuple(kernel for _, kernel in group.values()), 0.0)


def wrong_kernels(program: Program, tried: Sequence[Trial]) -> list[Finding]:
    """Return the kernels of a program whose results differ from their fragments."""
    data = {tensor_digest(array): array for trial in tried for array in trial.operands}
    try:
        with open_program(program) as session:
            results = session.run(None, {port.name: data[port.name] for port in session.get_inputs()})
    except EinsatError as error:
        if len(tried) == 1:
            return [Finding(tried[0].key, f"{type(error).__name__}: {error}")]
        half = len(tried) // 2
        return [f for part in (tried[:half], tried[half:]) for p, ts in trial_programs(part) for f in wrong_kernels(p, ts)]
    findings = []
    for trial, result in zip(tried, results, strict=True):
        given = dict(zip(placeholders(trial.candidate.fragment), trial.operands, strict=True))
        want = evaluate([trial.candidate.fragment], given)[0]
        apart = difference(want, result, RELATIVE * size_of(want) + 1e-6)
        if apart and (apart := difference(want, result, allowance([trial.candidate.fragment], given)[0])):
            findings.append(Finding(trial.key, apart))
    return findings


def random_price(random: Random, keep_percent: int = 60) -> Price:
    """Return random prices, which also exclude many candidates of classes that have others."""

    def price(laid: Mapping[int, tuple[Candidate, ...]]) -> Mapping[int, tuple[Candidate, ...]]:
        priced = {}
        for number, options in laid.items():
            costs = [replace(one, cost_us=random.uniform(0.1, 3.0) ** 3) for one in options]
            lone = [one for one in costs if len(one.covered) == 1]
            kept = [one for one in costs if random.randint(0, 99) < keep_percent or one in lone[:1]]
            priced[number] = tuple(kept or costs)
        return priced

    return price


def random_selection(frozen: FrozenEGraph, laid: Mapping[int, tuple[Candidate, ...]], random: Random) -> Selection:
    """Return a program chosen by random prices."""
    try:
        return extract(frozen, random_price(random)(laid), 1, 1.0, 0)[0]
    except ExtractError:  # an excluded candidate was needed
        return extract(frozen, random_price(random, 100)(laid), 1, 1.0, 0)[0]


def compile_together(programs: Sequence[Program]) -> None:
    """Generate the kernels of many programs in one compiler process, so that each program opens quickly."""
    requests: dict[str, Any] = {}
    for program in programs:
        try:
            requests |= plan_program(program, compile_options(1))[1].requests
        except EinsatError:
            continue  # opening the program reports the error
    if requests:
        with tempfile.TemporaryDirectory() as folder:
            compile_library(list(requests.values()), Path(folder) / "kernels.so", threads=1)


def wrong_program(program: Program, graph: Graph, model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[Finding]:
    """Return the outputs of a program that disagree with the graph or with onnxruntime."""
    text = "\n      ".join(f"{k.implementation} {format_fragment(k.fragment)}" for k in program.kernels)
    try:
        with open_program(program) as session:
            results = session.run(None, {name: feeds[name] for name in (port.name for port in session.get_inputs())})
    except EinsatError as error:
        return [Finding(text, f"{type(error).__name__}: {error}")]
    leaves = leaf_values(graph, feeds)
    wanted = reference(graph.roots, leaves)
    peers = run_onnxruntime(model, feeds)
    loose: list[np.ndarray] | None = None
    findings = []
    for i, ((name, _), want, peer, got) in enumerate(zip(graph.outputs, wanted, peers, results, strict=True)):
        for source, value in (("the reference", want), ("onnxruntime", peer)):
            if difference(value, got, RELATIVE * size_of(want) + 1e-6):
                loose = loose or allowance(graph.roots, leaves)
                if apart := difference(value, got, 3 * loose[i]):
                    findings.append(Finding(text, f"output {name} against {source}: {apart}"))
    return findings
