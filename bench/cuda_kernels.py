"""Hold every generated CUDA kernel that the bench's models need to its meaning, without a device.

    python -m bench.cuda_kernels                      all models, at all their batch sizes
    python -m bench.cuda_kernels dcgan infogan        these
    python -m bench.cuda_kernels --record             all; writes bench/results/cuda_kernels.json and .md
    python -m bench.cuda_kernels dcgan --batch 16 --record --add      judges what is not on record, and keeps what is

Ctrl-C ends a run early; what is judged by then is shown, and recorded. Programs are chosen by estimates.
Each kernel is compiled for sm_80 and sm_90 (where NVRTC or nvcc is) and run on the processor in
three orders of its threads, on random operands, against its meaning in float64. Then each of its barriers is removed in turn: where no
order shows that, the barrier is not needed, or nothing would tell that it is missing. Nothing here says how long a kernel takes.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.environment import commit
from bench.eoperators import cases
from bench.inputs import parse_shapes
from bench.models import MODELS, BenchModel
from bench.record import RESULTS, opening, origin, record
from egraph.errors import EinsatError
from egraph.onnx import importer
from egraph.optimize.estimated import compile_options, estimated_program
from egraph.tensor import Node, Target, format_fragment, placeholders
from egraph.tensor.expr.index import length
from egraph.tensor.ops.reference import evaluate
from lower import roofline
from lower.attention.match import AttentionCall, match
from lower.compile import plan_program
from lower.eoperator.request import KernelRequest, dense, kernel_of
from lower.eoperator.terms import subterms
from lower.targets.cuda.generator import OUTPUT, GeneratedKernel, Report, generate, write
from lower.targets.cuda.generator.attention import AttentionRequest
from lower.targets.cuda.generator.compiler import MISSING, MULTIPROCESSORS, has_compiler
from lower.views import Window
from runtime.devices.cuda.shim import ORDERS, HostModule, Order, compile_for_host
from runtime.dtypes import numpy_dtype
from runtime.errors import ExecutionError

TOLERANCE = 1e-5
"""Error of an element relative to its size, or to a tenth of the largest element's: sums cancel."""
MOST_WORK = 2e9
"""The most scalar operations of a kernel that is run; larger ones are compiled only."""
EOPERATORS = "bench.eoperators"
BARRIER = "__syncthreads();"
DEVICE = "cuda"
"""For which programs are chosen; kernels have the same text for each of its GPUs."""


@dataclass(frozen=True)
class Row:
    """A kernel: who needs it, what compilers say of it, and how far it is off."""

    symbol: str
    fragment: str
    models: tuple[str, ...]
    grid: int
    block: tuple[int, ...]
    reports: tuple[Report, ...]
    error: float | None
    """The largest error over what is tolerated; None where the kernel was not run."""
    orders_agree: bool | None
    exception: str
    barriers: int = 0
    unneeded: tuple[int, ...] = ()
    """The barriers, by their position, whose removal no order shows."""
    commit: str = ""
    """At which the kernel was judged."""

    @property
    def is_good(self) -> bool:
        """Return whether nothing spills and the kernel is right in every order."""
        flawed = self.exception or self.unneeded or any(report.spill_bytes for report in self.reports)
        return not flawed and self.error is not None and self.error <= 1 and bool(self.orders_agree)


def requests_of(model: BenchModel, batch: int) -> list[KernelRequest]:
    """Return the generated kernels of a model's program, which estimates choose."""
    graph = importer.load(model.make(batch), shapes=parse_shapes(model.shapes)).graph
    program = estimated_program(graph, device=DEVICE)
    _, writer = plan_program(program, compile_options(1, DEVICE))
    return list(writer.requests.values())


def unseen() -> Mapping[str, BenchModel]:
    """Return the second list's models, where torch is installed, which exports them."""
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
        except FileNotFoundError as error:  # a package that brings the model
            yield name, str(error)


def work(request: KernelRequest) -> float:
    """Return about how many scalar operations a kernel takes: each term at all places of what it depends on."""
    if isinstance(request, AttentionRequest):
        return float(roofline.work(request.fragment).flops)
    return float(sum(math.prod(length(i) for i in term.free) for term in subterms((kernel_of(request).root,))))


def random_operands(request: KernelRequest) -> dict[Node, np.ndarray]:
    """Return random operands as the fragment sees them, by placeholder: those of attention give scores of unit size, as networks have."""
    random, values = np.random.default_rng(0), {}
    size = calls_of(request)[0].operands[0].window.shape[-1] ** -0.25 if isinstance(request, AttentionRequest) else 1.0
    for leaf in placeholders(request.fragment):
        dtype = numpy_dtype(leaf.type.dtype)
        value = size * random.standard_normal(leaf.type.sizes) if dtype.kind not in "iub" else random.integers(0, 2, leaf.type.sizes)
        values[leaf] = np.asarray(value).astype(dtype)
    return values


