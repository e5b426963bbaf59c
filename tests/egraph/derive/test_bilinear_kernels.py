"""Derived programs are lowered and run: generated transforms, the library's products, and blocks written in place."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bench.derivations import operator
from egraph.derive.bilinear.blocks import blocked_program
from egraph.derive.bilinear.convolutions import algorithms
from egraph.derive.bilinear.programs import program
from egraph.derive.bilinear.strassen import program as strassen
from egraph.optimize.estimated import estimated_program, open_program
from egraph.tensor import Graph, Node, attributes, make, rewrite, walk
from egraph.tensor.ops.reference import evaluate


def derived() -> Iterator[tuple[Node, Node]]:
    """Yield operators and programs with tiles of 2 or 4, some of which extend beyond the edges."""
    for text, size in (("8@14", 4), ("8@13->4 5x5 s2 n2", 2), ("8@11 d2", 2), ("8@9 g2 5x1", 2), ("4@6->3 4x4 t2 p1", 2)):
        node = operator(text)
        x, w = node.inputs
        fitting = [what for what in algorithms(node) if {axis.algorithm.outputs for axis in what.axes} <= {1, size}]
        what = max(fitting, key=lambda what: what.products)  # transforms as many axes as possible
        yield node, program(x, w, what)
        if text == "8@14":
            yield node, blocked_program(x, w, what, 1, 2)
    node = operator("33x18x40")
    yield node, strassen(node.inputs[0], node.inputs[1])


def test_lowered_programs_compute_what_the_operators_do() -> None:
    random = np.random.default_rng(0)
    tensors: dict[str, np.ndarray] = {}
    feeds: dict[str, np.ndarray] = {}
    inputs, outputs, wanted = [], [], []
    for number, (node, root) in enumerate(derived()):
        values = {leaf: random.standard_normal(leaf.type.sizes).astype(np.float32) for leaf in node.inputs}
        wanted.append(evaluate([node], values)[0])
        x, w = node.inputs
        new = {x: make("Input", (), attributes(name=f"x{number}"), x.type)}
        inputs.append(new[x])
        feeds[f"x{number}"] = values[x]
        (u,) = {each for each in walk((root,)) if each.inputs == (w,)}
        tensors[f"u{number}"] = evaluate([u], {w: values[w]})[0].astype(np.float32)
        new[u] = make("Constant", (), attributes(digest=f"u{number}"), u.type)

        def replaced(old: Node, operands: tuple[Node, ...], new: dict[Node, Node] = new) -> Node:
            return new.get(old) or make(old.op, operands, old.attributes, old.type)

        bound = rewrite((root,), replaced)
        outputs.append((f"y{number}", bound[root]))
    lowered = estimated_program(Graph("derived", tuple(inputs), tuple(outputs), tensors), ())
    assert not any(kernel.implementation.is_opaque for kernel in lowered.kernels)
    with open_program(lowered) as session:
        found = session.run(None, feeds)
        assert not any(name.startswith("Concat") for name, _ in session.profile(1))  # blocks are written in place
    for got, want in zip(found, wanted, strict=True):
        assert np.max(np.abs(np.asarray(got) - want)) <= 1e-5 * np.max(np.abs(want))
