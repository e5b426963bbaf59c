"""Compile requests into one shared library, through a cache of object files that grows only."""

from __future__ import annotations

import errno
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from queue import SimpleQueue

from egraph.errors import LowerError
from egraph.tensor import Node, format_fragment, walk
from lower.eoperator.request import KernelRequest, may_overwrite, supports
from lower.targets.cpu.generator.process import Compiler, borrowed_compilers, most_processes, running_compilers
from runtime import cache as user_cache
from runtime.processor import cpuinfo

SECONDS_PER_KERNEL = 20.0
LEAST_A_PROCESS = 8
"""Kernels from which starting another compiling process pays."""
DISK_PROBLEMS = tuple(os.strerror(code) for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES))
"""Texts of compilers' errors where object files cannot be written, independent of the kernel."""
_SOURCES = ("lower/targets/cpu/generator", "lower/eoperator", "egraph/tensor")


@dataclass(frozen=True)
class Library(Mapping["Node | KernelRequest", str]):
    """Symbols by request (or fragment); asking for one that failed raises its ``LowerError``."""

    path: Path
    symbols: Mapping[Node | KernelRequest, str]
    failures: Mapping[Node | KernelRequest, LowerError] = field(default_factory=dict)
    compiled: int = 0
    seconds: float = 0.0
    """How long compiling took, without starting the compilers."""

    def __getitem__(self, key: Node | KernelRequest) -> str:
        if key in self.failures:
            raise self.failures[key]
        return self.symbols[key]

    def __iter__(self) -> Iterator[Node | KernelRequest]:
        return iter(self.symbols)

    def __len__(self) -> int:
        return len(self.symbols)


def cache_folder() -> Path:
    """Return where object files are kept."""
    return user_cache.cache_folder() / "kernels"


@lru_cache(maxsize=1)
def processor() -> tuple[str, ...]:
    """Return what decides the machine code of this host beside its architecture: model and features."""
    return tuple(line for line in cpuinfo() if line.startswith(("model name", "flags", "Features", "CPU part")))[:2]


@lru_cache(maxsize=1)
def generator_digest() -> str:
    """Return a hash of what decides which code is generated for a processor: sources of this package and of meanings, the compiler."""
    return digest_of(Path(__file__).resolve().parents[4])


def digest_of(root: Path) -> str:
    """Return the hash of the generator's sources below a folder, names and contents, and of the compiler's version."""
    digest = hashlib.sha256(importlib.metadata.version("apache-tvm").encode())
    for folder in _SOURCES:
        for source in sorted((root / folder).rglob("*.py")):
            text = source.read_bytes()
            digest.update(f"{source.relative_to(root).as_posix()} {len(text)}:".encode() + text)
    return digest.hexdigest()[:16]


def _version() -> str:
    """Return a hash of everything that object files depend on: the generator and the processor."""
    parts = generator_digest(), platform.machine(), *processor()
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:16]


def _request(item: Node | KernelRequest) -> KernelRequest:
    return item if isinstance(item, KernelRequest) else KernelRequest(item)


def compile_library(
    requests: Sequence[Node | KernelRequest],
    path: Path,
    *,
    threads: int,
    cache: Path | None = None,
) -> Library:
    """Compile fragments into the shared library ``path``; what cannot be compiled is in ``failures``.

    ``threads`` > 1 makes large kernels parallel. Nothing is compiled that was compiled before for this processor.
    """
    folder = (cache or cache_folder()) / _version()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, str(error)) from error
    objects: dict[KernelRequest, Path] = {}
    failures: dict[KernelRequest, LowerError] = {}
    for item in requests:
        request = _request(item)
        reason = supports(request.fragment)
        if reason is not None:
            failures[request] = LowerError(f"no kernel can be generated: {reason}", where=format_fragment(request.fragment))
        else:
            objects[request] = _object_file(request, folder, threads)
    missing = [request for request, file in objects.items() if not file.exists()]
    seconds = 0.0
    if missing:
        failed, seconds = _compile(missing, objects, threads)
        failures |= failed
    ready = {request: file for request, file in objects.items() if request not in failures}
    if ready:
        _link(sorted(set(ready.values())), path)
    return Library(
        path,
        {item: _request(item).symbol for item in requests if _request(item) in ready},
        {item: failures[_request(item)] for item in requests if _request(item) in failures},
        len([r for r in missing if r not in failures]),
        seconds,
    )


def uncompiled(requests: Sequence[KernelRequest], *, threads: int, cache: Path | None = None) -> list[KernelRequest]:
    """Return those that were not compiled before for this processor."""
    folder = (cache or cache_folder()) / _version()
    return [request for request in requests if not _object_file(request, folder, threads).exists()]


def _object_file(request: KernelRequest, folder: Path, threads: int) -> Path:
    return folder / f"{request.symbol}.{'parallel' if threads > 1 else 'serial'}{threads if threads > 1 else ''}.o"


