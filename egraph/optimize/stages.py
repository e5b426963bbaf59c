"""Stages as files: the result of each stage as text, and a stage run alone on the text of the one before.

    imported.txt    the graph that was read
    saturated.txt   that graph and the e-graph that grew from it; if derivations took part, also the e-graph by rules alone
    selected.txt    the programs that were chosen, the best predicted first
    plan.txt        the plan of the program that is shipped

The data of large constants is beside the texts, in a safetensors file that their first line names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias, TypeVar

import numpy as np

from egraph.engine.saturate import Iteration, Saturation, saturate
from egraph.errors import ModelError
from egraph.onnx import exporter, importer
from egraph.optimize.admission import choose_derivations, choose_rules
from egraph.optimize.budget import Budget
from egraph.optimize.choice import programs_of
from egraph.optimize.derivations import Deriver
from egraph.optimize.folding import Folder
from egraph.optimize.gate import Gate
from egraph.optimize.measuring import calibrate
from egraph.optimize.options import OFFERED, Options
from egraph.optimize.outline import Outline
from egraph.optimize.output import write_beside
from egraph.optimize.progress import Progress
from egraph.optimize.search import Search, limits_of
from egraph.optimize.search_phases import Choosing
from egraph.tensor import FrozenEGraph, Graph, Program, Target, walk
from egraph.tensor.text import Reader, format_egraph, format_graph, format_program, read_egraph, read_graph, read_program
from egraph.tensor.text.reader import WORD
from lower.compile import CompileOptions, plan_program
from lower.cost.model import CostModel
from lower.cost.prior import shipped
from lower.plan_text import format_plan, read_plan
from lower.targets import Lowering, lowering
from lower.weights import NAMES, write_weights
from runtime.devices import device
from runtime.errors import ArtefactError
from runtime.plan import Plan
from runtime.profile import Database
from runtime.weights import Weights

STAGES = ("imported", "saturated", "selected", "plan")
WEIGHTS = "weights.safetensors"
"""File with the data of constants in ``--dump-dir``; an artefact's has the same name."""


@dataclass(frozen=True)
class Saturated:
    """A graph and the e-graphs that grew from it."""

    graph: Graph
    everything: FrozenEGraph
    by_rules: FrozenEGraph | None = None


Result: TypeAlias = Graph | Saturated | tuple[Program, ...] | Plan
"""The result of a stage, in the order of ``STAGES``."""
R = TypeVar("R", bound=Result)


def stage_of(result: Result) -> str:
    """Return the name of the stage with this kind of result."""
    return STAGES[next(k for k, kind in enumerate((Graph, Saturated, tuple, Plan)) if isinstance(result, kind))]


def format_result(result: Result, weights: str = "") -> str:
    """Return the text of a stage's result; ``weights``: the file with the data of its constants, relative to the text's folder."""
    if isinstance(result, Plan):
        return format_plan(result)
    if isinstance(result, Graph):
        blocks = [format_graph(result)]
    elif isinstance(result, Saturated):
        blocks = [format_graph(result.graph), format_egraph(result.everything, result.graph)]
        blocks += [f"by_rules {format_egraph(result.by_rules, result.graph)}"] if result.by_rules else []
    else:
        blocks = list(map(format_program, result))
    return "".join([f"weights {weights!r}\n" if weights else "", *blocks])


def parse_result(text: str, tensors_of: Callable[[str], Mapping[str, np.ndarray]], name: str = "") -> Result:
    """Return the result of a text; ``tensors_of`` returns the data of the constants from a file that the text names."""
    reader = Reader(text, name)
    tensors: Mapping[str, np.ndarray] = {}
    if reader.peek(WORD) == "weights":
        reader.take(WORD, "")
        tensors = tensors_of(reader.string())
    word = reader.peek(WORD)
    result: Result
    if word == "plan":
        result = read_plan(reader)
    elif word == "program":
        programs = []
        while reader.peek(WORD) == "program":
            programs.append(read_program(reader, tensors))
        result = tuple(programs)
    elif word == "graph":
        result = read_graph(reader, tensors)
        if reader.peek(WORD) == "egraph":
            everything, by_rules = read_egraph(reader), None
            if reader.peek(WORD) == "by_rules":
                reader.take(WORD, "")
                by_rules = read_egraph(reader)
            result = Saturated(result, everything, by_rules)
    else:
        raise reader.expected("weights, graph, program or plan")
    reader.end()
    return result


