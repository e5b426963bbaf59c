"""Export the kernels that a search would measure as jobs for another process or machine, and import the records.

If kernels are for a GPU on another machine, their expected results are evaluated here, in float64 by their definitions. The machine that
measures needs neither onnxruntime nor any package of ours but ``runtime``, which the archive carries.

The search is the usual one, with a measurer that measures nothing. It collects the chosen kernels and records that each takes longer than
estimated. The next extraction therefore chooses their rivals, and one archive holds the kernels of several rounds of a search. Kernels that
the profile database knows are not exported: export, measure and import again until none is left.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np

from egraph.errors import EinsatError, ModelError
from egraph.onnx import exporter
from egraph.optimize.budget import Budget
from egraph.optimize.chooser import worth_measuring
from egraph.optimize.kernels import compile_batch, feed_specs, kernel_program, weight_specs
from egraph.optimize.measuring import SHOWN_CHARACTERS, Collector, Job, calibration_missing, write_reference
from egraph.optimize.options import Options
from egraph.optimize.outline import Outline
from egraph.optimize.progress import Progress
from egraph.optimize.search_phases import Choosing
from egraph.optimize.stages import Saturated, advanced, cost_model, device_key, open_database, saturation_of, started
from egraph.tensor import PLAIN, Kernel, Node, Program, walk
from egraph.tensor.ops.parts import divided, evaluate_in_parts
from lower.compile import WEIGHTS, CompileOptions
from lower.cost.rounding import UNIT_ROUNDOFF
from lower.packing import stored_name
from lower.targets import lowering
from runtime.devices import device
from runtime.feeds import DRAWN, FeedSpec, random_feeds, random_weights
from runtime.judge import TOLERANCE, Expected, Judged
from runtime.profile import Database, Record
from runtime.profile.jobs import ArchiveWriter, Origin
from runtime.profile.jobs import Job as ArchivedJob
from runtime.profile.tables import read_lines

ROUNDING_TOLERANCE = 8.0
"""Accepted error of a kernel that rounds its operands, in unit roundoffs, relative to the largest result.

