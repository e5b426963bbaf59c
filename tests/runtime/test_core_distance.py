"""Test the measured cost of writing lines that another core has read."""

from __future__ import annotations

import pytest

from runtime.cores import usable_cores
from runtime.devices.cpu.core_distance import line_ns, share_one_core
from runtime.profile.__main__ import describe_cores, main
from runtime.worker import Steady


@pytest.mark.skipif(usable_cores() < 2, reason="lines pass between cores only where there are two")
def test_lines_that_another_core_has_read_cost_more_than_one_writes_in_a_cycle() -> None:
    """A core stores at most 64 bytes per cycle of 5 GHz. The upper bound is generous for a busy machine."""
    found = min(line_ns(2) or 0.0 for _ in range(5))
    assert 0.2 < found < 10_000


def test_one_thread_passes_no_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["runtime.profile", "cores", "--threads", "1"])
    assert line_ns(1) is None and main() == 0
    assert capsys.readouterr().out == "one thread passes nothing between cores\n"


def test_the_command_tells_how_near_the_cores_were(monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter([14.5, 4.1, 4.0])
    monkeypatch.setattr("runtime.profile.__main__.line_ns", lambda threads: next(found))
    monkeypatch.setattr("runtime.profile.__main__.PAUSE_SECONDS", 0.0)
    monkeypatch.setattr("runtime.profile.__main__.ROUNDS", 3)
    assert describe_cores(2) == "a line that another core has read takes 4.1 ns to write (quartiles 4.0 and 14.5)"


def test_cores_that_pass_lines_as_fast_as_one_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for found_ns, shared in ((1.2, True), (4.1, False), (15.0, False), (None, False)):
        monkeypatch.setattr("runtime.devices.cpu.core_distance.line_ns", lambda threads, found_ns=found_ns: found_ns)
        assert share_one_core(2) is shared


def test_what_was_timed_on_one_core_is_timed_again_while_there_is_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.worker.ELSEWHERE_SECONDS", 0.001)
    runs = iter(range(100))

    def run_many(count: int) -> list[int]:
        return [1000 * next(runs)] * count

    looks = iter([True, False, True, False, False, True])
    steady = Steady(lambda threads: next(looks), left_seconds=60.0)
    effort = {"seconds": 0.0, "least": 1, "most": 1, "error": 0.0}
    assert steady.sample(run_many, 2, **effort) == [2.0]  # shared before the first sample, after the second
    assert 0.0 < steady.left_seconds < 60.0
    steady.left_seconds = 0.0
    assert steady.sample(run_many, 2, **effort) == [3.0] and next(looks, None) is None