def in_memory(request: KernelRequest, values: Mapping[Node, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the memory of each parameter, in which operands lie with the request's strides."""
    if isinstance(request, AttentionRequest):
        call, plain = calls_of(request)
        by_index = {leaf.integer("index"): value for leaf, value in values.items()}
        seen = [through(by_index[operand.index], operand.window) for operand in plain.operands]
        return {f"in{k}": laid(each, call.operands[k].window.strides) for k, each in enumerate(seen)}
    memories, strides = {}, dict(enumerate(request.input_strides or ()))
    for leaf, value in values.items():
        position = leaf.integer("index")
        memories[f"in{position}"] = laid(value, strides.get(position) or dense(leaf.type.sizes))
    return memories


def calls_of(request: AttentionRequest) -> tuple[AttentionCall, AttentionCall]:
    """Return the call of a request, and the one of the same fragment over operands that lie row-major."""
    plain = match(request.fragment)
    assert request.call is not None and isinstance(plain, AttentionCall), "a request for attention is one"
    return request.call, plain


def through(value: np.ndarray, window: Window) -> np.ndarray:
    """Return what is seen of a row-major tensor through a window."""
    return viewed(np.ascontiguousarray(value).reshape(-1)[window.offset :], window.shape, window.strides)


def laid(value: np.ndarray, strides: Sequence[int]) -> np.ndarray:
    """Return memory that holds an array with these strides in elements, and no more."""
    memory = np.zeros(1 + sum((n - 1) * s for n, s in zip(value.shape, strides, strict=True)), value.dtype)
    viewed(memory, value.shape, strides)[...] = value
    return memory


def viewed(memory: np.ndarray, shape: Sequence[int], strides: Sequence[int]) -> np.ndarray:
    return np.lib.stride_tricks.as_strided(memory, tuple(shape), tuple(s * memory.itemsize for s in strides))


@dataclass(frozen=True)
class Trial:
    """A kernel's random operands, and what it must compute of them."""

    kernel: GeneratedKernel
    memories: Mapping[str, np.ndarray]
    """By the names of parameters."""
    expected: np.ndarray
    strides: Sequence[int]
    """Of the output's memory, in elements."""
    dtype: np.dtype[Any]

    @staticmethod
    def of(request: KernelRequest, kernel: GeneratedKernel) -> Trial:
        """Draw operands, and evaluate in float64 what a kernel means."""
        values, type = random_operands(request), request.fragment.type
        with np.errstate(all="ignore"):
            expected = np.asarray(evaluate((request.fragment,), values)[0], np.float64)
        strides = request.output_strides or dense(type.sizes)
        if isinstance(request, AttentionRequest):
            call, plain = calls_of(request)
            expected, strides = through(expected, plain.destination), call.destination.strides
        return Trial(kernel, in_memory(request, values), expected, strides, numpy_dtype(type.dtype))

    def output(self, module: HostModule, order: Order, renamed: str = "") -> tuple[float, bytes]:
        """Return the largest error over what is tolerated in one order of the threads, and the output's bits.

        ``renamed``: the symbol to launch, of a text that differs.
        """
        out = laid(np.zeros(self.expected.shape, self.dtype), self.strides)
        for launch in self.kernel.launches:
            arrays = [{**self.memories, OUTPUT: out}[name] for name in launch.parameters]
            module.launch(renamed or launch.symbol, launch.grid, launch.block, launch.shared_bytes, arrays, order)
        return error_of(viewed(out, self.expected.shape, self.strides).astype(np.float64), self.expected), out.tobytes()

    def shows(self, module: HostModule, renamed: str) -> bool:
        """Return whether another text of the kernel fails, or is wrong, in some order."""
        for order in ORDERS:
            try:
                error, _ = self.output(module, order, renamed)
            except ExecutionError:
                return True
            if error > 1:
                return True
        return False


def error_of(actual: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest error over what is tolerated."""
    finite = np.isfinite(expected)
    tolerated = TOLERANCE * (np.abs(expected) + 0.1 * np.abs(expected[finite]).max(initial=0.0)) + 1e-30
    with np.errstate(invalid="ignore"):
        same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
        off = np.where(finite, np.abs(actual - expected) / tolerated, np.where(same, 0.0, np.inf))
    return float(np.nan_to_num(off, nan=np.inf).max(initial=0.0))


def without_barriers(kernel: GeneratedKernel) -> list[tuple[str, str]]:
    """Return texts that lack one barrier each, and the symbols of their kernels; lines keep their numbers."""
    (symbol,) = {launch.symbol for launch in kernel.launches}
    pieces, texts = kernel.text.split(BARRIER), []
    for k in range(1, len(pieces)):
        name = f"{symbol}_without_{k - 1}"
        text = BARRIER.join(pieces[:k]) + BARRIER.join(pieces[k:])
        texts.append((text.replace(f" {symbol}(", f" {name}("), name))
    return texts


def judge(requests: Sequence[KernelRequest], model: str) -> Iterator[tuple[KernelRequest, Row]]:
    """Yield a row for each request; those of one model are compiled for the processor in one go."""
    group = {}
    for request in requests:
        try:
            group[request] = write(request)
        except EinsatError as error:
            yield request, Row(request.symbol, format_fragment(request.fragment), (model,), 0, (), (), None, None, error.what)
    if group:
        texts = (text for kernel in group.values() for text in (kernel.text, *(changed for changed, _ in without_barriers(kernel))))
        module = compile_for_host("\n".join(texts))
        for request, kernel in group.items():
            yield request, judged(module, request, kernel, (model,))


def judged(module: HostModule, request: KernelRequest, kernel: GeneratedKernel, models: tuple[str, ...]) -> Row:
    """Compile a kernel for all architectures and run it."""
    reports, exception, error, agree, removed = [], "", None, None, without_barriers(kernel)
    unneeded: tuple[int, ...] = ()
    try:
        for architecture in MULTIPROCESSORS:
            compiled = generate(request, Target("cuda", architecture)).report
            reports += [compiled] if compiled else []
        amount = work(request)
        if amount > MOST_WORK:
            exception = f"not run here: about {amount:.0e} operations"
        else:
            trial = Trial.of(request, kernel)
            errors, outputs = zip(*(trial.output(module, order) for order in ORDERS), strict=True)
            error, agree = max(errors), len(set(outputs)) == 1
            unneeded = tuple(k for k, (_, renamed) in enumerate(removed) if not trial.shows(module, renamed))
    except (EinsatError, ExecutionError) as problem:
        exception = problem.what
    (launch, *_) = kernel.launches
    fragment = format_fragment(request.fragment)
    return Row(
        request.symbol, fragment, models, launch.grid[0], launch.block, tuple(reports), error, agree, exception, len(removed), unneeded
    )  # fmt: skip


def page(rows: Sequence[Row], where: Mapping[str, Any]) -> str:
    """Return the page: a line a model, then every exception by name."""
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
    """Return the rows that a folder has, and the models that are left out there with the reasons."""
    recorded = json.loads((folder / "cuda_kernels.json").read_text())
    rows = []
    for row in recorded["rows"]:
        reports = tuple(Report(**report) for report in row["reports"])
        tuples = {name: tuple(row[name]) for name in ("models", "block", "unneeded")}
        rows.append(Row(**{**row, **tuples, "reports": reports, "commit": row.get("commit") or recorded["commit"]}))
    return rows, dict(recorded["left_out"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge the kernels of models; exit code 1 where one is wrong or spills."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="models of bench.models or bench.unseen; all by default")
    parser.add_argument("--record", action="store_true", help="write bench/results/cuda_kernels.json and .md")
    parser.add_argument("--batch", type=int, nargs="+", default=[], help="of their batch sizes these alone")
    parser.add_argument("--add", action="store_true", help="keep what is on record, and judge what is not")
    options = parser.parse_args(arguments)
    exported = unseen()
    every = {**MODELS, **exported}
    missing = [name for name in options.models if name not in every]
    if missing:
        parser.error(f"there is no {missing[0]}; python -m bench.models lists them")
    command = ("python", "-m", "bench.cuda_kernels", *(arguments or sys.argv[1:]))
    now = commit()
    kept, left_out = on_record(RESULTS) if options.add else ([], {})
    rows = {row.symbol: row for row in kept}
    started, complete = time.perf_counter(), True
    try:
        for name, requests in gather([every[name] for name in options.models or every], options.batch):
            left_out.pop(name, None)
            if isinstance(requests, str):
                left_out[name] = requests
                print(f"{name} is left out: {requests}", flush=True)
                continue
            new = [request for request in dict.fromkeys(requests) if request.symbol not in rows]
            for symbol in {request.symbol for request in requests} & set(rows):
                rows[symbol] = replace(rows[symbol], models=tuple(dict.fromkeys((*rows[symbol].models, name))))
            for request, judged_row in judge(new, name):
                rows[request.symbol] = row = replace(judged_row, commit=now)
                if not row.is_good:
                    print(f"{row.symbol}: {reason(row)}", flush=True)
            print(f"{name}: {len(requests)} kernels, {len(rows)} so far ({time.perf_counter() - started:.0f} s)", flush=True)
    except KeyboardInterrupt:
        complete = False
    where = origin(1, command, tolerance=TOLERANCE, unseen=bool(exported), complete=complete, left_out=left_out)
    judged_rows = list(rows.values())
    text = page(judged_rows, where)
    print(text)
    if options.record:
        record(RESULTS, "cuda_kernels", where, judged_rows, text)
    return int(any(not row.is_good for row in judged_rows))


if __name__ == "__main__":
    raise SystemExit(main())
