"""Compile many programs at once: one run of the kernel compiler for all of them, one shared library."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from egraph.errors import EinsatError, LowerError
from egraph.ir import Program
from lower.compile import KERNELS, PLAN, WEIGHTS, CompileOptions, plan_program
from lower.eoperator import KernelRequest, compile_library
from lower.weights import write_weights


def compile_batch(programs: Sequence[Program], folder: Path, options: CompileOptions) -> list[Path | EinsatError]:
    """Return, for every program, the runnable folder inside ``folder`` or the reason why there is none.

    Made for measuring: the folders share their kernel library by a link, and have no manifest.
    """
    planned: list[tuple[str, dict[str, bytes], dict[str, KernelRequest], Program, tuple[str, ...]] | EinsatError] = []
    for program in programs:
        try:
            plan, writer = plan_program(program, options)
        except EinsatError as error:
            planned.append(error)
        else:
            weights = tuple(dict.fromkeys(buffer.key for buffer in plan.buffers if buffer.area == "weight"))
            planned.append((plan.to_json(), dict(writer.models), dict(writer.requests), program, weights))
    wanted = {r.symbol: r for entry in planned if not isinstance(entry, EinsatError) for r in entry[2].values()}
    shared = folder / KERNELS
    failed: dict[str, LowerError] = {}
    if wanted:
        library = compile_library(list(wanted.values()), shared, threads=options.threads)
        failed = {symbol: library.failures[request] for symbol, request in wanted.items() if request in library.failures}
    results: list[Path | EinsatError] = []
    for number, entry in enumerate(planned):
        if isinstance(entry, EinsatError):
            results.append(entry)
            continue
        text, models, requests, program, weights = entry
        broken = [failed[r.symbol] for r in requests.values() if r.symbol in failed]
        if broken:
            results.append(broken[0])
            continue
        place = folder / str(number)
        place.mkdir(parents=True)
        if weights:
            write_weights(place / WEIGHTS, {key: program.graph.tensors[key] for key in weights})
        for name, model in models.items():
            (place / name).parent.mkdir(exist_ok=True)
            (place / name).write_bytes(model)
        if requests:
            os.link(shared, place / KERNELS)
        (place / PLAN).write_text(text, encoding="utf-8")
        results.append(place)
    return results


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
