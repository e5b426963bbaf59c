"""Run the ONNX backend test-suite through onnxruntime alone and through Einsat, which must pass every case that onnxruntime passes.

    python -m bench.conformance [--filter REGEX] [--jobs N]

The cases are the node tests and the small models of the onnx package (simple, converted from PyTorch). Outputs are compared with
the suite's expected outputs, by the suite's own comparison. Writes bench/results/conformance.json and conformance.md.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from importlib.metadata import version
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.runner import Runner

RESULTS = Path(__file__).parent / "results"
KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
PACKAGES = ("onnx", "onnxruntime", "numpy", "egglog", "apache-tvm", "onednn-cpu-gomp")
WARMED_TOGETHER = 150
"""Cases whose kernels are compiled by one compiler process: starting it takes longer than a kernel."""
SECONDS_PER_CASE = 120.0
NEWEST_IR = 13
"""The newest file format that onnxruntime reads."""
ANY_OPSET = "ALLOW_RELEASED_ONNX_OPSET_ONLY"
"""At 0, onnxruntime reads models of unreleased opsets; it is set for both runs, because the newest cases have such opsets."""


@dataclass(frozen=True)
class Verdict:
    """The verdict on a case; an empty reason is a pass."""

    name: str
    onnxruntime: str
    einsat: str
    seconds: float


def collect(pattern: str = "") -> list[Any]:
    """Return the suite's cases whose name matches, in the suite's order."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the suite divides by zero on purpose
        cases = [case for kind in KINDS for case in load_model_tests(kind=kind)]
    return [case for case in cases if re.search(pattern, case.name)]


def model_of(case: Any) -> onnx.ModelProto:
    return case.model if case.model is not None else onnx.load(str(Path(case.model_dir) / "model.onnx"))


def data_of(case: Any, model: onnx.ModelProto) -> list[tuple[list[Any], list[Any]]]:
    """Return (inputs, expected outputs) of every data set."""
    if case.data_sets is not None:
        return [([_value(v) for v in inputs], [_value(v) for v in outputs]) for inputs, outputs in case.data_sets]
    initialised = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in initialised]
    folders = sorted(Path(case.model_dir).glob("test_data_set_*"))
    return [(_read(folder, "input", inputs), _read(folder, "output", model.graph.output)) for folder in folders]


def _read(folder: Path, kind: str, values: Sequence[onnx.ValueInfoProto]) -> list[Any]:
    values_of_file: list[Any] = []
    for index, path in enumerate(sorted(folder.glob(f"{kind}_*.pb"), key=lambda p: int(p.stem.split("_")[1]))):
        values_of_file.append(_parse(path.read_bytes(), values[index].type))
    return values_of_file


def _parse(content: bytes, type: onnx.TypeProto) -> Any:
    match type.WhichOneof("value"):
        case "sequence_type":
            return numpy_helper.to_list(onnx.SequenceProto.FromString(content))
        case "optional_type":
            return numpy_helper.to_optional(onnx.OptionalProto.FromString(content))
        case _:
            return numpy_helper.to_array(onnx.TensorProto.FromString(content))


def _value(item: Any) -> Any:
    """Return a case's value as an array; the suite's are arrays, numpy's scalars, protos, lists, or nothing."""
    if isinstance(item, onnx.TensorProto):
        return numpy_helper.to_array(item)
    return np.asarray(item) if isinstance(item, np.generic) else item


def run_onnxruntime(model: onnx.ModelProto) -> Callable[[list[Any]], Sequence[Any]]:
    """Return a function that runs the model in onnxruntime, in a file version that it reads.

    Element types that numpy lacks are passed as their bits.
    """
    from egraph.onnx.types import from_proto
    from runtime.devices.cpu import dispatcher
    from runtime.opaque import OpaqueStep
    from runtime.plan import Step

    readable = onnx.ModelProto()
    readable.CopyFrom(model)
    readable.ir_version = min(model.ir_version, NEWEST_IR)
    initialised = {tensor.name for tensor in model.graph.initializer}
    names = [value.name for value in model.graph.input if value.name not in initialised]
    spec = {"model": "", "input_names": names, "output_names": [value.name for value in model.graph.output]}
    dtypes = [from_proto(value.type).dtype for value in model.graph.input if value.name not in initialised]
    step = OpaqueStep(
        Step("onnxruntime", "model", (), (), spec), readable.SerializeToString(), dtypes, dispatcher.load(),
        threads=1, alone=True, keep_subnormals=True,
    )  # fmt: skip
    return lambda inputs: step.run(None, dict(zip(names, inputs, strict=False)))


