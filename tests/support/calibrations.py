"""Times of the standard kernels, measured by the first command that needs them and shared by all commands of a process's tests.

A command with a database of its own would measure them again, which takes longer than the rest of most small searches.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from egraph.optimize import measuring, pipeline, run
from egraph.optimize.measuring import Measurer
from egraph.tensor import Program, Target
from lower.roofline import DeviceSpeed
from runtime.profile import Database


def share_calibrations(path: Path) -> None:
    """Make searches that may measure read the standard kernels' times from the file at a path, and store missing ones there."""
    calibrate, calibration_programs = measuring.calibrate, measuring.calibration_programs

    def copy(source: Database, destination: Database, device: str, target: Target) -> None:
        for job in measuring.calibration_missing(destination, device, target):
            if (record := measuring.recorded(source, device, target, job)) is not None and record.status == "ok":
                destination.put(record)

    def programs(database: Database, device: str, target: Target, *, seed: int) -> list[Program]:
        shared = Database.open(path)
        copy(shared, database, device, target)
        shared.close()
        return calibration_programs(database, device, target, seed=seed)

    def calibrated(database: Database, device: str, target: Target, measurer: Measurer | None, **options: Any) -> DeviceSpeed:
        if measurer is None or not measuring.calibration_missing(database, device, target):
            return calibrate(database, device, target, measurer, **options)
        shared = Database.open(path)
        copy(shared, database, device, target)
        speed = calibrate(database, device, target, measurer, **options)
        copy(database, shared, device, target)
        shared.close()
        return speed

    vars(pipeline)["calibration_programs"] = programs
    vars(run)["calibrate"] = calibrated
