"""Run one optimisation from the command line: progress on standard error, the result on standard output."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from egraph.errors import ModelError
from egraph.optimize.options import Options, choice_text
from egraph.optimize.original import with_constants
from egraph.optimize.outcome import FEW_REPEATS, Outcome
from egraph.optimize.pipeline import optimize
from egraph.optimize.progress import Progress, process_started
from egraph.optimize.size_plan import BATCH, ONNXRUNTIME, Gap, with_open_batch, with_shapes
from egraph.optimize.sizes import SizesOutcome, optimize_sizes
from runtime.garbage_collection import rare_collections
from runtime.leftovers import own_temporary_files

if TYPE_CHECKING:
    from rich.table import Table


@contextmanager
def _progress(options: Options) -> Iterator[Progress]:
    """Yield the progress of a command; remaining temporary files are removed at its end."""
    progress = Progress(options.verbosity, options.budget_seconds, process_started())
    try:
        with rare_collections(), own_temporary_files():
            yield progress
    finally:
        progress.close()


def run(options: Options) -> int:
    """Optimise and print; return the exit code."""
    with _progress(options) as progress, with_constants(options) as options:
        outcome = _optimize(options, progress)
    if options.json:
        print(json.dumps(outcome.to_json()))
    elif isinstance(outcome, SizesOutcome) and len(outcome.outcomes) == 1:
        print_table(outcome.only)
        print(f"planned: {outcome.sizes.text(outcome.sizes.buckets[0].sizes)}; {OTHERS}")
    elif isinstance(outcome, SizesOutcome):
        print_sizes(outcome)
    else:
        print_table(outcome)
    return 0


def _optimize(options: Options, progress: Progress) -> Outcome | SizesOutcome:
    """Optimise for the given sizes, and for a batch of 1 if the batch is open and the model accepts that."""
    planned = with_open_batch(options)
    if not planned.size_request.has_several:
        return optimize(with_shapes(planned), progress)
    if planned is options:
        return optimize_sizes(options, progress)
    batches = planned.size_request.names.keys() - options.size_request.names.keys()
    flags = " ".join(f"--shape {name}={choice_text(BATCH)}" for name in sorted(batches))
    progress.note(f"the batch is left open: {flags} is taken")
    try:
        return optimize_sizes(planned, progress)
    except ModelError as error:
        progress.note(f"the model does not take that: {error}")
        return optimize(with_shapes(options), progress)


def _for_one_size(options: Options) -> Options:
    """Return options with one size for each axis with given sizes, and for a batch that the model leaves open."""
    return with_shapes(options if options.model.suffix == ".txt" else with_open_batch(options))


def run_stages(options: Options, target: Path) -> int:
    """Run the stages that lead to a file of that name, and print its path; return the exit code."""
    from egraph.optimize.stages import run_alone

    with _progress(options) as progress, with_constants(options) as options:
        written = run_alone(_for_one_size(options), target, progress)
    print(f"wrote {written}")
    return 0


OTHERS = "other sizes: onnxruntime runs the model as it was given"
PROGRAMS = {"onnxruntime": "onnxruntime, all optimisations", "unoptimized": "one kernel a node", "optimized": "optimised"}


def _latencies(outcome: Outcome) -> Table:
    """Return the measured latencies as a table."""
    from rich.table import Table

    latency = Table(title=f"{outcome.model} on {outcome.threads} thread{'s' if outcome.threads > 1 else ''}", title_justify="left")
    latency.add_column("program")
    latency.add_column("latency", justify="right")
    latency.add_column("against it", justify="right")
    for name, description in PROGRAMS.items():
        time_us, times = outcome.latency_us[name], outcome.over(name, 2)
        time_text = "not timed" if time_us is None else f"{time_us / 1e3:.3f} ms"
        latency.add_row(description, time_text, "" if times is None else f"{times:.2f}x")
    return latency


def _estimates(outcome: Outcome) -> Table:
    """Return the estimated costs as a table, because a device without timing has no latencies."""
    from rich.table import Table

    estimates = Table()
    estimates.add_column("program")
    estimates.add_column("estimated cost", justify="right")
    for name, cost_us in outcome.estimated_us.items():
        estimates.add_row(PROGRAMS[name], f"{cost_us / 1e3:.3f} ms")
    return estimates


def run_export(options: Options, archive: Path) -> int:
    """Write the kernels that a search would measure, and print what to do with them; return the exit code."""
    from egraph.optimize.job_export import export_jobs

    with _progress(options) as progress, with_constants(options) as options:
        exported = export_jobs(_for_one_size(options), archive, progress)
    if options.json:
        print(json.dumps({"archive": str(archive), "kernels": exported.kernels, "failed": exported.failed}))
        return 0
    failed = f"; {exported.failed} cannot be compiled and are filed so" if exported.failed else ""
    print(f"wrote {archive}: {exported.kernels} kernels{failed}")
    if exported.kernels:
        print(f"measure them with: python -m runtime.profile measure {archive} -o records.jsonl")
    else:
        print("everything that the search asks for is measured")
    return 0


def print_sizes(outcome: SizesOutcome) -> None:
    """Print what runs at each planned size and its latency, and what runs at other sizes."""
    from rich.console import Console
    from rich.table import Table

    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 120, highlight=False)
    table = Table(title=f"{outcome.model}, by sizes", title_justify="left")
    for column in ("sizes", "runs", "onnxruntime", "optimised", "against it", "largest relative error"):
        table.add_column(column, justify="left" if column in ("sizes", "runs") else "right")
    for bucket, each in zip(outcome.sizes.buckets, outcome.outcomes, strict=True):
        times = [each.latency_us[name] for name in ("onnxruntime", "optimized")]
        time_texts = ["" if time_us is None else f"{time_us / 1e3:.3f} ms" for time_us in times]
        over = each.over("onnxruntime", 2)
        runs = f"{len(each.kernels)} kernels" if bucket.has_program else "onnxruntime"
        speedup = "" if over is None else f"{over:.2f}x"
        table.add_row(outcome.sizes.text(bucket.sizes), runs, *time_texts, speedup, f"{each.max_rel_err:.2g}")
    console.print(table)
    if outcome.left_out:
        left_out = "; ".join(map(outcome.sizes.text, outcome.left_out))
        why = "for want of time (--budget TIME gives more), or since the model does not take it"
        console.print(f"not planned: {left_out}, {why}", soft_wrap=True)
    for gap in map(Gap.describe, outcome.gaps):
        runs = gap["runs"] if gap["runs"] == ONNXRUNTIME else f"padded to {gap['runs']}"
        console.print(f"{gap['sizes']}: {runs} ({gap['why']})", soft_wrap=True)
    console.print(OTHERS)
    for file in outcome.files:
        console.print(f"wrote {file}", soft_wrap=True)
    console.print(f"{outcome.seconds_total:.1f} s in all")


def print_table(outcome: Outcome) -> None:
    """Print latencies, kernel counts before and after, and the used rules."""
    from rich.console import Console
    from rich.table import Table

    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 120, highlight=False)
    if outcome.status == "estimated":
        name, *rest = outcome.device.split(" | ")
        how = " from kernels that were timed" if rest and rest[0] == "measured" else ", nothing was timed"
        console.print(f"{outcome.model}: estimated{how} on {name}")
    console.print(_estimates(outcome) if outcome.status == "estimated" else _latencies(outcome))
    if 0 < outcome.repeats < FEW_REPEATS:
        console.print(f"latencies: {outcome.repeats} repeat{'s' if outcome.repeats > 1 else ''}, there was no time for more")
    before, after = len(outcome.before), len(outcome.kernels)
    if outcome.status == "unchanged":
        console.print("Nothing measured faster than onnxruntime on the original model: the artefact runs the model unchanged.")
    else:
        counts = ", ".join(f"{count} {kind}" for kind, count in outcome.kernel_counts.items() if count)
        console.print(f"kernels: {before} before, {after} after ({counts}); largest relative error {outcome.max_rel_err:.2g}")
    for hint in outcome.hints:
        console.print(hint, soft_wrap=True)
    if outcome.has_subnormals:
        console.print(outcome.subnormals_text, soft_wrap=True)
    if outcome.precision_text:
        console.print(outcome.precision_text, soft_wrap=True)
    if outcome.derivations_text:
        console.print(outcome.derivations_text)
    if outcome.rules:
        rules = Table(title="rules used", title_justify="left")
        for column in ("rule", "kernels", "verdict", "equation"):
            rules.add_column(column, overflow="fold")
        for rule in outcome.rules:
            rules.add_row(rule.name, str(rule.uses), rule.verdict, rule.equation)
        console.print(rules)
    if outcome.unsafe_rules:
        console.print(f"unsafe: rules without a proof were in use: {', '.join(outcome.unsafe_rules)}", soft_wrap=True)
    for file in outcome.files:
        console.print(f"wrote {file}", soft_wrap=True)
    console.print(f"{outcome.seconds_total:.1f} s in all")
