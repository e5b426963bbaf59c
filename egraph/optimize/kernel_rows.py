"""Describe a program's kernels for people: what, from where, how fast, how near to what the device can do."""

from __future__ import annotations

from egraph.optimize.outcome import KernelRow
from egraph.tensor import Candidate, Node, Program, format_fragment, walk
from lower.cost.model import CostModel
from lower.cost.roofline import Work, work


def kernel_rows(program: Program, model: CostModel) -> tuple[KernelRow, ...]:
    """Return a row for every kernel that is launched, in running order."""
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
    """Return which part of the time the device's limits explain: 1 is as fast as it gets."""
    ideal_us = model.speed.estimate_us(amount) - model.speed.launch_us
    return min(1.0, ideal_us / time_us) if time_us > 0 else 0.0
