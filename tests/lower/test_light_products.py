"""Products bound by memory are generated: rows times matrices of their own, fused with the computation of their operands."""

from __future__ import annotations

import numpy as np

from bench.networks import longformer_block
from egraph.engine.saturate import Limits
from egraph.onnx import importer
from egraph.optimize.estimated import grown
from egraph.tensor import Candidate, Graph, TensorType, attributes, make, walk
from egraph.tensor.ops import apply
from lower.candidates import candidates
from tests.support.fuzzing import class_values, compile_together, trial_programs, trials, wrong_fragments, wrong_kernels
from tests.support.graphs import random_feeds

MODEL = longformer_block(1, sequence=48, width=32, heads=2, window=8, dilation=2)


def _operators(one: Candidate) -> set[str]:
    return {node.op for node in walk((one.fragment,))}


def test_banded_attention_gathers_its_band_inside_the_product() -> None:
    """The gathered band contains every key many times and need not be stored. A matrix with many rows stays with the library."""
    graph = importer.load(MODEL).graph
    frozen = grown(graph, (), Limits())
    laid = {number: [one for one in options if one.implementation.is_generated] for number, options in candidates(frozen).items()}
    products = [one for options in laid.values() for one in options if "MatMul" in _operators(one)]
    assert sum(_operators(one) >= {"Gather", "Pad", "MatMul"} for one in products) >= 2
    dense = [one for one in products if any(node.op == "MatMul" and node.inputs[1].type.rank == 2 for node in walk((one.fragment,)))]
    assert not dense


def test_generated_products_compute_what_they_mean() -> None:
    """Test both forms of the product, and the sum along and across the stored axis, with indices read from a constant."""
    graph = importer.load(MODEL).graph
    frozen = grown(graph, (), Limits())
    values, findings = class_values(frozen, graph, random_feeds(MODEL, 0))
    laid = {n: tuple(one for one in options if one.implementation.is_generated and "MatMul" in _operators(one))
            for n, options in candidates(frozen).items()}
    assert not findings + list(wrong_fragments(laid, values))
    alone = trial_programs(trials(laid, values, set()))
    compile_together([program for program, _ in alone])
    assert alone and not [finding for program, part in alone for finding in wrong_kernels(program, part)]


def test_no_sum_stands_below_a_softmax() -> None:
    """Regression: in graph attention, scores summed separately for the maximum and the exponentials differed, and weights exceeded one."""
    x, z = (make("Input", (), attributes(name=name), TensorType("float32", (5, 3, 16))) for name in "xz")
    left, right = (apply("Reshape", apply("ReduceSum", each, axes=(2,)), shape=shape) for each, shape in ((x, (5, 1, 3)), (z, (1, 5, 3))))
    weights = apply("Softmax", apply("LeakyRelu", apply("Add", left, right), alpha=0.2), axis=1)
    frozen = grown(Graph("attention", (x, z), (("y", apply("Transpose", weights, perm=(2, 0, 1))),), {}), (), Limits())
    found = [_operators(one) for options in candidates(frozen).values() for one in options]
    assert any({"Softmax", "LeakyRelu", "Transpose"} <= each for each in found)
    assert not any({"Softmax", "ReduceSum"} <= each for each in found)


def test_no_product_stands_below_a_softmax_inside_a_product() -> None:
    """Regression: large scores, scaled and biased, were rounded differently in each pass, so the weights did not sum to one."""
    shapes = {"scores": (6, 1, 9), "bias": (6, 1, 9), "values": (6, 9, 4)}
    scores, bias, values = (make("Input", (), attributes(name=name), TensorType("float32", shape)) for name, shape in shapes.items())
    weights = apply("Softmax", apply("Add", apply("Mul", scores, scores), bias), axis=2)
    graph = Graph("attention", (scores, bias, values), (("y", apply("MatMul", weights, values)),), {})
    found = [_operators(one) for options in candidates(grown(graph, (), Limits())).values() for one in options]
    assert any({"Softmax", "Mul"} <= each for each in found) and any({"MatMul", "Softmax", "Add"} <= each for each in found)
    assert not any({"MatMul", "Softmax", "Mul"} <= each for each in found)


def test_what_differs_along_a_products_sum_is_not_summed_inside_it() -> None:
    """Regression: a mean over an image, summed again for every column of a product, took 20 times as long.

    Sums of a row are still fused.
    """
    image, row = (
        make("Input", (), attributes(name=name), TensorType("float32", shape)) for name, shape in (("x", (1, 7, 7, 8)), ("z", (3, 8)))
    )
    weights, one = (
        make("Constant", (), attributes(digest=name), TensorType("float32", shape)) for name, shape in (("w", (8, 4)), ("v", (8, 1)))
    )
    means = apply("Reshape", apply("ReduceMean", apply("Relu", image), axes=(1, 2)), shape=(1, 8))
    shares = apply("Softmax", row, axis=1)
    roots = (("a", apply("MatMul", means, weights)), ("b", apply("MatMul", means, one)), ("c", apply("MatMul", shares, weights)))
    tensors = {"w": np.ones((8, 4), np.float32), "v": np.ones((8, 1), np.float32)}
    frozen = grown(Graph("squeeze", (image, row), roots, tensors), (), Limits())
    products = [one for options in candidates(frozen).values() for one in options if "MatMul" in _operators(one)]
    wide = {frozenset(_operators(each)) for each in products if each.fragment.type.sizes[-1] == 4 and each.implementation.is_generated}
    narrow = {frozenset(_operators(each)) for each in products if each.fragment.type.sizes[-1] == 1 and each.implementation.is_generated}
    assert not any("ReduceMean" in each for each in wide) and any("Softmax" in each for each in wide)
    assert any("ReduceMean" in each for each in narrow)
