"""Estimate the gain of partial rewrites on GPUs, model by model, by programs selected with and without them. Nothing is run.

    python -m bench.partial_estimates [MODEL ...] [--targets cuda:a100 cuda:h100] [--operators 3] [--record]
    python -m bench.partial_estimates resnet18 dilated_context exported/unet.onnx
    python -m bench.partial_estimates --list own unseen --record --resume

Costs are those of ``lower.targets.cuda.costs``, including corrections. Both programs are selected from one e-graph, which is grown by the
shipped rules, by derivations, and by partial rewrites of the model's costliest operators and of the first regions. One program may use all
of it, the other nothing that rests on a partial rewrite. For each of these operators the best corrected program is also priced alone, to
explain why nothing is gained.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from bench.inputs import parse_shapes
from bench.models import MODELS, BenchModel
from bench.record import RESULTS, opening, origin, record
from bench.unseen import UNSEEN
from egraph.derive.derivation import AnyRule, GroupRule, RegionRule
from egraph.derive.estimating import estimate as operations
from egraph.derive.registry import DERIVATIONS
from egraph.engine.deriving import Derivations, Judged, Stop, signature
from egraph.engine.saturate import Limits, saturate
from egraph.errors import EinsatError
from egraph.extract import extract
from egraph.onnx import importer
from egraph.optimize.admission import PARTIAL
from egraph.optimize.derivations import Deriver
from egraph.optimize.estimated import estimate, shipped_rules
from egraph.partial.generation import PRODUCTS
from egraph.tensor import Candidate, FrozenEGraph, Graph, Node, Selection, attributes, format_fragment, make, placeholder, rewrite, walk
from lower.candidates import candidates
from lower.roofline import DeviceSpeed
from lower.targets import Lowering, lowering
from runtime.devices import DESCRIBED

TARGETS = ("cuda:a100", "cuda:h100")
LISTS: Mapping[str, Mapping[str, BenchModel]] = {"own": MODELS, "unseen": UNSEEN}
LIMITS = Limits(seconds=3600.0, e_nodes=12_000, iterations=12)
"""Limits of one e-graph. The time is no limit unless the machine is very slow, so that runs are reproducible."""
EXTRACT_SECONDS = 2.0
NO_DIFFERENCE = 0.999
"""The ratio of two estimates up to which they count as equal."""


@dataclass(frozen=True)
class Row:
    """A model on one target, all times estimated."""

    model: str
    batch: int
    target: str
    without_us: float
    with_us: float
    corrected_kernels: int
    """Kernels of the program with partial rewrites that come from corrected ones."""
    exact_kernels: int
    """Those that come from programs that the same search finds, equal without corrections."""
    operators: int
    """Operators of the model that were rewritten in part, equal ones counted once."""
    share: float
    """Their fraction of the arithmetic of all convolutions, products and pools."""
    corrected: int
    """Corrected programs of these operators and of regions that were proved, and offered to the selection."""
    best: str
    """The operator whose best corrected program comes nearest to it, how that is made, and where it is corrected."""
    best_operator_us: float
    best_corrected_us: float
    best_launches: int
    """Kernels of that program beyond those of the operator."""
    why: str
    processor_s: float
    """Processor time of the model, for all targets."""
    commit: str


def main(arguments: Sequence[str] | None = None) -> None:
    """Estimate the chosen models; write the rows after each."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.partial_estimates", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help="of either list, or an ONNX file (default: all of the list)")
    parser.add_argument("--list", choices=LISTS, nargs="+", default=["own"], help="what to estimate where no model is named (default: own)")
    parser.add_argument("--batches", type=int, nargs="+", metavar="N", help="default: those of each model")
    parser.add_argument("--targets", choices=DESCRIBED, nargs="+", default=list(TARGETS), help=f"default: {' '.join(TARGETS)}")
    parser.add_argument("--operators", type=int, default=3, metavar="N", help="rewritten of each model, the costliest (default: 3)")
    parser.add_argument("--regions", type=int, default=1, metavar="N", help="rewritten of each model, the first ones (default: 1)")
    parser.add_argument("--seconds", type=float, default=LIMITS.seconds, metavar="S", help="for the growth of an e-graph (default: 3600)")
    parser.add_argument("--record", action="store_true", help="also write partial_estimates.json and .md")
    parser.add_argument("--resume", action="store_true", help="keep what is recorded with these options, of any commit, and go on")
    parser.add_argument("--results", type=Path, default=RESULTS, help="their folder (default: bench/results)")
    options: Any = parser.parse_args(arguments)
    known = {**LISTS["own"], **LISTS["unseen"]}
    files = {name: BenchModel(Path(name).stem, partial(_read, Path(name))) for name in options.models if name.endswith(".onnx")}
    if unknown := [name for name in options.models if name not in known and not Path(name).exists()]:
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(known)}")
    models = {name: files.get(name) or known[name] for name in options.models or (name for each in options.list for name in LISTS[each])}
    asked = [Path(name).name for name in options.models] or ["--list", *options.list]
    batches = ["--batches", *map(str, options.batches)] if options.batches else []
    limits = ["--operators", str(options.operators), "--seconds", f"{options.seconds:g}"]
    resumed = ["--resume"] if options.resume else []
    command = ["python", "-m", "bench.partial_estimates", *asked, *batches, *limits, "--record", *resumed]
    where = origin(1, command, operators=options.operators, regions=options.regions, seconds=options.seconds, targets=options.targets)
    rows = recorded(options.results, where) if options.resume else []
    estimating, done = Estimating(options.operators, options.regions, options.seconds), {(row.model, row.batch) for row in rows}
    for model in models.values():
        for batch in options.batches or model.batches:
            if (model.name, batch) in done:
                print(f"{model.name} at batch {batch}: recorded", flush=True)
                continue
            started = time.process_time()
            try:
                graph = importer.load(model.make(batch), shapes=parse_shapes(model.shapes)).graph
                estimated = estimating.rows(model.name, batch, graph, [lowering(target) for target in options.targets], options.targets)
            except (EinsatError, ImportError, OSError, ValueError) as error:
                print(f"{model.name} at batch {batch}: left out: {error}", flush=True)
                continue
            taken = time.process_time() - started
            estimated = [replace(row, processor_s=taken, commit=where["commit"]) for row in estimated]
            rows += estimated
            for row in estimated:
                print(_line(row), flush=True)
            if options.record:
                record(options.results, "partial_estimates", where, rows, page(rows, where))


