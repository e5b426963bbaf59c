"""The measuring process with the recorded device instead of a GPU, with a simulated clock and libraries that list faulty plans.

    python -m tests.support.recorded_worker          replaces runtime.worker in tests

A run takes as many milliseconds as the engine's number; the library's own choice takes nine.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from runtime import worker
from runtime.devices.cuda import device, meaning, program, recorded
from runtime.devices.cuda.cudnn import EnginePlan
from runtime.devices.cuda.device import RecordedDevice
from runtime.devices.cuda.gpus import H100
from runtime.errors import KernelError
from runtime.plan import Buffer

KEY = "cuda:h100 | measured | a recorded H100"
FAVOURITE, SLOW, FAST, CRASHES, HANGS, WRONG, SPOILS = 9, 8, 7, 2, 3, 4, 5
"""Numbers of engines, named by their behaviour; the number is also the reported time in milliseconds."""
LISTED = (FAVOURITE, SLOW, FAST, CRASHES, HANGS, WRONG, SPOILS)


class Clocked(RecordedDevice):
    """The recorded device with the key of a measured GPU."""

    def key(self, threads: int) -> str:
        return KEY


def main() -> None:
    """Answer requests like runtime.worker."""
    usual_plan, usual_meaning = recorded.RecordedDriver.plan, meaning.evaluate_call
    chosen = [FAVOURITE]

    def plan(
        self: recorded.RecordedDriver, kind: str, spec: Mapping[str, Any], operands: Sequence[Buffer], output: Buffer
    ) -> recorded.RecordedCall:
        chosen[0] = FAVOURITE if spec.get("knobs") != {"SET": 1} else spec["engine"]
        if chosen[0] == CRASHES:
            os.kill(os.getpid(), signal.SIGSEGV)
        if chosen[0] == HANGS:
            time.sleep(1000)
        if chosen[0] == SPOILS:
            raise KernelError("the GPU reports an error: an illegal memory access")
        return usual_plan(self, kind, spec, operands, output)

    def plans(self: recorded.RecordedDriver, *_: object) -> list[EnginePlan]:
        return [EnginePlan(engine, {"SET": 1}, 1 << engine) for engine in LISTED]

    def evaluated(spec: Mapping[str, Any], operands: Sequence[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
        result = usual_meaning(spec, operands, shape)
        if chosen[0] == WRONG:
            result.reshape(-1)[-1] += 0.1
        return result

    def elapsed_us(self: recorded.RecordedDriver, start: recorded.Event, end: recorded.Event) -> float:
        return 1e3 * chosen[0] * (sum(end.clock) - sum(start.clock))

    recorded.RecordedDriver.plan, recorded.RecordedDriver.plans = plan, plans  # type: ignore[method-assign, assignment]
    recorded.RecordedDriver.elapsed_us = elapsed_us  # type: ignore[method-assign]
    vars(recorded)["evaluate_call"] = evaluated
    program.WARM_UP_REPLAYS = 1  # there is no cache to warm up, and kernels are slow here
    device.DEVICE = Clocked(gpu=H100)  # type: ignore[assignment]
    worker.main()


if __name__ == "__main__":
    main()
