"""What it costs to write lines that another core has read."""

from __future__ import annotations

import pytest

from runtime.cores import usable_cores
from runtime.profile.passing import line_ns


@pytest.mark.skipif(usable_cores() < 2, reason="lines pass between cores only where there are two")
def test_lines_that_another_core_has_read_cost_more_than_one_writes_in_a_cycle() -> None:
    """64 bytes a cycle of 5 GHz is the most that a core stores; the upper bound is generous for a busy machine."""
    found = min(line_ns(2) or 0.0 for _ in range(5))
    assert 0.2 < found < 10_000


def test_one_thread_passes_no_lines() -> None:
    assert line_ns(1) is None