def _unwritable(folder: Path, problem: str) -> LowerError:
    """Return the error for a folder that object files cannot be written into: it must not be filed as the failure of a kernel."""
    return LowerError(f"compiled kernels cannot be kept: {problem}", where=str(folder), fix=user_cache.ANOTHER_FOLDER)


def _compile(
    missing: list[KernelRequest], objects: Mapping[KernelRequest, Path], threads: int
) -> tuple[dict[KernelRequest, LowerError], float]:
    """Compile in all processes that run, or in as many as are worth starting; each takes the next kernel when it is done with its last.

    Kernels take from 0.04 to 2 s. Those with expressions take longest and come first, so that no process waits long for another at the
    end. Return the failures, and the seconds that each process worked, on average.
    """
    count = min(len(missing), max(1, running_compilers(), min(most_processes(), len(missing) // LEAST_A_PROCESS)))
    failures: dict[KernelRequest, LowerError] = {}
    idle: SimpleQueue[Compiler] = SimpleQueue()

    def compile_some(some: list[KernelRequest]) -> dict[KernelRequest, LowerError]:
        compiler = idle.get()
        try:
            return _compile_part(some, objects, threads, compiler)
        finally:
            idle.put(compiler)

    with ThreadPoolExecutor(count) as pool, borrowed_compilers(count) as compilers:
        before_seconds = sum(compiler.worked_seconds for compiler in compilers)
        for compiler in compilers:
            idle.put(compiler)
        parts = [[request] for request in sorted(missing, key=_has_no_expression)] if count > 1 else [missing]
        for part in [pool.submit(compile_some, part) for part in parts]:
            failures |= part.result()
        worked_seconds = sum(compiler.worked_seconds for compiler in compilers) - before_seconds
    return failures, worked_seconds / count


def _has_no_expression(request: KernelRequest) -> bool:
    """Return whether a kernel is one of those that compile quickly."""
    return all(node.op != "Expression" for node in walk((request.fragment,)))


def _compile_part(
    missing: list[KernelRequest], objects: Mapping[KernelRequest, Path], threads: int, compiler: Compiler
) -> dict[KernelRequest, LowerError]:
    """Compile in one process, again without the culprit when it dies or hangs."""
    failures: dict[KernelRequest, LowerError] = {}
    while missing:
        done, problem = _batch(missing, objects, threads, failures, compiler)
        for message in (problem, *(failure.what for failure in failures.values())):
            if any(disk in message for disk in DISK_PROBLEMS):
                raise _unwritable(objects[missing[0]].parent, message)
        if problem and done < len(missing):
            culprit = missing[done]
            failures[culprit] = LowerError(problem, where=format_fragment(culprit.fragment))
            done += 1
        missing = missing[done:]
    return failures


def _batch(
    batch: list[KernelRequest],
    objects: Mapping[KernelRequest, Path],
    threads: int,
    failures: dict[KernelRequest, LowerError],
    compiler: Compiler,
) -> tuple[int, str]:
    """Compile a batch; return how many were answered, and what ended it early."""
    jobs = [(format_fragment(r.fragment), r.output_strides, r.input_strides, str(objects[r])) for r in batch]
    errors, problem = compiler.compile(jobs, threads, SECONDS_PER_KERNEL)
    for request, error in zip(batch, errors, strict=False):
        if error:
            failures[request] = LowerError(error, where=format_fragment(request.fragment))
    return len(errors), problem


def _linker() -> list[str]:
    """Return the command of an ELF linker: the one that the ziglang package brings, or the system's."""
    package = importlib.util.find_spec("ziglang")
    for folder in (package.submodule_search_locations if package else None) or []:
        program = Path(folder) / "zig"
        if program.exists():
            return [str(program), "ld.lld"]
    return ["ld"]


def _link(objects: Sequence[Path], path: Path) -> None:
    """Link object files into a shared library, written beside and renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    with tempfile.NamedTemporaryFile("w", suffix=".rsp", delete=False) as response:
        response.write("\n".join(f'"{file}"' for file in objects))
    command = [*_linker(), "-shared", "-s", "--build-id=none", "-z", "noexecstack", "-o", str(partial), f"@{response.name}"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise LowerError(f"the linker cannot run: {problem}", where=" ".join(command), fix="pip install ziglang") from problem
    finally:
        os.unlink(response.name)
    if result.returncode:
        partial.unlink(missing_ok=True)
        raise LowerError(
            f"linking kernels failed: {result.stderr.strip()[-400:]}", where=str(path), fix="pip install --force-reinstall ziglang"
        )
    os.replace(partial, path)


__all__ = ["KernelRequest", "Library", "cache_folder", "compile_library", "may_overwrite", "supports"]
