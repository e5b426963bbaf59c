"""Run an artefact from the command line: outputs' shapes and statistics, latency, time per kernel."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.devices import DESCRIBED

if TYPE_CHECKING:
    import numpy as np

    from runtime.session import Session

EXAMPLES = """examples:
  python -m runtime.run model.einsat                          random inputs, one run
  python -m runtime.run model.opt.onnx --repeat 100           median and 90th percentile of 100 runs
  python -m runtime.run model.einsat --inputs image.npy       a model with one input
  python -m runtime.run model.einsat --inputs feeds.npz       arrays by input name
  python -m runtime.run model.einsat --profile --threads 2    microseconds of every kernel
  python -m runtime.run model.einsat --on cuda:h100           execute a program for a GPU without one
"""


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    result = argparse.ArgumentParser(
        prog="python -m runtime.run", description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    result.add_argument("artefact", type=Path, help="the folder model.einsat, or model.opt.onnx beside it")
    result.add_argument("--inputs", type=Path, metavar="FILE", help=".npz with arrays by input name, or .npy for the only input")
    result.add_argument("--repeat", type=_positive, default=1, metavar="N", help="time N runs after two warm-up runs (default 1)")
    help_text = "threads, at most one per processor (default OMP_NUM_THREADS, else one per core)"
    result.add_argument("--threads", type=_positive, metavar="N", help=help_text)
    result.add_argument("--seed", type=int, default=0, help="seed of the random inputs (default 0)")
    result.add_argument("--on", choices=DESCRIBED, help="execute and check a program for this GPU without having one")
    result.add_argument("--profile", action="store_true", help="also time every kernel")
    result.add_argument("--json", action="store_true", help="print one JSON object")
    return result


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def statistics_of(value: Any) -> dict[str, Any]:
    """Return an output's type, shape and the range of its values."""
    import numpy as np

    if not isinstance(value, np.ndarray):
        return {"type": type(value).__name__}
    result: dict[str, Any] = {"dtype": value.dtype.name, "shape": list(value.shape)}
    if value.size and value.dtype.kind in "fiub":
        numbers = value.astype(np.float64)
        result |= {"min": float(numbers.min()), "max": float(numbers.max()), "mean": float(numbers.mean())}
    return result


def measure(session: Session, feeds: Mapping[str, np.ndarray], repeat: int) -> tuple[list[Any], list[float]]:
    """Run as a caller would; return the outputs and the microseconds of every run."""
    import time

    for _ in range(2):
        outputs = session.run(None, feeds)
    times_us = []
    for _ in range(repeat):
        start = time.perf_counter_ns()
        outputs = session.run(None, feeds)
        times_us.append((time.perf_counter_ns() - start) / 1e3)
    return outputs, times_us


def summary(arguments: argparse.Namespace) -> dict[str, Any]:
    """Open, run and describe an artefact."""
    import numpy as np

    from runtime.executable import random_inputs
    from runtime.input_file import Declared, read_inputs
    from runtime.session import Session

    with Session(arguments.artefact, threads=arguments.threads, on=arguments.on) as session:
        feeds = random_inputs(session.executable.plan, arguments.seed) if arguments.inputs is None else read_inputs(
            arguments.inputs, [Declared(port.name, port.dtype, port.shape) for port in session.plan.inputs],
            shape_fix="save arrays of these sizes, or optimise the model for yours: python -m egraph.optimize MODEL --shape NAME:SIZES",
        )  # fmt: skip
        outputs, times_us = measure(session, feeds, arguments.repeat)
        names = [port.name for port in session.get_outputs()]
        result: dict[str, Any] = {
            "artefact": str(session.artefact.folder),
            "device": session.plan.device,
            "keeps_time": session.executable.device.keeps_time,
            "threads": session.executable.threads,
            "outputs": {name: statistics_of(value) for name, value in zip(names, outputs, strict=True)},
            "runs": len(times_us),
            "latency_us": {"median": float(np.median(times_us)), "p90": float(np.quantile(times_us, 0.9))},
        }
        if arguments.profile:
            rows = session.profile(max(arguments.repeat, 10))
            details = session.executable.implementations
            result["kernels"] = [
                {"name": name, "us": round(us, 3), "implementation": details.get(index, session.executable.plan.steps[index].kind)}
                for index, (name, us) in enumerate(rows)
            ]
    return result


def show(result: Mapping[str, Any]) -> str:
    """Return the summary as text for people."""
    lines = []
    for name, facts in result["outputs"].items():
        numbers = "  ".join(f"{key} {facts[key]:.6g}" for key in ("min", "max", "mean") if key in facts)
        lines.append(f"{name}: {facts.get('dtype', facts.get('type'))}{facts.get('shape', '')}  {numbers}".rstrip())
    latency = result["latency_us"]
    runs = f"{result['runs']} runs, {result['threads']} threads"
    lines.append(f"latency: median {latency['median']:.1f} us, p90 {latency['p90']:.1f} us ({runs})")
    if not result["keeps_time"]:
        lines.append(f"the device {result['device']} is not timed: this is how long evaluating took, and says nothing about kernels")
    kernels = result.get("kernels", [])
    total = sum(kernel["us"] for kernel in kernels) or 1.0
    for kernel in kernels:
        lines.append(f"{kernel['us']:10.1f} us {100 * kernel['us'] / total:5.1f} %  {kernel['name']}  [{kernel['implementation']}]")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 0 done, 2 bad input."""
    arguments = parser().parse_args(argv)
    from runtime.errors import ExecutionError

    try:
        result = summary(arguments)
    except ExecutionError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(result) if arguments.json else show(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
