"""Compile many programs at once: one run of the kernel compiler for all of them, one shared library."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from egraph.errors import EinsatError, LowerError
from egraph.tensor import Program
from lower.compile import KERNELS, PLAN, WEIGHTS, CompileOptions, plan_program
from lower.eoperator import KernelRequest
from lower.targets import Compiled, lowering
from lower.weights import write_weights
from runtime.plan import Plan


def compile_batch(programs: Sequence[Program], folder: Path, options: CompileOptions) -> list[Path | EinsatError]:
    """Return, for every program, the runnable folder inside ``folder`` or the reason why there is none.

    Made for measuring: the folders share their kernel library by a link, and have no manifest.
    """
    planned = [_planned(program, options) for program in programs]
    wanted = {symbol: request for one in planned if isinstance(one, _Planned) for symbol, request in one.requests.items()}
    shared = folder / KERNELS
    failed: dict[str, LowerError] = {}
    if wanted:
        failures = compile_requests(list(wanted.values()), shared, options).failures
        failed = {symbol: failures[request] for symbol, request in wanted.items() if request in failures}
    results: list[Path | EinsatError] = []
    for number, one in enumerate(planned):
        if isinstance(one, EinsatError):
            results.append(one)
        elif broken := [failed[symbol] for symbol in one.requests if symbol in failed]:
            results.append(broken[0])
        else:
            results.append(_written(one, folder / str(number), shared))
    return results


def compile_requests(requests: Sequence[KernelRequest], path: Path, options: CompileOptions) -> Compiled:
    """Compile generated kernels for the target of ``options`` into one file."""
    compiler = lowering(options.target.kind).generator.compiler
    assert compiler is not None, "only a target with a compiler has requests"
    return compiler.compile(requests, path, threads=options.threads)


def uncompiled(programs: Sequence[Program], options: CompileOptions) -> int:
    """Return how many of the programs' generated kernels were not compiled before."""
    compiler = lowering(options.target.kind).generator.compiler
    return len(compiler.uncompiled(list(kernel_requests(programs, options).values()), threads=options.threads)) if compiler else 0


@dataclass(frozen=True)
class _Planned:
    program: Program
    plan: Plan
    models: Mapping[str, bytes]
    """Models of opaque steps, by the names of their files."""
    requests: Mapping[str, KernelRequest]
    """Generated kernels by symbol."""
    carried: Mapping[str, Path]
    """Libraries of C functions, built, by the names of their files."""


def _planned(program: Program, options: CompileOptions) -> _Planned | EinsatError:
    try:
        plan, writer = plan_program(program, options)
    except EinsatError as error:
        return error
    carried = {name: writer.lowering.build(source) for name, source in writer.carried.items()}
    return _Planned(program, plan, writer.models, writer.requests, carried)


def _written(one: _Planned, place: Path, shared: Path) -> Path:
    """Write the folder of a program whose generated kernels are in a ``shared`` library."""
    place.mkdir(parents=True)
    weights = dict.fromkeys(buffer.key for buffer in one.plan.buffers if buffer.area == "weight")
    if weights:
        write_weights(place / WEIGHTS, {key: one.program.graph.tensors[key] for key in weights})
    for name, model in one.models.items():
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_bytes(model)
    if one.requests:
        os.link(shared, place / KERNELS)
    for name, library in one.carried.items():
        shutil.copyfile(library, place / name)
    (place / PLAN).write_text(one.plan.to_json(), encoding="utf-8")
    return place


def kernel_requests(programs: Sequence[Program], options: CompileOptions) -> dict[str, KernelRequest]:
    """Return the generated kernels of programs by symbol, in their order; a program that cannot be planned has none."""
    wanted: dict[str, KernelRequest] = {}
    for program in programs:
        try:
            requests = plan_program(program, options)[1].requests
        except EinsatError:
            continue
        wanted |= {request.symbol: request for request in requests.values()}
    return wanted