def recorded(folder: Path, where: Mapping[str, Any]) -> list[Row]:
    """Return the rows of the file that an earlier run with the same options has written; none where there is no such file."""
    path = folder / "partial_estimates.json"
    stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    is_same = all(stored.get(name) == where[name] for name in ("operators", "regions", "seconds", "targets"))
    return [Row(**row) for row in stored["rows"]] if is_same else []


def _read(path: Path, batch: int) -> onnx.ModelProto:
    if batch != 1:
        raise ValueError(f"{path.name} has the batch that it has")
    return onnx.load(path)


class Estimating:
    """Estimates models one after the other; the rewrites of an operator are searched only once."""

    def __init__(self, operators: int, regions: int, seconds: float = LIMITS.seconds) -> None:
        self._operators, self._regions, self._limits = operators, regions, replace(LIMITS, seconds=seconds)
        self._deriver = Deriver((*DERIVATIONS, *PARTIAL))

    def rows(self, name: str, batch: int, graph: Graph, ways: Sequence[Lowering], targets: Sequence[str]) -> list[Row]:
        """Return a model's row for every target."""
        counts = Counter(fragment for node in walk(graph.roots) if (fragment := _fragment(node)) is not None)
        costs = {fragment: operations(fragment) * count for fragment, count in counts.items()}
        chosen = sorted(costs, key=lambda fragment: (-costs[fragment], format_fragment(fragment)))[: self._operators]
        signatures = set(map(format_fragment, chosen))
        grown = self._grown(graph, signatures)
        proved = self._proved(signatures)
        offered, exact = ([each for each in proved if _is_corrected(each.name) == wanted] for wanted in (True, False))
        share = sum(costs[fragment] for fragment in chosen) / max(1, sum(costs.values()))
        rows = []
        for way, target in zip(ways, targets, strict=True):
            laid = estimate(candidates(grown, way.target), way.speed)
            plain = {number: tuple(one for one in each if not any(_kinds(one))) for number, each in laid.items()}
            best = without = selected(grown, plain)
            if plain != laid:
                best = min(without, selected(grown, laid), key=lambda each: each.cost_us)  # in little time more choices may be worse
            kinds = Counter(kind for one in best.chosen.values() for kind in _kinds(one))
            text, operator_us, corrected_us, launches = self._nearest(chosen, way)
            gained = without.cost_us / best.cost_us
            counts_found = len(chosen), len(offered), len(exact)
            why = _reason(gained, kinds["corrected"], counts_found, operator_us, corrected_us, launches, way.speed)
            rows.append(Row(
                name, batch, target, without.cost_us, best.cost_us, kinds["corrected"], kinds["exact"], len(chosen), share, len(offered),
                text, operator_us, corrected_us, launches, why, 0.0, "",
            ))  # fmt: skip
        return rows

    def _grown(self, graph: Graph, signatures: set[str]) -> FrozenEGraph:
        """Return an e-graph grown by shipped rules, and by derivations and partial rewrites of the chosen operators and the first regions.

        The signatures of the regions are added to those of the operators.
        """
        regions: set[str] = set()

        def programs(rule: AnyRule, roots: Sequence[Node], stop: Stop) -> Sequence[Judged]:
            text = signature(roots)
            if isinstance(rule, RegionRule) and len(regions) < self._regions:
                regions.add(text)
            is_chosen = isinstance(rule, GroupRule) or text in (regions if isinstance(rule, RegionRule) else signatures)
            return self._deriver.programs(rule, roots) if is_chosen else ()

        derivations = Derivations((*DERIVATIONS, *PARTIAL), programs)
        frozen = saturate(graph, shipped_rules(), self._limits, derivations=derivations).frozen
        signatures |= regions
        return frozen

    def _proved(self, signatures: Collection[str]) -> list[Judged]:
        """Return the partial rewrites of operators and of regions that are proved."""
        names = {rule.name for rule in PARTIAL}
        judged = [each for (rule, of), group in self._deriver.judged.items() if rule in names and of in signatures for each in group]
        return [each for each in judged if not each.reason]

    def _nearest(self, chosen: Sequence[Node], way: Lowering) -> tuple[str, float, float, int]:
        """Return the corrected program that comes nearest to its operator, both priced alone, and how many more kernels it has."""
        nearest: tuple[str, float, float, int] = ("", 0.0, 0.0, 0)
        for node in chosen:
            programs = [each for each in self._proved((format_fragment(node),)) if _is_corrected(each.name)]
            itself = _alone(node, way) if programs else None
            for each in programs:
                corrected = _alone(each.program, way)
                if itself is None or corrected is None:
                    continue
                if not nearest[1] or itself.cost_us / corrected.cost_us > nearest[1] / nearest[2]:
                    where = next((step.text for step in each.steps if step.rule == "correction"), "")
                    text = f"{_shapes(node)}: {each.name.split(', ', 1)[1]}, {where}"
                    nearest = text, itself.cost_us, corrected.cost_us, _kernels(corrected) - _kernels(itself)
        return nearest


