"""Write down which e-nodes the chosen kernels cover, and build the same kernels from them again.

The same model, rules and options grow the same e-graph; so what a search chose is a list of e-nodes by their places, and
neither candidates nor prices are needed to have it again. What is read back is made of e-nodes of this e-graph alone,
whatever the text says; digests of the chosen kernels notice where it grew differently.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from egraph.tensor import Candidate, ENode, FrozenEGraph, Node, Selection, make, placeholder
from lower.candidates.tile import Tiling
from lower.cost.model import CostModel

Step: TypeAlias = tuple[int, int, tuple[int, ...]]
"""An e-node: its class, its place in the class, and the steps that make its operands (-1: the operand is read)."""


def selections_text(selections: Sequence[Selection], frozen: FrozenEGraph, model: CostModel) -> str:
    """Return selections as text for the profile database."""
    kept = [
        {
            "kernels": [[one.implementation, one.cost_us, steps_of(one, number, frozen)] for number, one in selection.chosen.items()],
            "digest": _digest(selection.chosen, model),
            "optimal": selection.optimal,
            "method": selection.method,
            "seconds": selection.seconds,
        }
        for selection in selections
    ]
    return json.dumps(kept, separators=(",", ":"))


def read_selections(text: str, frozen: FrozenEGraph, model: CostModel) -> tuple[Selection, ...]:
    """Return the selections of a text; none where it does not fit the e-graph, or a kernel has proved wrong since."""
    try:
        kept = json.loads(text) if text else []
        found = []
        for entry in kept:
            chosen: dict[int, Candidate] = {}
            for implementation, cost_us, steps in entry["kernels"]:
                chosen[steps[-1][0]] = candidate_of(steps, implementation, float(cost_us), frozen)
            if _digest(chosen, model) != entry["digest"] or any(map(model.is_wrong, chosen.values())):
                return ()
            cost_us = math.fsum(one.cost_us for one in chosen.values())
            found.append(Selection(chosen, cost_us, entry["optimal"], entry["method"], entry["seconds"]))
    except (KeyError, IndexError, TypeError, ValueError):
        return ()  # written by another version: a search tells it anew
    return tuple(found)


def steps_of(one: Candidate, number: int, frozen: FrozenEGraph) -> list[Step]:
    """Return the e-nodes that a candidate of class ``number`` consists of, operands first."""
    found: dict[tuple[Node, int], int | None] = {}
    steps: list[Step] = []

    def place(node: Node, at: int) -> int | None:
        """Return the step that makes ``node`` in a class, -1 for an operand, None where it is not in this class."""
        if node.op == "Placeholder":
            return -1 if one.operands[node.integer("index")] == at else None
        if (node, at) not in found:
            found[node, at] = None
            for index, e_node in enumerate(frozen.classes[at]):
                if e_node.op == node.op and e_node.attributes == node.attributes and len(e_node.children) == len(node.inputs):
                    below = [place(operand, child) for operand, child in zip(node.inputs, e_node.children, strict=True)]
                    if None not in below:
                        steps.append((at, index, tuple(step for step in below if step is not None)))
                        found[node, at] = len(steps) - 1
                        break
        return found[node, at]

    if place(one.fragment, number) is None:
        raise KeyError(f"{one.implementation} of class {number} is not made of its e-nodes")
    return steps


def candidate_of(steps: Sequence[Step], implementation: str, cost_us: float, frozen: FrozenEGraph) -> Candidate:
    """Return the candidate that consists of these e-nodes; raises ValueError or IndexError where they do not fit together."""
    built: list[Node] = []
    covered: list[ENode] = []
    for number, place, below in steps:
        e_node = frozen.classes[number][place]
        operands = []
        for step, child in zip(below, e_node.children, strict=True):
            if step >= 0 and steps[step][0] != child:
                raise ValueError(f"class {steps[step][0]} is not class {child}")
            leaf = placeholder(child, frozen.types[child], constant=child in frozen.constants)
            operands.append(built[step] if step >= 0 else leaf)
        built.append(make(e_node.op, operands, e_node.attributes, frozen.types[number]))
        covered.append(e_node)
    fragment, operand_classes = Tiling.canonical(built[-1])
    return Candidate(fragment, operand_classes, tuple(dict.fromkeys(reversed(covered))), implementation, cost_us)


def _digest(chosen: Mapping[int, Candidate], model: CostModel) -> str:
    parts = [f"{number}|{model.key(one)}|{one.operands}" for number, one in chosen.items()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
