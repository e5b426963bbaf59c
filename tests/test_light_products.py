"""Products bound by memory: rows times matrices of their own are generated, fused with what makes their operands."""

from __future__ import annotations

from bench.networks import longformer_block
from egraph import importer
from egraph.ir import Candidate, walk
from egraph.optimize.estimated import grown
from egraph.saturate import Limits
from lower.candidates import candidates
from tests.fuzzing import class_values, compile_together, trial_programs, trials, wrong_fragments, wrong_kernels
from tests.graphs import random_feeds

MODEL = longformer_block(1, sequence=48, width=32, heads=2, window=8, dilation=2)


def _operators(one: Candidate) -> set[str]:
    return {node.op for node in walk((one.fragment,))}


def test_banded_attention_gathers_its_band_inside_the_product() -> None:
    """The gathered band (every key many times) need not be stored; a matrix with many rows stays with the library."""
    graph = importer.load(MODEL).graph
    frozen = grown(graph, (), Limits())
    laid = {number: [one for one in options if one.implementation == "tvm"] for number, options in candidates(frozen).items()}
    products = [one for options in laid.values() for one in options if "MatMul" in _operators(one)]
    assert sum(_operators(one) >= {"Gather", "Pad", "MatMul"} for one in products) >= 2
    dense = [one for one in products if any(node.op == "MatMul" and node.inputs[1].type.rank == 2 for node in walk((one.fragment,)))]
    assert not dense


def test_generated_products_compute_what_they_mean() -> None:
    """Both forms of the product, the sum along and across the stored axis, with indices read from a constant."""
    graph = importer.load(MODEL).graph
    frozen = grown(graph, (), Limits())
    values, findings = class_values(frozen, graph, random_feeds(MODEL, 0))
    laid = {n: tuple(one for one in options if one.implementation == "tvm" and "MatMul" in _operators(one))
            for n, options in candidates(frozen).items()}
    assert not findings + list(wrong_fragments(laid, values))
    alone = trial_programs(trials(laid, values, set()))
    compile_together([program for program, _ in alone])
    assert alone and not [finding for program, part in alone for finding in wrong_kernels(program, part)]
