"""Verdicts of a sweep are found again, and only for the code that was executed."""

from __future__ import annotations

import pytest

from bench.candidates import verdicts
from egraph.optimize.measuring import Job
from egraph.tensor import Implementation, format_fragment
from egraph.tensor.ops import apply
from lower.targets import default_target, lowering
from runtime.judge import ONLY_REFERENCE
from runtime.profile import Database, Record
from tests.support.fragments import leaf


@pytest.mark.parametrize("text", ["tvm", "onednn.matmul", "products.matmul"])
def test_verdicts_are_of_the_code_that_was_executed(text: str) -> None:
    fragment, implementation = apply("MatMul", leaf(0, 8, 8), leaf(1, 8, 8)), Implementation.parse(text, default_target())
    job, database = Job(fragment, implementation, format_fragment(fragment)), Database.in_memory()
    digest = lowering().code_digest(fragment, implementation)
    assert bool(digest) is (text != "onednn.matmul")
    database.put(Record("here", *job.key, "wrong", (), "of another version", "another"))
    assert not list(verdicts(database, "here", [job]))
    database.put(Record("here", *job.key, "ok", (1.0,), generator=digest))
    assert list(verdicts(database, "here", [job])) == [("ok", job, "")]
    database.put(Record("here", *job.key, "failed", (), f"it has {ONLY_REFERENCE}", digest))
    assert [verdict for verdict, _, _ in verdicts(database, "here", [job])] == ["slow"]