def selected(frozen: FrozenEGraph, priced: Mapping[int, Sequence[Candidate]]) -> Selection:
    """Return the program with the lowest estimate."""
    return extract(frozen, priced, 1, EXTRACT_SECONDS, 0)[0]


def _fragment(node: Node) -> Node | None:
    """Return a convolution, product or pool over placeholders, weights constant; None for what is computed ahead of time, and others."""
    if node.op not in PRODUCTS or not all(each.type.is_static for each in (node, *node.inputs)):
        return None
    fixed = [not any(leaf.op == "Input" for leaf in walk((operand,))) for operand in node.inputs]
    leaves = [placeholder(k, each.type, constant=is_fixed) for k, (each, is_fixed) in enumerate(zip(node.inputs, fixed, strict=True))]
    return None if all(fixed) else make(node.op, leaves, node.attributes, node.type)


def _alone(fragment: Node, way: Lowering) -> Selection | None:
    """Return the program of a fragment with the lowest estimate, weights known; None if it has none."""
    leaves = [node for node in walk((fragment,)) if node.op == "Placeholder"]
    new: dict[Node, Node] = {}
    tensors: dict[str, np.ndarray] = {}
    for leaf in leaves:
        name = f"{leaf.integer('index')}"
        if leaf.attribute("constant"):
            tensors[name] = np.zeros(leaf.type.sizes, np.float32)
        kind = {"digest": name} if name in tensors else {"name": name}
        new[leaf] = make("Constant" if name in tensors else "Input", (), attributes(**kind), leaf.type)
    root = rewrite((fragment,), lambda old, below: new.get(old) or make(old.op, below, old.attributes, old.type))[fragment]
    graph = Graph("alone", tuple(node for node in new.values() if node.op == "Input"), (("y", root),), tensors)
    try:
        frozen = saturate(graph, (), LIMITS).frozen
        return selected(frozen, estimate(candidates(frozen, way.target), way.speed))
    except (EinsatError, IndexError):
        return None


def _kernels(selection: Selection) -> int:
    return sum(not one.implementation.is_free for one in selection.chosen.values())


