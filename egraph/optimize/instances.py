"""Try every instance of every rule that the search of a model makes, at the model's own sizes, on random data.

A rule may be wrong at sizes that no test drew. When the check of a program failed and no kernel is to blame, the search
is repeated with each right side executed beside its left side; what differs names the rule, however far from the wrong
output it was used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from egraph.engine.saturate import Limits, saturate
from egraph.onnx import exporter
from egraph.onnx.integer_ranges import FLAGS, integer_ranges
from egraph.optimize.check_noise import open_onnxruntime
from egraph.optimize.single_kernel import leaf_values
from egraph.rule import Binding, MergeRule, Rule
from egraph.tensor import Graph, Node, TensorType, attributes, make, rewrite, walk
from runtime.feeds import Values, random_array
from runtime.judge import WrongResult, judge


def wrong_rules(graph: Graph, rules: Sequence[Rule | MergeRule], limits: Limits, *, seed: int) -> dict[str, str]:
    """Return the rules that have a wrong instance in the e-graph of ``graph``, each with how far its sides differ."""
    found: dict[str, str] = {}

    def watched(rule: Rule | MergeRule) -> Rule | MergeRule:
        def admits(bindings: Sequence[Binding], lefts: Sequence[Node], rights: Sequence[Node]) -> str:
            if rule.admits is not None and (reason := rule.admits(bindings, lefts, rights)):
                return reason
            wrong = difference(rule, bindings, seed=seed)
            if wrong:
                found.setdefault(rule.name, wrong)
            return wrong  # left out, so that what it would have made equal blames no other rule

        return replace(rule, admits=admits)

    saturate(graph, [watched(rule) for rule in rules], limits)
    return found


def difference(rule: Rule | MergeRule, bindings: Sequence[Binding], *, seed: int) -> str:
    """Return how an instance's sides differ on random data, executed by onnxruntime; empty where they agree."""
    numbers: dict[int, float] = {}
    lefts: tuple[Node, ...]
    rights: tuple[Node, ...]
    if isinstance(rule, Rule):
        left, right = replace(rule, admits=None).apply(bindings[0])
        lefts, rights = (left,), (right,)
        numbers = {i: bindings[0].numbers[v.name] for i, v in enumerate(rule.variables) if v.name in bindings[0].numbers}
    else:
        lefts, rights = replace(rule, admits=None).apply(bindings)
    leaves = {node.integer("index"): node for node in walk((*lefts, *rights)) if node.op == "Placeholder"}
    feeds = _data((*lefts, *rights), leaves, numbers, seed)
    try:
        for found, wanted in zip(_run(rights, leaves, feeds), _run(lefts, leaves, feeds), strict=True):
            judge(found, wanted)
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
        else random_array(leaf.type.dtype, leaf.type.sizes, generator, bound=whole.stop, values=values[leaf], low=whole.start)
        for index, leaf in sorted(leaves.items())
        for whole in [ranges.get(leaf, flags)]
    }


def _run(roots: Sequence[Node], leaves: Mapping[int, Node], feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Return what fragments compute, by onnxruntime without optimisations."""
    inputs = {leaf: make("Input", (), attributes(name=f"x{i}"), TensorType(leaf.type.dtype, leaf.type.shape)) for i, leaf in leaves.items()}
    new = rewrite(roots, lambda old, operands: inputs.get(old) or make(old.op, operands, old.attributes, old.type))
    graph = Graph("instance", tuple(inputs.values()), tuple((f"y{i}", new[root]) for i, root in enumerate(roots)), {})
    session = open_onnxruntime(exporter.export(graph).SerializeToString(), 1, optimise=False)
    names = [port.name for port in session.get_inputs()]
    return [np.asarray(value) for value in session.run(None, {name: feeds[name] for name in names})]
