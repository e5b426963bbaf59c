"""Learn the prior of kernel times from measurements.

    python -m bench.prior                             from this user's profile database, and say how well that predicts
    python -m bench.prior a.sqlite b.sqlite -o FILE   from these
    python -m bench.prior --write                     in the place of the one that ships (``lower.cost.prior``)

Each database has a factor of its own for the speed and load of its machine; this factor is not kept.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from egraph.errors import EinsatError
from egraph.optimize.measuring import calibrate
from egraph.tensor import walk
from egraph.tensor.text import TextError, parse_fragment
from lower.cost.prior import FILE, FURTHEST, Prior, described
from lower.roofline import DeviceSpeed, work
from lower.targets import lowering
from runtime.devices import HOST
from runtime.profile import Database, default_path
from runtime.profile.versions import from_memory

RIDGE = 1.0
"""The penalty on squared weights, in kernels: evidence from few kernels moves the prior little."""
LEAST_US = 0.5
"""Microseconds to which shorter times are rounded up: they measure the clock."""
PARTS = 5
"""Folds of the cross-validation that rates a prior: each part of the kernels is predicted from the others."""


@dataclass(frozen=True)
class Sample:
    """A measured kernel: its place, its features, and the binary logarithm of its time over the roofline's."""

    place: str
    features: Mapping[str, float]
    power: float


def samples(place: str, database: Database) -> list[Sample]:
    """Return the measured kernels of a database; records that this version cannot read are skipped."""
    lowers, speeds, result = lowering(HOST), dict[str, DeviceSpeed](), list[Sample]()
    for record in database.records():
        if record.median_us is None or ", in " in record.device:
            continue
        try:
            fragment = parse_fragment(record.fragment)
        except (TextError, EinsatError, KeyError, ValueError):
            continue
        if not all(node.type.is_static for node in walk((fragment,))):
            continue
        device = record.device.removesuffix(from_memory(""))
        if device not in speeds:
            speeds[device] = calibrate(database, device, lowers.target, None)
        amount, speed = work(fragment), speeds[device]
        power = math.log2(max(LEAST_US, record.median_us) / speed.estimate_us(amount))
        if abs(power) <= 2 * FURTHEST:
            bounded = max(-FURTHEST, min(FURTHEST, power))
            result.append(Sample(f"{place} {record.device}", described(fragment, record.implementation, amount), bounded))
    return result


def learnt(data: Sequence[Sample]) -> Prior:
    """Return the prior of some kernels by ridge regression; each place has a constant that is neither penalised nor kept."""
    names = sorted({name for each in data for name in each.features if name != "one"})
    places = sorted({each.place for each in data})
    column = {name: k for k, name in enumerate((*names, *places))}
    matrix = np.zeros((len(data), len(column)))
    for row, each in enumerate(data):
        matrix[row, column[each.place]] = 1.0
        for name, value in each.features.items():
            if name != "one":
                matrix[row, column[name]] = value
    penalty = np.diag([RIDGE] * len(names) + [1e-6] * len(places))
    solution = np.linalg.solve(matrix.T @ matrix + penalty, matrix.T @ np.array([each.power for each in data]))
    constant = statistics.median(float(solution[column[each.place]]) for each in data)
    return Prior({"one": constant, **{name: round(float(solution[column[name]]), 4) for name in names}})


def power_of(prior: Prior, each: Sample) -> float:
    return math.fsum(prior.weights.get(name, 0.0) * value for name, value in each.features.items())


def spread(errors: Iterable[tuple[str, float]]) -> float:
    """Return the median distance from the median of each place, in powers of two."""
    by_place: dict[str, list[float]] = {}
    for place, error in errors:
        by_place.setdefault(place, []).append(error)
    return statistics.median(abs(error - statistics.median(each)) for each in by_place.values() for error in each)


def main(arguments: Sequence[str] | None = None) -> int:
    """Learn a prior; print how well it predicts kernels that it has not seen."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.prior", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("databases", type=Path, nargs="*", metavar="DATABASE", help="profile databases (default: this user's)")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the weights here, as JSON")
    parser.add_argument("--write", action="store_true", help="write the weights in the place of those that ship")
    options = parser.parse_args(arguments)
    data = [
        each
        for number, path in enumerate(options.databases or [default_path()])
        for each in samples(str(number), Database.open(path, read_only=True))
    ]
    if len(data) < PARTS:
        print(f"error: {len(data)} kernels were measured: too few to learn from", file=sys.stderr)
        return 2
    unseen = [
        (each.place, each.power - power_of(prior, each))
        for part in range(PARTS)
        for prior in [learnt([each for k, each in enumerate(data) if k % PARTS != part])]
        for each in data[part::PARTS]
    ]
    worst = statistics.quantiles([abs(error) for _, error in unseen], n=10)[-1]
    before = spread((each.place, each.power) for each in data)
    print(f"{len(data)} kernels; a kernel that it has not seen is off by a factor of {2 ** spread(unseen):.2f} (median), by its roofline "
          f"alone {2**before:.2f}; one in ten by more than {2**worst:.1f}")  # fmt: skip
    weights = dict(sorted(learnt(data).weights.items()))
    text = json.dumps({"target": lowering(HOST).target.kind, "kernels": len(data), "weights": weights}, indent=1) + "\n"
    for file in [*([options.output] if options.output else []), *([FILE] if options.write else [])]:
        file.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
