"""Measure the effect of a policy's field, or of the budget, on models: optimise with each value, time the results in turns, print ratios.

    python -m bench.policy --field extract.share --values 0.02,0.1 --models resnet18,dcgan
    python -m bench.policy --field budget --values 10s,30s --models resnet18,dcgan
    python -m bench.policy --field race.rounds --values 3,15 --models dcgan --threads 1 -- --budget 30s

The default value is always included. Every search begins with an empty profile database and compiles its kernels again, and all programs
of a model are timed in one run: a ratio above 1 means that the program is faster than that of the default. ``--policy help`` of
egraph.optimize lists the fields.
With --record, budgets.json and budgets.md are written into bench/results, or policy.json and policy.md for a field of a policy.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from bench.interleave import EngineFailed, EngineProcess, interleave
from bench.models import MODELS, BenchModel
from bench.record import RESULTS, opening, origin, record
from bench.row import RowFailed, run_optimizer
from bench.table import geometric_mean
from bench.unseen import UNSEEN
from egraph.optimize.options import Options
from egraph.policy import Policy, PolicyError, tunings

BUDGET = "budget"
"""The name of a sweep of ``--budget`` instead of a field of the policy."""


@dataclass(frozen=True)
class Swept:
    """The result of one value of a field. ``median_us``: the program's time; None if it could not be timed, for the given ``reason``."""

    value: str
    optimize_seconds: float
    predicted_us: float | None
    median_us: float | None
    reason: str = ""


@dataclass(frozen=True)
class Recorded:
    """The result of one value for one model, as it is recorded."""

    model: str
    swept: Swept


def values_of(field: str, texts: Sequence[str]) -> tuple[str, ...]:
    """Return the default of a field and the other values, as text; raises PolicyError if the field cannot have one of them."""
    if field == BUDGET:
        return tuple(dict.fromkeys([f"{Options.budget_seconds:g}s", *texts]))
    for text in texts:
        Policy().with_value(field, text)
    default = next((each.text for each in tunings(Policy()) if each.name == field), "")
    return tuple(dict.fromkeys([default, *texts]))


def option(field: str, value: str) -> tuple[str, str]:
    """Return the option of egraph.optimize that sets a field."""
    return ("--budget", value) if field == BUDGET else ("--policy", f"{field}={value}")


def sweep(
    entry: BenchModel, field: str, values: Sequence[str], *, threads: int, seconds: float, limit_seconds: float, extra: Sequence[str] = ()
) -> list[Swept]:
    """Optimise a model with each value, then time the programs in turns."""
    deadline = time.monotonic() + limit_seconds
    swept: list[Swept] = []
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        source = Path(name) / f"{entry.name}.onnx"
        model = entry.make(entry.batches[0])
        onnx.save(model, source)
        feeds = entry.feeds(model)
        processes: dict[str, EngineProcess] = {}
        for value in values:
            folder = Path(name) / value  # a folder each: engines keep what they print beside their inputs
            folder.mkdir()
            np.savez(folder / "feeds.npz", allow_pickle=False, **feeds)
            command = [
                sys.executable, "-m", "egraph.optimize", str(source), "-o", str(folder), "--json", "-q", "--threads", str(threads),
                "--database", str(folder / "profile.sqlite"), *option(field, value),
                *(part for shape in entry.shapes for part in ("--shape", shape)), *extra,
            ]  # fmt: skip
            took_seconds, predicted_us, reason = 0.0, None, ""
            try:
                took_seconds, outcome = run_optimizer(command, deadline, folder / "cache")
                predicted_us = outcome.get("predicted_us")
                process = EngineProcess("einsat", folder / f"{entry.name}.einsat", folder / "feeds.npz", threads)
                processes[value] = stack.enter_context(process)
            except (RowFailed, EngineFailed) as error:
                reason = str(error)
            swept.append(Swept(value, took_seconds, predicted_us, None, reason))
        times_ns, failed = interleave(processes, seconds=seconds * len(processes), deadline=deadline)
    medians_us = {value: statistics.median(times) / 1e3 for value, times in times_ns.items() if times}
    return [
        Swept(each.value, each.optimize_seconds, each.predicted_us, medians_us.get(each.value), each.reason or failed.get(each.value, ""))
        for each in swept
    ]