def read(path: Path) -> tuple[Result, Path | None]:
    """Return the result in a text file, and the file with the data of its constants if it names one."""
    named: list[Path] = []
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"the text of a stage cannot be read: {error}", where=str(path), fix="--dump-dir DIR writes them") from error

    def tensors_of(name: str) -> Mapping[str, np.ndarray]:
        named.append(path.parent / name)
        try:
            return Weights(named[0])
        except ArtefactError as error:
            fix = f"{path.name} names it for the data of its constants: put it back, or write the text again"
            raise ModelError(error.what, where=error.where, fix=fix) from error

    result = parse_result(text, tensors_of, str(path))
    return result, named[0] if named else None


def write_tensors(graph: Graph, path: Path) -> Path | None:
    """Write the data of a graph's constants, except types that the format lacks; return the file, or None if there are none."""
    tensors = {digest: array for digest, array in graph.tensors.items() if array.dtype.name in NAMES}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        if tensors:
            write_weights(path, tensors)
    except OSError as error:
        raise ModelError(f"{path} cannot be written: {error}", fix="give another folder") from error
    return path if tensors else None


def dumped(folder: Path | None, result: R) -> R:
    """Return the result of a stage; write it into ``folder`` if one is given."""
    if folder is not None:
        if isinstance(result, Graph):
            write_tensors(result, folder / WEIGHTS)
        weights = WEIGHTS if (folder / WEIGHTS).exists() else ""
        write_beside(folder / f"{stage_of(result)}.txt", format_result(result, weights), option="--dump-dir DIR")
    return result


def dumped_search(folder: Path | None, graph: Graph, search: Search) -> Search:
    """Return a search; write the results of the stages up to its end into ``folder`` if one is given."""
    dumped(folder, graph)
    dumped(folder, Saturated(search.outline.graph, search.saturation.frozen, search.saturation.by_rules))
    dumped(folder, search.programs)
    return search


def target_stage(path: Path) -> str:
    """Return the stage that the name of a file contains: ``selected.txt``, or ``resnet50.selected.txt``."""
    stage = path.stem.rpartition(".")[2]
    if stage not in STAGES or path.suffix != ".txt":
        names = ", ".join(f"{name}.txt" for name in STAGES)
        raise ModelError(f"--to {path.name} does not say which stage to run", fix=f"call the file one of: {names}")
    return stage


def run_alone(options: Options, target: Path, progress: Progress) -> Path:
    """Run the stages from the model or the text ``options.model`` up to the stage in the name of ``target``; return ``target``.

    Nothing is measured: kernels without a time in the profile database are estimated.
    """
    stage, source = target_stage(target), options.model
    result, weights = started(options, progress)
    if STAGES.index(stage) < STAGES.index(stage_of(result)) or (stage == stage_of(result) and source.suffix == ".txt"):
        later = " or ".join(f"{name}.txt" for name in STAGES[STAGES.index(stage_of(result)) + 1 :])
        fix = f"--to {later}" if later else "a plan is what the last stage makes"
        raise ModelError(f"{source.name} holds the stage {stage_of(result)!r}: {stage!r} does not follow from it", fix=fix)
    if weights is None and stage != "plan" and isinstance(result, Graph):
        weights = write_tensors(result, target.with_suffix(".safetensors"))
    with closing(open_database(options, progress)) as database:
        result = advanced(result, stage, options, progress, database)
    write_beside(target, format_result(result, os.path.relpath(weights, target.parent) if weights else ""), option="--to FILE")
    return target


def open_database(options: Options, progress: Progress) -> Database:
    """Open the profile database of a run."""
    return Database.open(options.database, read_only=options.frozen, warn=lambda text: progress.note(f"warning: {text}"))


def started(options: Options, progress: Progress) -> tuple[Result, Path | None]:
    """Return the graph of the model, or the result in the text, ``options.model``, and the file with the data of a text's constants."""
    if options.model.suffix == ".txt":
        return read(options.model)
    progress.stage("read the model")
    return importer.load(options.model, shapes=options.shapes).graph, None


def advanced(result: Result, stage: str, options: Options, progress: Progress, database: Database) -> Result:
    """Return the result of ``stage``, from a result of it or of an earlier stage."""
    while STAGES.index(stage_of(result)) < STAGES.index(stage):
        result = _next(result, options, progress, database)
    return result


