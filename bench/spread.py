"""Show how well the outputs of the benchmark's models distinguish inputs: saturated or constant outputs prove little.

    python -m bench.spread                 every model
    python -m bench.spread resnet50 minilm
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

import numpy as np

from bench.models import MODELS, BenchModel
from egraph.optimize.check import moved
from egraph.tolerance import Tolerance

SATURATED = 1e-6
"""A value is at an end of its range if it is nearer to it than this fraction of the range."""


def spread(entry: BenchModel) -> Iterator[str]:
    """Yield one line per output: standard deviation, distinct values, values at an end of the range, change by other inputs."""
    import onnxruntime

    model = entry.make(1)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    first, second = (session.run(None, entry.feeds(model, seed)) for seed in (1, 2))
    for port, first_output, second_output in zip(session.get_outputs(), first, second, strict=True):
        value = np.asarray(first_output, np.float64)
        ends = np.minimum(value - value.min(), value.max() - value) <= SATURATED * np.ptp(value)
        yield (
            f"{entry.name:18} {port.name[:16]:16} std {value.std():8.3g}  largest {np.abs(value).max():8.3g}  "
            f"distinct {len(np.unique(first_output)):7} of {value.size:7}  "
            f"at an end {ends.mean():6.2%}  changed {moved(first_output, second_output, Tolerance()):6.1%}"
        )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.spread", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", help="names (python -m bench.models lists them)")
    names = parser.parse_args(arguments).models
    if unknown := [name for name in names if name not in MODELS]:
        parser.error(f"there is no {', '.join(unknown)}; python -m bench.models lists them")
    for name in names or MODELS:
        for line in spread(MODELS[name]):
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