def table(field: str, rows: Mapping[str, Sequence[Swept]]) -> str:
    """Return one line per model and value; the first value of each model is the baseline of the others."""
    lines = [f"| model | {field} | optimised in | predicted | measured | against the default |", "|---|---|---|---|---|---|"]
    for model, swept in rows.items():
        base_us = swept[0].median_us
        for each in swept:
            predicted = "-" if each.predicted_us is None else f"{each.predicted_us:.0f} us"
            measured = each.reason or "-" if each.median_us is None else f"{each.median_us:.0f} us"
            ratio = "-" if base_us is None or each.median_us is None else f"{base_us / each.median_us:.3f}"
            lines.append(f"| {model} | {each.value} | {each.optimize_seconds:.1f} s | {predicted} | {measured} | {ratio} |")
    return "\n".join(lines)


def means(rows: Mapping[str, Sequence[Swept]]) -> list[str]:
    """Return one sentence per value: the speed of its programs relative to the default's, as geometric mean and minimum."""
    ratios: dict[str, dict[str, float]] = {}
    for model, swept in rows.items():
        for each in swept[1:]:
            if swept[0].median_us is not None and each.median_us is not None:
                ratios.setdefault(each.value, {})[model] = swept[0].median_us / each.median_us
    return [
        f"{value}: {geometric_mean(list(of.values())):.3f} in the geometric mean of {len(of)} models, at least {min(of.values()):.3f} "
        f"({min(of, key=lambda model: of[model])})."
        for value, of in ratios.items()
    ]


def page(field: str, rows: Mapping[str, Sequence[Swept]], where: Mapping[str, Any]) -> str:
    """Return the results as a page of Markdown."""
    title = "# Programs by budget" if field == BUDGET else f"# Programs by {field}"
    lines = [
        title, "", *opening(where, ("egglog", "onnxruntime", "onednn-cpu-gomp")),
        "Batch 1. Every search began with an empty profile database and compiled its kernels anew. Medians of runs in turns, each",
        "program in a process of its own, from numpy inputs to numpy outputs. *Against the default*: its time over this one's, so that",
        "more than 1 is faster.", "",
        *means(rows), "", table(field, rows), "",
    ]  # fmt: skip
    return "\n".join(lines)


def main() -> int:
    """Run the command line; return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.policy", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--field", required=True, metavar="STAGE.FIELD", help="what to change")
    parser.add_argument("--values", required=True, help="comma-separated values; the default is always among them")
    parser.add_argument("--models", required=True, help="comma-separated names (python -m bench.models and bench.unseen list them)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=4.0, help="timing budget of a program (default: 4)")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds after which a model is given up (default: 900)")
    parser.add_argument("--record", action="store_true", help="write the results, after each model")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder that they are written to")
    parser.add_argument("extra", nargs="*", help="after --, passed to egraph.optimize")
    options = parser.parse_args()
    models = {**MODELS, **UNSEEN}
    names = options.models.split(",")
    if unknown := [name for name in names if name not in models]:
        parser.error(f"--models: there is no {', '.join(unknown)}; python -m bench.models and bench.unseen list them")
    try:
        values = values_of(options.field, options.values.split(","))
    except PolicyError as error:
        parser.error(str(error))
    rows: dict[str, list[Swept]] = {}
    command = ["python -m bench.policy", f"--field {options.field} --values {options.values} --models {options.models}", *options.extra]
    where = origin(options.threads, command)
    code = 0
    try:
        for name in names:
            rows[name] = sweep(
                models[name], options.field, values,
                threads=options.threads, seconds=options.seconds, limit_seconds=options.limit, extra=options.extra,
            )  # fmt: skip
            print(json.dumps({name: [vars(each) for each in rows[name]]}), file=sys.stderr, flush=True)
            if options.record:
                name = "budgets" if options.field == BUDGET else "policy"
                recorded = [Recorded(model, each) for model, swept in rows.items() for each in swept]
                record(options.results, name, where, recorded, page(options.field, rows, where))
    except KeyboardInterrupt:
        print("interrupted: these models were measured", file=sys.stderr)
        code = 130
    print(table(options.field, rows))
    return code


if __name__ == "__main__":
    raise SystemExit(main())
