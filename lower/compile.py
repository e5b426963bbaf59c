"""Compile a program into an artefact folder: plan, weights, generated kernels, onnxruntime models, manifest."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from egraph.errors import LowerError
from egraph.tensor import Graph, Node, Program, Target, format_fragment
from lower.drafts import Order, order
from lower.eoperator import KernelRequest
from lower.packing import packed
from lower.placement import Placement, is_sized, place_all
from lower.quantised import expanded
from lower.steps import ExportGraph, StepWriter
from lower.targets import default_target, lowering_for
from lower.weights import write_weights
from runtime.plan import OPAQUE_STEP, Buffer, Plan, Port, Step

PLAN, WEIGHTS, MANIFEST = "plan.json", "weights.safetensors", "manifest.json"


@dataclass(frozen=True)
class CompileOptions:
    """How to compile. ``export_graph`` writes a graph as an ONNX model, for steps that onnxruntime runs."""

    threads: int = 1
    target: Target = field(default_factory=default_target)
    keep_subnormals: bool = False
    export_graph: ExportGraph | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)


def compile_program(program: Program, folder: Path, options: CompileOptions | None = None) -> Plan:
    """Write the artefact of ``program`` into ``folder`` (made if needed) and return its plan."""
    options = options or CompileOptions()
    plan, writer = plan_program(program, options)
    folder.mkdir(parents=True, exist_ok=True)
    used = dict.fromkeys(buffer.key for buffer in plan.buffers if buffer.area == "weight")
    tensors = {key: writer.program.graph.tensors[key] for key in used}
    if tensors:
        write_weights(folder / WEIGHTS, tensors)
    if writer.requests:
        _compile_kernels(list(writer.requests.values()), folder / writer.lowering.generator.file, options)
    for name, source in writer.carried.items():
        shutil.copyfile(writer.lowering.build(source), folder / name)
    for name, model in writer.models.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(model)
    (folder / PLAN).write_text(plan.to_json(), encoding="utf-8")
    _write_manifest(folder, options, [writer.lowering.generator.file, *writer.carried, *writer.models])
    return plan


def _placed(program: Program, sequence: Order, target: Target, threads: int) -> Placement:
    lowering = lowering_for(target)
    return place_all(program, sequence, lowering.generator.may_overwrite, threads, lowering.library_writes, lowering.speed)


def copies(program: Program, target: Target) -> dict[tuple[Node, Node], str]:
    """Return, by stitched value and part, why the part is copied to its box and not written there by its kernel."""
    sequence = order(program)
    copied = _placed(program, sequence, target, 1).copied.items()
    return {(sequence.drafts[step].kernels[0].output, each.part): each.reason for step, parts in copied for each in parts}


def plan_program(program: Program, options: CompileOptions) -> tuple[Plan, StepWriter]:
    """Return the plan, and the writer of the files beside it; compile nothing."""
    lowering = lowering_for(options.target)
    program = packed(expanded(program, lowering.generated, lowering.reads), lowering.constant_orders)
    sequence = order(program)
    placement = _placed(program, sequence, options.target, options.threads)
    writer = StepWriter(program, placement, lowering, options.export_graph)
    inputs = tuple(
        Port(node.string("name"), node.type.dtype, node.type.shape, writer.buffer(node)) for node in program.graph.inputs
    )
    for number, draft in enumerate(sequence.drafts):
        if number not in placement.dropped:
            writer.add(draft, placement.copied.get(number, ()))
    unstored = [node for node in dict.fromkeys(program.graph.roots) if node.op == "Constant" and not is_sized(node)]
    if unstored:
        writer.add_constants(unstored)
    outputs = tuple(_output(writer, sequence, placement, name, node) for name, node in program.graph.outputs)
    notes = {"kernels": dict(writer.counts), **options.notes}
    buffers, steps = writer.all_buffers(), tuple(writer.steps)
    plan = Plan(
        buffers, steps, inputs, outputs, placement.arena_bytes, options.keep_subnormals, device=options.target.kind, notes=notes
    )
    return plan, writer


def _output(writer: StepWriter, sequence: Order, placement: Placement, name: str, node: Node) -> Port:
    made = {output for draft in sequence.drafts for output in draft.outputs}
    if node not in placement.locations and is_sized(node) and node.op == "Constant":
        placement.add_weight(node)
    if node not in placement.locations and node not in made and node.op not in ("Input", "Constant"):
        raise LowerError(f"no kernel computes the output {name!r}", where=str(node))
    return Port(name, node.type.dtype, node.type.shape, writer.buffer(node))


def _compile_kernels(requests: Sequence[KernelRequest], path: Path, options: CompileOptions) -> None:
    compiler = lowering_for(options.target).generator.compiler
    assert compiler is not None
    compiled = compiler.compile(requests, path, threads=options.threads)
    for request in requests:
        failure = compiled.failures.get(request)
        if failure is not None:
            raise LowerError(f"a generated kernel cannot be compiled: {failure.what}", where=format_fragment(request.fragment)) from failure


def keep_subnormals(folder: Path) -> None:
    """Change an artefact on disk so that it computes with subnormal numbers (denormals) as IEEE 754 says."""
    plan = replace(Plan.from_json((folder / PLAN).read_text(encoding="utf-8")), keep_subnormals=True)
    (folder / PLAN).write_text(plan.to_json(), encoding="utf-8")
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    manifest["options"]["keep_subnormals"] = True
    manifest["files"][PLAN] = hashlib.sha256((folder / PLAN).read_bytes()).hexdigest()
    write_json(folder / MANIFEST, manifest)


def _write_manifest(folder: Path, options: CompileOptions, models: Sequence[str]) -> None:
    files = {}
    for name in (PLAN, WEIGHTS, *models):
        path = folder / name
        if path.exists():
            with path.open("rb") as file:
                files[name] = hashlib.file_digest(file, "sha256").hexdigest()
    shown = {key: value for key, value in asdict(options).items() if key in ("threads", "keep_subnormals", "notes")}
    content = {"format": 1, "numpy": np.__version__, "options": shown, "files": files}
    write_json(folder / MANIFEST, content)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, sort_keys=True, indent=1) + "\n", encoding="utf-8")


def compile_model(
    graph: Graph, model: bytes, folder: Path, *, keep_subnormals: bool = False, name: str = "opaque/0.onnx"
) -> Plan:
    """Write an artefact that hands a whole ONNX model, with the graph's inputs and outputs, to onnxruntime in one step."""
    host = [Buffer(node.type.dtype, (), (), "host", f"input{i}") for i, node in enumerate(graph.inputs)]
    host += [Buffer(node.type.dtype, (), (), "host", f"output{i}") for i, (_, node) in enumerate(graph.outputs)]
    count = len(graph.inputs)
    inputs = tuple(Port(n.string("name"), n.type.dtype, n.type.shape, i) for i, n in enumerate(graph.inputs))
    outputs = tuple(Port(name, n.type.dtype, n.type.shape, count + i) for i, (name, n) in enumerate(graph.outputs))
    spec = {"model": name, "input_names": [p.name for p in inputs], "output_names": [p.name for p in outputs]}
    step = Step(OPAQUE_STEP, graph.name, tuple(range(count)), tuple(range(count, len(host))), spec)
    notes = {"kernels": {"library": 0, "eoperator": 0, "opaque": 1, "copy": 0}}
    plan = Plan(tuple(host), (step,), inputs, outputs, 0, keep_subnormals, notes=notes)
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(model)
    (folder / PLAN).write_text(plan.to_json(), encoding="utf-8")
    _write_manifest(folder, CompileOptions(keep_subnormals=keep_subnormals), [name])
    return plan


