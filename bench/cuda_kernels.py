"""Compare every generated CUDA kernel that the benchmark's models need with its meaning, without a device.

    python -m bench.cuda_kernels                      all models, at all their batch sizes
    python -m bench.cuda_kernels dcgan infogan        these
    python -m bench.cuda_kernels --record             all; writes bench/results/cuda_kernels.json and .md
    python -m bench.cuda_kernels dcgan --batch 16 --record --add      judges what is not on record, and keeps what is

Ctrl-C ends a run early; the kernels judged so far are shown and recorded. With ``--add``, a judged kernel is judged again only if its text
or the judge (``bench.cuda_judge``) has changed. Programs are chosen by estimates.
Each kernel is compiled for sm_80 and sm_90 (if NVRTC or nvcc is installed) and run on the processor in three orders of its threads, on
random operands, against its meaning in float64. Then each of its barriers is removed in turn: if no order shows that, the barrier is not
needed, or its absence would go unnoticed. Kernels are not timed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.cuda_judge import TOLERANCE, Row, judge
from bench.environment import commit
from bench.eoperators import cases
from bench.inputs import parse_shapes
from bench.models import MODELS, BenchModel
from bench.record import RESULTS, opening, origin, record
from egraph.errors import EinsatError
from egraph.onnx import importer
from egraph.optimize.estimated import compile_options, estimated_program
from lower.compile import plan_program
from lower.eoperator.request import KernelRequest
from lower.targets.cuda.generator import Report
from lower.targets.cuda.generator.compiler import MISSING, MULTIPROCESSORS, has_compiler

EOPERATORS = "bench.eoperators"
DEVICE = "cuda"
"""The device for which programs are chosen; kernels have the same text for each of its GPUs."""


def requests_of(model: BenchModel, batch: int) -> list[KernelRequest]:
    """Return the generated kernels of the program that estimates choose for a model."""
    graph = importer.load(model.operators(batch), shapes=parse_shapes(model.shapes)).graph
    program = estimated_program(graph, device=DEVICE)
    _, writer = plan_program(program, compile_options(1, DEVICE))
    return list(writer.requests.values())


def unseen() -> Mapping[str, BenchModel]:
    """Return the models of the second list; none unless torch, which exports them, is installed."""
    if any(importlib.util.find_spec(name) is None for name in ("torch", "transformers", "onnxscript")):
        return {}
    from bench.unseen import UNSEEN

    return UNSEEN


def gather(models: Sequence[BenchModel], batches: Sequence[int] = ()) -> Iterator[tuple[str, list[KernelRequest] | str]]:
    """Yield the name of each model with its requests, or why it is left out."""
    yield EOPERATORS, [KernelRequest(fragment) for fragment in cases().values()]
    runs = [(k, batch, model) for model in models for k, batch in enumerate(model.batches) if not batches or batch in batches]
    for _, batch, model in sorted(runs, key=lambda run: run[0]):  # every model once before any at a larger batch
        name = f"{model.name}, batch {batch}"
        try:
            yield name, requests_of(model, batch)
        except EinsatError as error:
            yield name, error.what
        except FileNotFoundError as error:  # the package with the model is not installed
            yield name, str(error)


def page(rows: Sequence[Row], where: Mapping[str, Any]) -> str:
    """Return the page: one line per model, then every exception by name."""
    head = ["# Generated CUDA kernels without a device", "", *opening(where, ("nvidia-cuda-nvrtc", "ziglang"))]
    head += [
        "Programs chosen by estimates; every kernel compiled for sm_80 and sm_90 and run on the processor, in three orders of its",
        "threads, against float64. *error*: the largest over what is tolerated. *barriers*: of all `__syncthreads()` of kernels that ran,",
        "those whose removal makes the kernel fail or its result wrong. Nothing ran on a GPU, and nothing here is a time.",
        *([] if has_compiler() else [f"Nothing was compiled for a GPU: {MISSING}."]),
        *(f"Judged at commit {each}: {sum(row.commit == each for row in rows)} kernels." for each in dict.fromkeys(r.commit for r in rows)),
        *([] if where["complete"] else ["The run was ended early: what is below it had judged by then."]),
        *([] if where["unseen"] else ["The networks of `bench.unseen` are left out: torch, which exports them, is not installed."]),
        *(f"{name} is left out: {why}." for name, why in where["left_out"].items()),
        "",
        "| model | kernels | run | right in every order | spill | most registers sm_80, sm_90 | least occupancy sm_90 | error | barriers |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(model for row in rows for model in row.models):
        head.append(_line(name, [row for row in rows if name in row.models]))
    head.append(_line("**all, each once**", rows))
    exceptions = [row for row in rows if not row.is_good]
    head += ["", "## Exceptions", "", *(f"* `{row.symbol}` ({row.models[0]}): {reason(row)}" for row in exceptions)]
    return "\n".join([*head, *([] if exceptions else ["None."])]) + "\n"


def reason(row: Row) -> str:
    """Return why a row is an exception."""
    spilled = [f"{report.spill_bytes} bytes spilled on {report.architecture}" for report in row.reports if report.spill_bytes]
    wrong = [f"error {row.error:.2f} of what is tolerated"] if row.error is not None and row.error > 1 else []
    apart = ["the order of threads decides"] if row.orders_agree is False else []
    silent = [f"no order shows that barrier {k + 1} of {row.barriers} is removed" for k in row.unneeded]
    return "; ".join([*([row.exception] if row.exception else []), *spilled, *wrong, *apart, *silent])


def _line(name: str, rows: Sequence[Row]) -> str:
    ran = [row for row in rows if row.error is not None]
    right = [row for row in ran if row.orders_agree and (row.error or 0.0) <= 1]
    spill = sum(any(report.spill_bytes for report in row.reports) for row in rows)
    reports = [report for row in rows for report in row.reports]
    registers = ", ".join(
        str(max((report.registers for report in reports if report.architecture == architecture), default="-"))
        for architecture in MULTIPROCESSORS
    )
    least = min((report.occupancy for report in reports if report.architecture == "sm_90"), default=None)
    shown = "-" if least is None else f"{least:.2f}"
    error = max((row.error or 0.0 for row in ran), default=0.0)
    barriers, unneeded = (sum(counts) for counts in ((row.barriers for row in ran), (len(row.unneeded) for row in ran)))
    return (
        f"| {name} | {len(rows)} | {len(ran)} | {len(right)} | {spill} | {registers} | {shown} | {error:.3f} "
        f"| {barriers - unneeded} of {barriers} |"
    )


def on_record(folder: Path) -> tuple[list[Row], dict[str, str]]:
    """Return the rows recorded in a folder, and the models left out there with the reasons."""
    recorded = json.loads((folder / "cuda_kernels.json").read_text())
    rows = []
    for row in recorded["rows"]:
        reports = tuple(Report(**report) for report in row["reports"])
        tuples = {name: tuple(row[name]) for name in ("models", "block", "unneeded")}
        rows.append(Row(**{**row, **tuples, "reports": reports, "commit": row.get("commit") or recorded["commit"]}))
    return rows, dict(recorded["left_out"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge the kernels of models; return 1 if one is wrong or spills."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="models of bench.models or bench.unseen; all by default")
    parser.add_argument("--record", action="store_true", help="write bench/results/cuda_kernels.json and .md, after each model")
    parser.add_argument("--batch", type=int, nargs="+", default=[], help="of their batch sizes these alone")
    parser.add_argument("--add", action="store_true", help="keep what is on record, and judge what is not, or has another text now")
    options = parser.parse_args(arguments)
    exported = unseen()
    every = {**MODELS, **exported}
    missing = [name for name in options.models if name not in every]
    if missing:
        parser.error(f"there is no {missing[0]}; python -m bench.models lists them")
    command = ("python", "-m", "bench.cuda_kernels", *(arguments or sys.argv[1:]))
    now = commit()
    kept, left_out = on_record(RESULTS) if options.add else ([], {})
    known = {row.digest: row for row in kept if row.digest}
    rows = {row.symbol: row for row in kept}
    started, is_complete = time.process_time(), False

    def written() -> str:
        where = origin(1, command, tolerance=TOLERANCE, unseen=bool(exported), complete=is_complete, left_out=left_out)
        judged_rows = list(rows.values())
        text = page(judged_rows, where)
        if options.record:
            record(RESULTS, "cuda_kernels", where, judged_rows, text)
        return text

    try:
        for name, requests in gather([every[name] for name in options.models or every], options.batch):
            left_out.pop(name, None)
            if isinstance(requests, str):
                left_out[name] = requests
                print(f"{name} is left out: {requests}", flush=True)
                continue
            rows = without(rows, name)
            for request, judged_row in judge(list(dict.fromkeys(requests)), name, known.get):
                others = rows[request.symbol].models if request.symbol in rows else ()
                models = tuple(dict.fromkeys((*others, name)))
                rows[request.symbol] = row = replace(judged_row, models=models, commit=judged_row.commit or now)
                if row.digest:
                    known[row.digest] = row
                if not row.is_good:
                    print(f"{row.symbol}: {reason(row)}", flush=True)
            print(f"{name}: {len(requests)} kernels, {len(rows)} so far ({time.process_time() - started:.0f} s)", flush=True)
            written()
        is_complete = True
    except KeyboardInterrupt:
        pass
    print(written())
    return int(any(not row.is_good for row in rows.values()))


def without(rows: Mapping[str, Row], name: str) -> dict[str, Row]:
    """Return the rows without a model: kernels that no other model needs are dropped."""
    others = {symbol: replace(row, models=tuple(each for each in row.models if each != name)) for symbol, row in rows.items()}
    return {symbol: row for symbol, row in others.items() if row.models}


if __name__ == "__main__":
    raise SystemExit(main())