def run_einsat(model: onnx.ModelProto) -> Callable[[list[Any]], Sequence[Any]]:
    """Return a function that runs the model in Einsat."""
    from egraph.optimize.backend import prepare

    prepared = prepare(model)
    return lambda inputs: tuple(prepared.run(inputs))


def failure(case: Any, prepare: Callable[[onnx.ModelProto], Callable[[list[Any]], Sequence[Any]]]) -> str:
    """Run a case; return why it does not pass, or an empty text."""
    try:
        model = model_of(case)
        run = prepare(model)
        for inputs, expected in data_of(case, model):
            actual = [_list_of(value) for value in run(inputs)]
            Runner.assert_similar_outputs([_list_of(v) for v in expected], actual, case.rtol, case.atol)
    except Exception as error:  # whatever is raised, the case does not pass, and the report says why
        text = re.sub(rf"{re.escape(tempfile.gettempdir())}/\S*?/(?=\w)", "", " ".join(str(error).split()))
        text = re.sub(r"/onnxruntime_src/\S+:(\d+) .*?\) (?=[A-Z])", "", text)
        return f"{type(error).__name__}: {text[:300]}"
    return ""


def _list_of(value: Any) -> Any:
    """Return sequences as lists and everything else as arrays, so that both sides are compared in the same way."""
    if isinstance(value, list | tuple):
        return [_list_of(item) for item in value]
    return np.asarray(value)


def warm(cases: Iterable[Any]) -> None:
    """Compile the kernels of many cases together; failures are reported when the cases run."""
    from egraph.onnx import importer
    from egraph.optimize.estimated import compile_options, estimated_program
    from lower.compile import plan_program
    from lower.targets.cpu.generator import compile_library

    requests: dict[str, Any] = {}
    for case in cases:
        try:
            program = estimated_program(importer.load(model_of(case)).graph)
            requests |= plan_program(program, compile_options(1))[1].requests
        except Exception:
            continue
    if requests:
        with tempfile.TemporaryDirectory() as folder:
            compile_library(list(requests.values()), Path(folder) / "kernels.so", threads=1)


def examine(case: Any) -> Verdict:
    """Run a case in onnxruntime and in Einsat."""
    peer = failure(case, run_onnxruntime)
    start = time.perf_counter()
    einsat = failure(case, run_einsat)
    return Verdict(case.name, peer, einsat, time.perf_counter() - start)


def _work(connection: Connection, cases: Sequence[Any]) -> None:
    """Answer case indices with verdicts until None arrives; for a list of indices, compile their kernels."""
    warnings.simplefilter("ignore")
    os.environ[ANY_OPSET] = "0"
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # onnxruntime logs every refusal
    while (request := connection.recv()) is not None:
        if isinstance(request, list):
            warm(cases[index] for index in request)
            connection.send(None)
        else:
            connection.send(examine(cases[request]))


class _Worker:
    """A child process with its share of the cases; one that dies or hangs fails its current case only."""

    def __init__(self, cases: Sequence[Any], share: list[int]) -> None:
        self.cases, self.todo = cases, [share[i : i + WARMED_TOGETHER] for i in range(0, len(share), WARMED_TOGETHER)]
        self.batch: list[int] = []
        self.current: int | None = None
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("fork")
        self.connection, far_end = context.Pipe()
        self.process = context.Process(target=_work, args=(far_end, self.cases), daemon=True)
        self.process.start()
        far_end.close()
        self.asked = time.monotonic()

    def ask(self) -> bool:
        """Send the next cases; return whether there are any."""
        self.asked = time.monotonic()
        if self.batch:
            self.current = self.batch.pop(0)
            self.connection.send(self.current)
            return True
        self.current = None
        if self.todo:
            self.batch = self.todo.pop(0)
            self.connection.send(self.batch)
            return True
        self.connection.send(None)
        return False

    def lost(self, why: str) -> Verdict | None:
        """Restart after a crash or a hang; return the verdict on the case that caused it."""
        self.process.kill()
        self.process.join()
        self._start()
        return None if self.current is None else Verdict(self.cases[self.current].name, "", why, time.monotonic() - self.asked)

    @property
    def patience(self) -> float:
        return (SECONDS_PER_CASE if self.current is not None else 20 * SECONDS_PER_CASE) - (time.monotonic() - self.asked)