def _is_corrected(name: str) -> bool:
    return any(name.startswith(f"{rule.name}: corrected") for rule in PARTIAL)


def _kinds(candidate: Candidate) -> Iterator[str]:
    """Yield what kind of partial rewrite a kernel comes from."""
    rules = [rule for node in candidate.covered for rule in node.rules]
    if any(map(_is_corrected, rules)):
        yield "corrected"
    elif any(name.startswith(rule.name) for name in rules for rule in PARTIAL):
        yield "exact"


def _shapes(node: Node) -> str:
    return " ".join([node.op, *("x".join(map(str, operand.type.sizes)) for operand in node.inputs)])


def _reason(
    gained: float, corrected: int, counts: tuple[int, int, int], operator_us: float, corrected_us: float, launches: int,
    speed: DeviceSpeed | None,
) -> str:  # fmt: skip
    """Return why a program is not faster, by its costs; ``counts``: of operators looked at, of corrected programs and of exact ones."""
    operators, offered, exact = counts
    if gained * NO_DIFFERENCE > 1 and corrected:
        return "corrected programs gain"
    if gained * NO_DIFFERENCE > 1:
        return "what gains is exact"
    if not operators:
        return "it has no convolution, matrix product or average pool"
    if not offered:
        return f"no program differs in part and takes at most 1.5 times the operations; {exact} are equal everywhere"
    if not corrected_us:
        return "what is corrected is a region, not priced alone, or has no kernels"
    added_us = launches * (speed or DeviceSpeed()).launch_us
    if corrected_us <= operator_us:
        return "alone the operator would gain; what stands around it loses that"
    more_us = corrected_us - operator_us
    if added_us >= more_us:
        return f"{launches} more launches take {added_us:.0f} us, and without them {added_us - more_us:.1f} us would be gained"
    return f"its kernels take {more_us - added_us:.1f} us more, beside {launches} more launches"


COLUMNS = (
    "model", "batch", "target", "without us", "with us", "gain", "share", "offered", "used: corrected, exact", "nearest us",
    "its operator us", "why",
)  # fmt: skip


def page(rows: Sequence[Row], where: Mapping[str, Any]) -> str:
    """Return the table, and why."""
    taken = {(row.model, row.batch): row.processor_s for row in rows}
    lines = [
        "# What partial rewrites are estimated to gain on GPUs", "", *opening(where, ("egglog", "numpy")),
        "**All times are estimates: nothing ran on a GPU.** Programs selected by the cost tables of `lower/targets/cuda/costs.py` from an",
        "e-graph grown by the shipped rules, derivations and partial rewrites, corrections counted: with all that it holds, and without",
        "what rests on a partial rewrite. Derivations, partial rewrites among them, are those of the",
        f"{where['operators']} costliest operators of a model and of {where['regions']} region(s);",
        "`share` is the part of the arithmetic that these operators do. `offered`: proved corrected programs; `used`: kernels of the",
        "selected program that come from corrected programs, and from exact ones of the same search. `nearest`: the corrected program",
        "that comes nearest to its operator, each priced alone. A model took",
        f"{sum(taken.values()) / max(1, len(taken)):.0f} s of processor time, {max(taken.values(), default=0):.0f} s at most.",
        f"Rows are of {_commits(rows)}.", "",
        f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}",
    ]  # fmt: skip
    for row in rows:
        nearest = f"{row.best_corrected_us:,.1f} | {row.best_operator_us:,.1f}" if row.best else "- | -"
        lines.append(
            f"| {row.model} | {row.batch} | {row.target} | {row.without_us:,.1f} | {row.with_us:,.1f} | {row.without_us / row.with_us:.3f} "
            f"| {row.share:.0%} | {row.corrected} | {row.corrected_kernels}, {row.exact_kernels} | {nearest} | {row.why} |"
        )
    best_programs = dict.fromkeys(f"* {row.model}, batch {row.batch}, {row.target}: {row.best}" for row in rows if row.best)
    return "\n".join([*lines, "", "The corrected programs that come nearest:", "", *best_programs, ""])


def _commits(rows: Sequence[Row]) -> str:
    """Return the commits of the rows: a resumed run keeps rows of earlier commits."""
    counts = Counter(row.commit for row in rows)
    return ", ".join(f"commit {commit} ({count})" for commit, count in counts.items())


def _line(row: Row) -> str:
    gain = row.without_us / row.with_us
    return f"{row.model:18} {row.batch:3} {row.target:10} {row.without_us:10,.1f} -> {row.with_us:10,.1f} us {gain:6.3f}x  {row.why}"


if __name__ == "__main__":
    main()
