"""Execute every kernel that the e-graph of a bench model offers, and compare it with onnxruntime on random data.

    python -m bench.candidates                        every model
    python -m bench.candidates resnet18 bert_base --seconds 300
    python -m bench.candidates fsrcnn --derived         only what derived programs add

The optimizer measures only the kernels that its search comes upon; this command measures every kernel that it could choose.
Results are kept in a file of their own, so that a second call resumes where the first one stopped. Exit code 1: a kernel is wrong.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import onnx

from bench.inputs import parse_shapes
from bench.models import MODELS, BenchModel
from egraph.engine.saturate import Limits, saturate
from egraph.errors import EinsatError
from egraph.onnx import exporter, importer
from egraph.optimize.admission import choose_derivations
from egraph.optimize.derivations import Deriver
from egraph.optimize.gate import Gate
from egraph.optimize.measuring import Job, Measurer, recorded
from egraph.rules import RULES
from egraph.tensor import Candidate, FrozenEGraph
from lower.candidates import candidates as lay_candidates
from lower.compile import CompileOptions
from lower.cost.model import CostModel, is_measurable, without_twins
from lower.roofline import DeviceSpeed
from lower.targets import default_target
from runtime.judge import ONLY_REFERENCE
from runtime.measure import Effort, Worker
from runtime.profile import Database

DEVICE = "every candidate, {threads} threads"
LIMITS = Limits(seconds=60.0, e_nodes=50_000)
ONCE = Effort(seconds=0.0, least=1, most=1)


def offered(entry: BenchModel, database: Database, *, twins: bool, derived: bool) -> list[Job]:
    """Return the distinct kernels over the saturated e-graph, well mixed.

    ``twins``: also other forms of the same kernel. ``derived``: only kernels that rules without derivations do not reach.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(entry.make(1), path)
        graph = importer.load(path, shapes=parse_shapes(entry.shapes)).graph
    deriver = Deriver(choose_derivations((), allow="finite"), Gate(database))
    saturation = saturate(graph, RULES, LIMITS, derivations=deriver.open())
    jobs = _jobs(saturation.frozen, twins=twins)
    if derived:
        by_rules = _jobs(saturation.by_rules, twins=twins) if saturation.by_rules else jobs
        jobs = {key: job for key, job in jobs.items() if key not in by_rules}
    return [jobs[key] for key in sorted(jobs, key=lambda key: hashlib.sha256(repr(key).encode()).digest())]


def _jobs(frozen: FrozenEGraph, *, twins: bool) -> dict[tuple[str, str], Job]:
    """Return the kernels over an e-graph by the keys of their measurements."""
    laid: Mapping[int, tuple[Candidate, ...]] = lay_candidates(frozen)
    model = CostModel(Database.in_memory(), "", DeviceSpeed())
    if not twins:
        laid = without_twins(model, laid)
    jobs: dict[tuple[str, str], Job] = {}
    for options in laid.values():
        for candidate in options:
            if not candidate.implementation.is_free and is_measurable(candidate.fragment):
                key = model.key(candidate)
                jobs.setdefault(key, Job(candidate.fragment, candidate.implementation, key[0]))
    return jobs


def verdicts(database: Database, device: str, jobs: list[Job]) -> Iterator[tuple[str, Job, str]]:
    """Yield the verdict on each kernel that was executed: ok, slow, wrong, failed or hung, and why."""
    for job in jobs:
        record = recorded(database, device, default_target(), job)
        if record is not None:
            yield "slow" if ONLY_REFERENCE in record.message else record.status, job, record.message


def _seconds_until(end: float) -> float:
    return end - time.monotonic()


def main() -> int:
    """Sweep the models; print what is wrong, failed or hung."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.candidates", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", help="names (python -m bench.models lists them)")
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="of each kernel (default: 2)")
    parser.add_argument("--seconds", type=float, default=600.0, help="for each model (default: 600)")
    parser.add_argument("--seed", type=int, default=0, help="of the random data (default: 0)")
    parser.add_argument(
        "--database", type=Path, default=Path("candidates.sqlite"), metavar="PATH",
        help="where results are kept (default: candidates.sqlite, in this folder)",
    )  # fmt: skip
    parser.add_argument("--twins", action="store_true", help="also other writings of the same kernels")
    parser.add_argument("--derived", action="store_true", help="only kernels that rules without derivations do not lead to")
    options = parser.parse_args()
    if unknown := [name for name in options.models if name not in MODELS]:
        parser.error(f"there is no {', '.join(unknown)}; python -m bench.models lists them")

    device, wrong = DEVICE.format(threads=options.threads), 0
    database = Database.open(options.database)
    compile_options = CompileOptions(threads=options.threads, export_graph=exporter.serialized)
    try:
        with Worker(time_out_seconds=60.0) as worker:
            measurer = Measurer(database, device, compile_options, worker, options.seed, ONCE)
            for name in options.models or MODELS:
                try:
                    jobs = offered(MODELS[name], database, twins=options.twins, derived=options.derived)
                except (EinsatError, OSError) as error:
                    print(f"{name}: {type(error).__name__}: {error}", flush=True)
                    continue
                todo = [job for job in jobs if recorded(database, device, default_target(), job) is None]
                end = time.monotonic() + options.seconds
                measurer.measure(todo, partial(_seconds_until, end), lambda text: None)
                judged = list(verdicts(database, device, jobs))
                counts = Counter(verdict for verdict, _, _ in judged)
                wrong += counts["wrong"]
                left = f", {len(jobs) - len(judged)} not executed in time" if len(judged) < len(jobs) else ""
                print(f"{name}: {len(jobs)} kernels: {', '.join(f'{n} {v}' for v, n in sorted(counts.items()))}{left}", flush=True)
                for verdict, job, message in judged:
                    if verdict not in ("ok", "slow"):
                        print(f"  {verdict}: {job.implementation} {job.text}\n    {message}", flush=True)
    finally:
        database.close()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