For a sum of 64 results, this is six or seven times the usual error if the largest result is four times the usual one. Among thousands of
sums, none is that far off by chance, while some exceed 4. A wrong result still moves its sum by a hundred times as much.
"""
MOST_JUDGED_PLACES = 1 << 27
"""Largest number of places that are evaluated to judge a kernel whose result has more than two parts."""


@dataclass(frozen=True)
class Exported:
    """The number of kernels in an archive, and of those that could not be compiled, which are recorded as failed."""

    kernels: int
    failed: int


def export_jobs(options: Options, archive: Path, progress: Progress) -> Exported:
    """Write the kernels that a search of a model (or of a stage's text) would measure."""
    if not device(options.device).measured_on:
        fix = "give a --device or --target whose kernels are timed, here or elsewhere, or search without --export-jobs"
        raise ModelError(f"no kernels are timed for the device {options.device!r}", where="--export-jobs", fix=fix)
    with closing(open_database(options, progress)) as database:
        import_profiles(options, database, progress)
        result = advanced(started(options, progress)[0], "saturated", options, progress, database)
        if not isinstance(result, Saturated):
            fix = "give a model, imported.txt or saturated.txt"
            raise ModelError("the stages after a search want no kernels measured", where=str(options.model), fix=fix)
        return _write(_collected(result, options, progress, database), options, archive, progress, database)


def import_profiles(options: Options, database: Database, progress: Progress) -> int:
    """Add the records of ``--import-profiles`` to the database; return the number of new ones for this device."""
    total = 0
    for path in options.profiles:
        try:
            lines = read_lines(path)
        except (OSError, UnicodeDecodeError) as error:
            fix = "python -m runtime.profile measure jobs.zip -o records.jsonl writes such a file"
            raise ModelError(f"records cannot be read: {error}", where="--import-profiles", fix=fix) from error
        before = set(_of_device(database, options))
        added, skipped = database.import_lines(lines)
        more = len(set(_of_device(database, options)) - before)
        total += more
        progress.note(f"{path.name}: {added} measurements imported, {skipped} skipped; {more} are new of this device and these libraries")
    return total


def _of_device(database: Database, options: Options) -> Iterator[Record]:
    runs_on = device(options.device)
    keys = tuple(filter(None, (runs_on.key(options.threads), runs_on.measured_key)))
    return (record for record in database.records() if record.device.startswith(keys))


def _collected(result: Saturated, options: Options, progress: Progress, database: Database) -> list[Job]:
    lowers, collector = lowering(options.device), Collector(policy=options.policy.measure)
    key = device_key(options, database)
    is_described = lowers.speed is not None  # its rates are from its data sheet
    missing = [] if is_described else calibration_missing(database, key, lowers.target)
    model = cost_model(result.graph, options, database)
    model.database = database.scratch()
    # The collection has a budget of its own, because a search that has used up its time would measure nothing.
    budget = Budget(Progress(options.verbosity, options.budget_seconds), policy=options.policy)
    outline = Outline(result.graph, result.graph)
    choice, _ = Choosing(outline, saturation_of(result), model, budget, options.seed).choose(collector, options.finalists)
    # If time was over before any program was chosen, the kernels of the programs chosen now are collected.
    worth = worth_measuring(model, (*choice.selections, *choice.by_rules), options.policy.measure.negligible, {})
    collector.measure_candidates(model, worth, lambda: math.inf, lambda text: None)
    return list({job.key: job for job in (*missing, *collector.jobs.values())}.values())


def _write(jobs: list[Job], options: Options, archive: Path, progress: Progress, database: Database) -> Exported:
    progress.stage("compile the kernels")
    compile_options = CompileOptions(options.threads, lowering(options.device).target, export_graph=exporter.serialized)
    runs_on, lowers = device(options.device), lowering(options.device)
    is_elsewhere = not runs_on.is_timed
    origin = Origin(runs_on.measured_on, runs_on.architecture, options.threads, options.seed)
    kernels = failed = 0
    try:
        with ArchiveWriter(archive, origin) as writer:
            writer.add_runtime()
            together = options.policy.measure.batch
            for start in range(0, len(jobs), together):
                batch = jobs[start : start + together]
                with tempfile.TemporaryDirectory(prefix="einsat-kernels-") as folder:
                    programs = [kernel_program(job.fragment, job.implementation, seed=options.seed) for job in batch]
                    compiled_folders = compile_batch(programs, Path(folder), compile_options)
                    for job, program, compiled in zip(batch, programs, compiled_folders, strict=True):
                        generator = lowers.code_digest(job.fragment, job.implementation)
                        archived = ArchivedJob(*job.key, generator, job.engine, feed_specs(program))
                        if isinstance(compiled, EinsatError):
                            key = archived.key(device_key(options, database))
                            database.put(Record(*key[:3], "failed", (), str(compiled)[:SHOWN_CHARACTERS], generator))
                            failed += 1
                            continue
                        write_weight_specs(program, job, compiled, options.seed, lowers.constant_orders)
                        if is_elsewhere:
                            write_expected(program, job, compiled, archived.feeds, options.seed)
                        else:
                            write_reference(program, job.implementation, compiled, compile_options)
                        lowers.complete(compiled)  # to run without a compiler
                        writer.add(compiled, archived)
                        kernels += 1
                progress.update(f"{kernels} of {len(jobs)} kernels")
    except OSError as error:
        raise ModelError(f"{archive} cannot be written: {error}", where="--export-jobs", fix="name another file") from error
    return Exported(kernels, failed)


def write_weight_specs(
    program: Program, job: Job, folder: Path, seed: int, orders: Callable[[Kernel], Mapping[int, tuple[int, ...]]]
) -> None:
    """Replace a kernel's random weights by instructions to draw them, because they are larger than everything else in the archive."""
    if (folder / WEIGHTS).exists():
        (folder / WEIGHTS).unlink()
        stored = {}
        for kernel in program.kernels:
            for position, order in orders(kernel).items():
                digest = kernel.inputs[position].string("digest")
                stored[stored_name(digest, order)] = digest, order
        drawn = {"seed": seed, "weights": [astuple(spec) for spec in weight_specs(job.fragment)], "stored": stored}
        (folder / DRAWN).write_text(json.dumps(drawn), encoding="utf-8")


def write_expected(program: Program, job: Job, folder: Path, feeds: Sequence[FeedSpec], seed: int) -> None:
    """Write a summary of a kernel's expected result for its drawn operands, evaluated in float64 by its definition.

    Besides the operands, only one part of the result is in memory at a time.
    """
    given, weights = random_feeds(feeds, seed, repeated=True), random_weights(weight_specs(job.fragment), seed)
    arrays = {
        node: given[node.string("name")] if node.op == "Input" else weights[node.string("digest")]
        for node in walk(program.graph.roots)
        if node.op in ("Input", "Constant")
    }
    precision = job.implementation.precision
    tolerance = TOLERANCE if precision == PLAIN else TOLERANCE + ROUNDING_TOLERANCE * UNIT_ROUNDOFF[precision]
    with np.errstate(all="ignore"):
        Expected.of([_judged(root, arrays) for root in program.graph.roots], {**given, **weights}, tolerance).write(folder)


def _judged(root: Node, arrays: Mapping[Node, np.ndarray]) -> Judged:
    """Return the judged parts of a result: all, or the first, the last and as many between as do not take too long to evaluate."""
    division, dtype = divided(root), root.type.dtype
    count = max(2, MOST_JUDGED_PLACES // max(1, division.part_places))
    numbers = sorted(set(np.linspace(0, len(division.parts) - 1, min(count, len(division.parts))).round().astype(int).tolist()))

    def values() -> Iterator[np.ndarray]:
        parts = evaluate_in_parts(root, arrays, only=numbers)
        return (part if dtype.startswith("float") else part.astype(dtype) for part in parts)

    return Judged(root.type.elements, tuple(map(division.elements, numbers)), values)
