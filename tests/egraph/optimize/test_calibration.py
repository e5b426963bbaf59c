"""The speed of a device is read from standard kernels, also if other processes ran beside them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from egraph.optimize.measuring import calibrate, calibration_jobs
from lower.targets import default_target, lowering
from runtime.profile import Database, Record

TIMES_US = {"launch": 0.1, "cache": 6.0, "memory": 900.0, "contraction": 1200.0, "other": 9.0, "call": 10.0}


def filed(samples_us: Mapping[str, tuple[float, ...]]) -> Database:
    database = Database.in_memory()
    for name, job in calibration_jobs(default_target()).items():
        digest = lowering().code_digest(job.fragment, job.implementation)
        database.put(Record("here", *job.key, "ok", samples_us[name], generator=digest))
    return database


@pytest.mark.parametrize("disturbed", sorted(TIMES_US))
def test_readings_that_were_disturbed_do_not_make_a_device_slow(disturbed: str) -> None:
    """Single disturbed readings do not make a device slow.

    Regression: a copy in the cache was once read as a hundred times slower, so no generated kernel was tried.
    """
    quiet: dict[str, tuple[float, ...]] = {name: (time_us,) * 5 for name, time_us in TIMES_US.items()}
    noisy = quiet | {disturbed: tuple(time_us * factor for time_us, factor in zip(quiet[disturbed], (90, 100, 1, 120, 80), strict=True))}
    assert calibrate(filed(noisy), "here", default_target(), None) == calibrate(filed(quiet), "here", default_target(), None)


def test_what_launching_and_calling_take_is_no_part_of_a_kernels_own_time() -> None:
    """A device on which every kernel takes longer by the same time is as fast, with slower launches; calls cost as much."""
    late = {name: (time_us + 3.0,) * 5 for name, time_us in TIMES_US.items()}
    on_time = {name: (time_us,) * 5 for name, time_us in TIMES_US.items()}
    quick, slow = (calibrate(filed(samples_us), "here", default_target(), None) for samples_us in (on_time, late))
    assert slow.launch_us == pytest.approx(quick.launch_us + 3.0) and slow.call_us == pytest.approx(quick.call_us) == pytest.approx(9.9)
    for name in ("cache_gigabytes_s", "memory_gigabytes_s", "contraction_gigaflops_s", "other_gigaflops_s"):
        assert getattr(slow, name) == pytest.approx(getattr(quick, name)), name


def test_caches_are_no_slower_than_memory() -> None:
    times = filed({name: (time_us,) * 5 for name, time_us in (TIMES_US | {"cache": 600.0}).items()})
    speed = calibrate(times, "here", default_target(), None)
    assert speed.cache_gigabytes_s == speed.memory_gigabytes_s > 50