def _next(result: Result, options: Options, progress: Progress, database: Database) -> Result:
    """Return the result of the stage after that of ``result``."""
    if isinstance(result, Graph):
        return _saturated(_with_data(result), options, progress, database)
    if isinstance(result, Saturated):
        return _selected(result, options, progress, database)
    assert isinstance(result, tuple)
    if not result:
        raise ModelError("there is no program to plan", where=str(options.model))
    progress.stage("plan")
    program = result[0]
    folded = Folder(_with_data(program.graph)).fold(program)
    return plan_program(folded, CompileOptions(options.threads, lowering(options.device).target, export_graph=exporter.serialized))[0]


def _saturated(graph: Graph, options: Options, progress: Progress, database: Database) -> Saturated:
    progress.stage("saturate")
    gate = Gate(database)
    rules = choose_rules(
        options.rule_files, options.skip_rules, allow=options.allow, unsafe=options.unsafe_rules, tell=progress.note, gate=gate
    )
    derivations = choose_derivations(options.skip_rules, allow=options.allow, enabled=options.derivations)
    policy = options.policy.saturation
    limits = limits_of(policy, options.budget_seconds, options.max_nodes)

    def show(iteration: Iteration) -> None:
        progress.update(f"{iteration.e_nodes} e-nodes, {iteration.e_classes} e-classes")

    deriver = Deriver(derivations, gate, options.tolerance)
    saturation = saturate(graph, rules, limits, show, derivations=deriver.open(), policy=policy)
    progress.update(f"{len(saturation.iterations)} iterations, stopped: {saturation.stop_reason}")
    return Saturated(graph, saturation.frozen, saturation.by_rules)


def _selected(result: Saturated, options: Options, progress: Progress, database: Database) -> tuple[Program, ...]:
    model, saturation = cost_model(result.graph, options, database), saturation_of(result)
    budget, outline = Budget(progress, policy=options.policy), Outline(result.graph, result.graph)
    choice, _ = Choosing(outline, saturation, model, budget, options.seed).choose(None, options.finalists)
    progress.update(f"best cost {choice.best.cost_us:.0f} us ({choice.best.method})")
    return programs_of(choice, saturation, outline, options.finalists)


def cost_model(graph: Graph, options: Options, database: Database) -> CostModel:
    """Return the cost model of kernels for a graph, from the database."""
    runs_on, lowers = device(options.device), lowering(options.device)
    key, weights_bytes = device_key(options, database), sum(array.nbytes for array in graph.tensors.values())
    speed = calibrate(database, key, lowers.target, None)
    is_from_memory = not runs_on.stays_in_cache(weights_bytes)
    return CostModel(
        database, key, speed, is_from_memory, target=target_of(options, lowers),
        policy=options.policy.cost, prior=shipped(lowers.target.kind),
    )  # fmt: skip


def device_key(options: Options, database: Database) -> str:
    """Return the key of kernel times; for a device on another machine, the key of its kind with the most imported times."""
    runs_on = device(options.device)
    if runs_on.measured_key and (measured := database.devices(runs_on.measured_key)):
        return max(sorted(measured), key=lambda key: measured[key])
    return runs_on.key(options.threads)


def target_of(options: Options, lowers: Lowering) -> Target:
    """Return the target of programs, with the precisions that their kernels may have."""
    offered = tuple(precision for precision in OFFERED[options.precision] if precision in lowers.precisions)
    if OFFERED[options.precision] and not offered:
        fix = f"there are {', '.join(('fp32', *lowers.precisions))}"
        raise ModelError(f"no kernels for {options.device} compute in {options.precision}", where="--precision", fix=fix)
    return replace(lowers.target, precisions=offered)


def saturation_of(result: Saturated) -> Saturation:
    """Return a frozen e-graph as a finished saturation."""
    return Saturation(result.everything, (), (), "saturated", 0.0, result.by_rules)


def _with_data(graph: Graph) -> Graph:
    """Return the graph; raises ModelError if constants have no data, which this stage needs."""
    for node in walk(graph.roots):
        if node.op == "Constant" and node.string("digest") not in graph.tensors:
            what = f"constant {node.string('digest')!r} ({node.type}) has no data"
            raise ModelError(what, fix=f"start the text with: weights {WEIGHTS!r}, a file that has it by this name")
    return graph