def run_all(cases: Sequence[Any], jobs: int, tell: Callable[[int], None]) -> list[Verdict]:
    """Run every case in onnxruntime and in Einsat, in child processes."""
    workers = [_Worker(cases, list(range(n, len(cases), jobs))) for n in range(jobs)]
    active: dict[Any, _Worker] = {worker.connection: worker for worker in workers if worker.ask()}
    verdicts: dict[str, Verdict] = {}
    while active:
        ready = wait(list(active), timeout=max(0.0, min(worker.patience for worker in active.values())))
        for connection in ready or [c for c, worker in active.items() if worker.patience <= 0]:
            worker = active.pop(connection)
            try:
                verdict = worker.connection.recv() if ready else worker.lost("it did not finish in time")
            except (EOFError, ConnectionResetError):
                verdict = worker.lost("the process died")
            if verdict is not None:
                verdicts[verdict.name] = verdict
                tell(len(verdicts))
            if worker.ask():
                active[worker.connection] = worker
    return [verdicts[case.name] for case in cases if case.name in verdicts]


def summary(verdicts: Sequence[Verdict], command: str) -> dict[str, Any]:
    """Return counts, the cases that only one of the two passes, and the versions."""
    behind = [v for v in verdicts if v.einsat and not v.onnxruntime]
    return {
        "command": command,
        "date": date.today().isoformat(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
        "cases": len(verdicts),
        "onnxruntime_passes": sum(not v.onnxruntime for v in verdicts),
        "einsat_passes": sum(not v.einsat for v in verdicts),
        "both_pass": sum(not v.einsat and not v.onnxruntime for v in verdicts),
        "only_onnxruntime_passes": {v.name: v.einsat for v in behind},
        "only_einsat_passes": {v.name: v.onnxruntime for v in verdicts if v.onnxruntime and not v.einsat},
        "neither_passes": {v.name: v.onnxruntime for v in verdicts if v.onnxruntime and v.einsat},
        "median_seconds": float(np.median([v.seconds for v in verdicts])) if verdicts else 0.0,
        "verdicts": [asdict(v) for v in verdicts],
    }


def as_markdown(results: dict[str, Any]) -> str:
    """Return the summary as a page."""
    counts = [results[key] for key in ("cases", "onnxruntime_passes", "einsat_passes", "both_pass")]
    counts += [len(results[key]) for key in ("only_onnxruntime_passes", "only_einsat_passes")]
    used = ", ".join(f"{name} {number}" for name, number in results["versions"].items())
    lines = [
        "# Conformance: the ONNX backend test-suite",
        "",
        f"`{results['command']}`, {results['date']}, Python {results['python']}, {used}.",
        "",
        "| cases | onnxruntime passes | Einsat passes | both | only onnxruntime | only Einsat |",
        "|---|---|---|---|---|---|",
        f"| {' | '.join(str(count) for count in counts)} |",
        "",
        f"Median time to import, optimise, compile, load and run a case: {1000 * results['median_seconds']:.0f} ms.",
    ]
    for title, key in (
        ("Only onnxruntime passes", "only_onnxruntime_passes"),
        ("Only Einsat passes (why onnxruntime does not)", "only_einsat_passes"),
        ("Neither passes (what onnxruntime says)", "neither_passes"),
    ):
        lines += ["", f"## {title}", "", *(f"- `{name}`: {reason}" for name, reason in results[key].items())] if results[key] else []
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.conformance", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--filter", default="", metavar="REGEX", help="only the cases whose name matches (nothing is written then)")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes (default 2)")
    options = parser.parse_args(arguments)
    cases = collect(options.filter)

    def tell(done: int) -> None:
        if done % 100 == 0:
            print(f"{done} of {len(cases)}", file=sys.stderr, flush=True)

    verdicts = run_all(cases, max(1, min(options.jobs, len(cases))), tell) if cases else []
    results = summary(verdicts, "python -m bench.conformance" + (f" --filter '{options.filter}'" if options.filter else ""))
    for key in ("cases", "onnxruntime_passes", "einsat_passes", "both_pass"):
        print(f"{key.replace('_', ' ')}: {results[key]}")
    for name, reason in results["only_onnxruntime_passes"].items():
        print(f"only onnxruntime: {name}: {reason}")
    if not options.filter:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "conformance.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        (RESULTS / "conformance.md").write_text(as_markdown(results), encoding="utf-8")
    return 1 if results["only_onnxruntime_passes"] else 0


if __name__ == "__main__":
    sys.exit(main())
