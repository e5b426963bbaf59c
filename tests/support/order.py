"""Start the test files that take longest first, because a long file that starts last leaves the other processes idle.

pytest-xdist distributes files in the order in which tests are collected if it is called with --no-loadscope-reorder.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

LONGEST_FIRST = (
    "egraph/optimize/test_sizes", "project/test_docs", "egraph/partial/test_partial", "egraph/partial/test_partial_regions",
    "verify/test_xla_rules", "verify/test_red_team_files", "egraph/rules/test_gate_coverage", "egraph/optimize/test_optimize",
    "lower/test_cuda_generator", "verify/test_rounding_classes", "bench/test_gpu_first_contact", "bench/test_bench",
    "runtime/test_cuda_jobs", "lower/test_eoperator_tables", "egraph/rules/test_rules", "egraph/optimize/test_interruption",
    "runtime/test_backend", "verify/test_disagreement", "egraph/tensor/test_text", "verify/test_generate", "egraph/onnx/test_quantised",
    "egraph/optimize/test_blame", "verify/test_derivation_proofs", "lower/test_cuda_attention", "bench/test_corpora_laws",
    "bench/test_corpora", "bench/test_mutation", "bench/test_bench_precision", "egraph/optimize/test_corrected_rules",
    "egraph/derive/test_derive_search", "egraph/optimize/test_subnormals", "egraph/optimize/test_paired", "lower/test_eoperator",
    "verify/test_prove", "lower/test_eoperator_stencils", "verify/test_rule_statements", "runtime/test_cuda_recorded",
    "egraph/onnx/test_importer", "runtime/test_jobs", "egraph/optimize/test_gate", "egraph/optimize/test_finalists",
    "egraph/tensor/test_expr_laws", "project/test_fuzz", "lower/test_eoperator_threads", "runtime/test_runner",
    "bench/test_bench_cuda_kernels", "lower/test_compiling_process", "egraph/tensor/test_parts", "egraph/optimize/test_leftovers",
    "egraph/tensor/test_ops", "egraph/optimize/test_memo", "verify/test_red_team", "lower/test_recurrence", "egraph/derive/test_bilinear",
    "egraph/optimize/test_int8",
)  # fmt: skip
"""Files below tests/ that take 7 s of processor time or more, as measured, longest first; other files follow in collection order."""


def longest_first(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return tests with those of long files first; the order inside a file is kept."""
    places = {name: place for place, name in enumerate(LONGEST_FIRST)}

    def place(item: pytest.Item) -> int:
        name = item.nodeid.partition("::")[0].removeprefix("tests/").removesuffix(".py")
        return places.get(name, len(places))

    return sorted(items, key=place)
