"""Explain why a derivation is not in an artefact: the operator's forms, the programs derived for each, and the prover's verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from egraph.derive.derivation import AnyRule, DerivationRule, GroupRule, RegionRule
from egraph.derive.matching.proposals import groups
from egraph.derive.registry import DERIVATIONS
from egraph.engine.deriving import Judged
from egraph.engine.saturate import Limits, saturate
from egraph.inspect.match import constants
from egraph.optimize.admission import PARTIAL
from egraph.optimize.derivations import Deriver
from egraph.optimize.outcome import Derived
from egraph.tensor import Graph, Node, TensorType, attributes, make, walk
from egraph.tensor.ops import OPS
from egraph.tolerance import Tolerance

LIMITS = Limits(seconds=10.0, e_nodes=2_000, iterations=10)
"""Limits of the saturation of one operator."""


def derivation_rule(name: str) -> AnyRule | None:
    """Return the derivation rule with this name, or the one whose programs have such names."""
    rules = (*DERIVATIONS, *PARTIAL)
    return next((rule for rule in rules if name == rule.name or name.startswith((f"{rule.name} ", f"{rule.name}:"))), None)


def explain_derivation(rule: AnyRule, name: str, node: Node, graph: Graph, tolerance: Tolerance) -> dict[str, Any]:
    """Try a derivation at an operator and at the forms that rules give it. A group's or region's is tried in the unchanged model."""
    if isinstance(rule, GroupRule | RegionRule):
        return _explain_several(rule, node, graph, tolerance)
    judged = {key: programs for key, programs in _judged(rule, node, graph, tolerance).items() if programs}
    named = [program for programs in judged.values() for program in programs if name in (rule.name, program.name)]
    proved = sum(not program.reason for program in named)
    if node.op not in rule.operators and not named:
        reason = f"the root must be {' or '.join(rule.operators)}, it is {node.op} {node.type}"
    elif named:
        reason = "; ".join(f"{program.name}: {program.reason or 'derived, and proved equal at these sizes'}" for program in named)
    else:
        reason = f"it derives no program{'' if name == rule.name else f' called {name}'} for this operator, in any of its forms"
    return {
        "rule": name, "applies": proved > 0, "node": f"{node.op} {node.type}",
        "matched_operators": int(bool(named)), "pattern_operators": 1, "reason": reason,
    }  # fmt: skip


def _explain_several(rule: GroupRule | RegionRule, node: Node, graph: Graph, tolerance: Tolerance) -> dict[str, Any]:
    applies = False
    members: tuple[Node, ...] = (node,)
    if isinstance(rule, GroupRule):
        members = next((group for group in groups(rule, walk(graph.roots), constants(graph)) if node in group), ())
    if node.op not in rule.operators:
        reason = f"the root must be {' or '.join(rule.operators)}, it is {node.op} {node.type}"
    elif not members:
        reason = "no other operator of the model on its level goes together with it"
    else:
        deriver = Deriver((rule,), tolerance=tolerance)
        saturation = saturate(graph, (), LIMITS, derivations=deriver.open())
        refused = [refusal.reason for refusal in saturation.statistics[-1].refusals if node in refusal.nodes]
        applies = not refused and saturation.statistics[-1].unions > 0
        proved = f"one operator computes {len(members)}" if isinstance(rule, GroupRule) else "programs of regions were found"
        reason = "; ".join(refused) or (f"{proved}, which was proved equal at these sizes" if applies else "no program of a region is new")
    return {
        "rule": rule.name, "applies": applies, "node": f"{node.op} {node.type}",
        "matched_operators": int(bool(members)), "pattern_operators": 1, "reason": reason,
    }  # fmt: skip


def _judged(rule: DerivationRule, node: Node, graph: Graph, tolerance: Tolerance) -> Mapping[tuple[str, str], tuple[Judged, ...]]:
    from egraph.optimize.estimated import shipped_rules

    deriver = Deriver((rule,), tolerance=tolerance)
    if node.op in OPS and all(type.is_static for type in (node.type, *(operand.type for operand in node.inputs))):
        saturate(_alone(node, graph), shipped_rules(), LIMITS, derivations=deriver.open())
    return deriver.judged


def _alone(node: Node, graph: Graph) -> Graph:
    """Return the graph of one operator, with operands computed from weights as constants and all others as inputs."""
    fixed, tensors = constants(graph), {}
    operands: list[Node] = []
    for k, operand in enumerate(node.inputs):
        if operand in fixed:
            tensors[f"operand{k}"] = np.random.default_rng(k).standard_normal(operand.type.sizes).astype(operand.type.dtype)
            operands.append(make("Constant", (), attributes(digest=f"operand{k}"), operand.type))
        else:
            operands.append(make("Input", (), attributes(name=f"x{k}"), TensorType(operand.type.dtype, operand.type.shape)))
    root = make(node.op, operands, node.attributes, node.type)
    return Graph("operator", tuple(n for n in walk((root,)) if n.op == "Input"), (("y", root),), tensors)


def derivation_text(derived: Derived) -> list[str]:
    """Return a derivation as lines: the operator, the expression after each step, and the proof."""
    lines = [f"derivation {derived.name} of {derived.operator}"]
    for number, (rule, text) in enumerate(derived.steps, start=1):
        lines += [f"  {number}. {rule}", f"       {text}"]
    checked = "the program was proved equal to the operator at these sizes, by its meaning (verify.equality), before it entered the e-graph"
    return [*lines, f"  {checked}"]
