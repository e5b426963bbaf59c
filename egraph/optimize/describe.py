"""Gather the results of a run into one value."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from egraph.optimize.admission import notes as rule_notes
from egraph.optimize.admission import unproved
from egraph.optimize.check import CheckResult
from egraph.optimize.derivations import Deriver
from egraph.optimize.options import Options
from egraph.optimize.outcome import KERNEL_KINDS, Finalist, Growth, InPlace, KernelRow, Outcome, RuleUse
from egraph.optimize.race import Race
from egraph.optimize.records import environment
from egraph.optimize.stitched import stitched_tensors
from egraph.optimize.trial import ORIGINAL, PLAIN, Entry, Trial
from egraph.rule import MergeRule, Rule
from egraph.tensor import Candidate, Graph, Kernel, Node, Program, format_fragment, walk
from lower.compile import copies
from lower.cost.model import CostModel, KernelKey
from lower.roofline import Work, work


def kernel_rows(program: Program, model: CostModel) -> tuple[KernelRow, ...]:
    """Return a row for every launched kernel, in running order."""
    made_by: dict[Node, int] = {}
    rows: list[KernelRow] = []
    origins = program.graph.origins
    for kernel in program.kernels:
        read = tuple(sorted({made_by[node] for node in kernel.inputs if node in made_by}))
        if kernel.implementation.is_free:
            if read:
                made_by[kernel.output] = read[0]
            continue
        candidate = Candidate(kernel.fragment, (), (), kernel.implementation)
        record = model.record(candidate)
        measured_us = record.median_us if record is not None else None
        time_us = kernel.cost_us if measured_us is None else measured_us
        amount = work(kernel.fragment)
        made_by[kernel.output] = len(rows)
        sources = dict.fromkeys(name for node in (kernel.output, *_inside(kernel.output, kernel.inputs)) for name in origins.get(node, ()))
        rows.append(
            KernelRow(
                name=title(kernel.fragment),
                implementation=kernel.implementation.text,
                fragment=format_fragment(kernel.fragment),
                shape=str(kernel.output.type),
                time_us=time_us,
                is_measured=measured_us is not None,
                flops=amount.flops,
                size_bytes=amount.size_bytes,
                roofline_share=_share(model, amount, time_us),
                rules=kernel.rules,
                source_nodes=tuple(sources),
                operands=read,
                steps=kernel.steps,
            )
        )
    return tuple(rows)


def title(fragment: Node) -> str:
    """Return the operators of a kernel in running order: ``Conv + Add + Relu``."""
    names = [node.op for node in walk((fragment,)) if node.op not in ("Placeholder", "Reshape", "Constant", "Input")]
    shown = names if len(names) <= 6 else [*names[:3], f"{len(names) - 5} more", *names[-2:]]
    return " + ".join(shown) or fragment.op


def _inside(output: Node, inputs: tuple[Node, ...]) -> list[Node]:
    """Return the nodes between a kernel's operands and its result, the result excluded."""
    seen: dict[Node, None] = {}
    stack = list(output.inputs)
    while stack:
        node = stack.pop()
        if node not in seen and node not in inputs:
            seen[node] = None
            stack.extend(node.inputs)
    return list(seen)


def _share(model: CostModel, amount: Work, time_us: float) -> float:
    """Return the part of the time that the device's limits explain; 1 is the fastest possible."""
    ideal_us = model.speed.estimate_us(amount) - model.speed.launch_us
    return min(1.0, ideal_us / time_us) if time_us > 0 else 0.0


def describe(
    trial: Trial,
    graph: Graph,
    model: CostModel,
    checked: CheckResult,
    rules: Sequence[Rule | MergeRule],
    derivations: Deriver,
    options: Options,
    *,
    is_timed: bool,
    notes: tuple[str, ...],
    arena_bytes: int,
    keeps_subnormals: bool,
    model_digest: str,
) -> Outcome:
    """Return the outcome of a run whose files were checked."""
    searched, plain, raced, best = trial.searched, trial.plain, trial.raced, trial.best
    rows = kernel_rows(best.program, model) if best else ()
    launched = _launched(best.program) if best else []
    shipped = best.contender.name if best else ORIGINAL
    weights = best.program.graph.tensors if best else graph.tensors
    return Outcome(
        model=options.model.name,
        model_digest=model_digest,
        device=model.device,
        threads=options.threads,
        status="unchanged" if best is None else "faster" if is_timed else "estimated",
        latency_us=latencies_us(raced, shipped),
        repeats=min(len(raced.timings[name].samples_us) for name in (ORIGINAL, shipped)),
        max_rel_err=checked.max_rel_err,
        worst_output=checked.worst_output,
        rules=_uses(rules, rows, best.program.rules if best else ()) + derivations.uses(launched),
        derived=derivations.derived(launched),
        offered=derivations.offered(searched.saturation.statistics, is_compared=bool(searched.choice.selections)),
        growth=tuple(Growth(i.e_nodes, i.e_classes, i.matches, i.seconds) for i in searched.saturation.iterations),
        rule_statistics=tuple(
            {"rule": s.rule, "matches": s.matches, "unions": s.unions, "e_nodes": s.e_nodes, "built": s.built}
            for s in searched.saturation.statistics
            if s.matches
        ),
        stop_reason=searched.saturation.stop_reason,
        search_seconds=searched.saturation.seconds,
        extract_method=searched.choice.best.method,
        extract_optimal=searched.choice.best.optimal,
        extract_seconds=searched.choice.extract_seconds,
        kernels=rows,
        before=kernel_rows(plain, model),
        finalists=tuple(_finalist(entry, raced, model) for entry in trial.entries),
        shipped=shipped,
        memory={"arena_bytes": arena_bytes, "weights_bytes": sum(array.nbytes for array in weights.values())},
        environment=environment(),
        options=options.stored(),
        notes=notes,
        kernel_counts=_counts(rows) if best else {**_counts(()), "opaque": 1},
        refused=searched.choice.refused,
        unsafe_rules=unproved(rules),
        rule_notes=rule_notes(rules),
        stitched=stitched_tensors(best.program, _corrected(rules, best.program), copies(best.program, model.target)) if best else (),
        keeps_subnormals=keeps_subnormals,
        subnormal_weights=subnormal_count(graph.tensors.values()),
        in_place=tuple(row for entry in trial.entries for row in _in_place(entry, model)),
    )


def _corrected(rules: Sequence[Rule | MergeRule], program: Program) -> frozenset[str]:
    """Return the names of rules that corrected a part of a program: user's rules that hold in part, and derivations of mutants."""
    names = {rule.name for rule in rules if isinstance(rule, Rule) and rule.corrected}
    return frozenset(name for kernel in program.kernels for name in kernel.rules if name in names or ": corrected" in name)


def subnormal_count(arrays: Iterable[np.ndarray]) -> int:
    """Return the number of elements that are not zero and smaller than any normal number of their type."""
    counts = []
    for array in arrays:
        if array.dtype in (np.float32, np.float64):
            magnitudes = np.abs(array)
            counts.append(np.count_nonzero((magnitudes > 0) & (magnitudes < np.finfo(array.dtype).tiny)))
    return int(sum(counts))


def latencies_us(raced: Race, shipped: str) -> dict[str, float | None]:
    """Return the value of ``Outcome.latency_us``."""
    times_us = {ORIGINAL: raced.median_us(ORIGINAL), PLAIN: raced.median_us(PLAIN), "optimized": raced.median_us(shipped)}
    return {name: time_us if math.isfinite(time_us) else None for name, time_us in times_us.items()}


def _uses(rules: Sequence[Rule | MergeRule], rows: Sequence[KernelRow], everywhere: Sequence[str]) -> tuple[RuleUse, ...]:
    """Return the rules that a program rests on, those of most kernels first. ``everywhere`` includes rules of parts without kernels."""
    uses = {rule.name: sum(rule.name in row.rules for row in rows) for rule in rules}
    used = sorted((rule for rule in rules if rule.name in everywhere), key=lambda rule: (-uses[rule.name], rule.name))
    return tuple(RuleUse(rule.name, rule.verdict, uses[rule.name], rule.text.splitlines()[0], rule.rounding) for rule in used)


def _counts(rows: Sequence[KernelRow]) -> dict[str, int]:
    """Return the number of kernels of each kind, under the names that reports use."""
    kinds = Counter(row.kind for row in rows)
    return {kind: kinds[kind] for kind in dict.fromkeys([*KERNEL_KINDS, *kinds])}


def _finalist(entry: Entry, raced: Race, model: CostModel) -> Finalist:
    timing = raced.timings[entry.contender.name]
    median_us = statistics.median(timing.samples_us) if timing.samples_us else None
    return Finalist(
        entry.contender.name, entry.contender.digest, len(_launched(entry.program)), model.program_us(entry.program), median_us,
        timing.message, estimated=_estimated(entry.program, model),
    )  # fmt: skip


def _in_place(entry: Entry, model: CostModel) -> list[InPlace]:
    """Return the kernels of a program with another known time inside programs for this model."""
    rows: dict[KernelKey, InPlace] = {}
    for kernel in _launched(entry.program):
        candidate = Candidate(kernel.fragment, (), (), kernel.implementation)
        inside, alone = model.in_place(candidate), model.record(candidate)
        if inside is not None and inside.median_us is not None:
            alone_us = alone.median_us if alone is not None else None
            rows[model.key(candidate)] = InPlace(
                entry.contender.name, kernel.implementation.text, format_fragment(kernel.fragment), alone_us, inside.median_us
            )
    return list(rows.values())


def _launched(program: Program) -> list[Kernel]:
    """Return the kernels that take time: no views, no constants."""
    return [kernel for kernel in program.kernels if not kernel.implementation.is_free]


def _estimated(program: Program, model: CostModel) -> int:
    """Return the number of kernels of a program without a measured time."""
    return sum(model.record(Candidate(k.fragment, (), (), k.implementation)) is None for k in _launched(program))
