"""A plan on this machine's processor: arena, packed constants, one native table."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from runtime.devices import Files
from runtime.devices.cpu import dispatcher, openmp
from runtime.devices.cpu.allocation import Allocator
from runtime.devices.cpu.steps import Builder, Context
from runtime.devices.host import HostMemory
from runtime.errors import ArtefactError
from runtime.plan import Plan
from runtime.storage import Storage, pointer


def load_dispatcher(files: Files) -> dispatcher.Dispatcher:
    """Load the dispatcher and the pool of threads, which an artefact carries for machines without a compiler."""
    for file in (files.dispatcher, files.kernels):
        if file is not None:
            openmp.look_in(file.parent)
    return dispatcher.load(files.dispatcher)


class CpuProgram(HostMemory):
    """A plan on this machine's processor. The dispatcher, and with it OpenMP, is loaded if the plan has a native step."""

    def __init__(self, plan: Plan, weights: Mapping[str, np.ndarray], native: frozenset[int], *, threads: int, files: Files) -> None:
        self.plan, self.threads = plan, threads
        self.allocator = Allocator()
        self.storage = Storage(plan, weights, self.allocator.allocate)
        self.implementations: dict[int, str] = {}
        self._table: dispatcher.Table | None = None
        if native:
            self._build(files, native)

    def _build(self, files: Files, native: frozenset[int]) -> None:
        loaded = load_dispatcher(files)
        libraries = Libraries(files, loaded)
        contexts: dict[str, Context] = {}
        self._finalizer = weakref.finalize(self, _release, contexts, libraries)
        self._table = dispatcher.Table(loaded, threads=self.threads, keep_subnormals=self.plan.keep_subnormals)
        builder = Builder(self.plan, self.storage, self.allocator, self._table, libraries.kernel, libraries.function, contexts)
        before = openmp.get_threads()
        openmp.set_threads(self.threads)
        try:
            for index, step in enumerate(self.plan.steps):
                if index in native:
                    builder.add(index, step)
                else:
                    builder.add_nothing(step)
        finally:
            openmp.set_threads(before)
        builder.finish()
        self.contexts, self.implementations = contexts, builder.implementations

    def bind(self, areas: Sequence[np.ndarray]) -> None:
        addresses = self.storage.bind(areas)
        if self._table is not None:
            self._table.bind(addresses)

    @property
    def table(self) -> dispatcher.Table:
        assert self._table is not None, "the plan has native steps, and is open"
        return self._table

    def launch(self, first: int, last: int) -> None:
        self.table.run(first, last)

    def time(self, count: int, *, evict: bool, weights_from_memory: bool) -> list[int]:
        return self.table.time(count, evict=evict, flushed=self._weights() if weights_from_memory else ())

    def profile(self, count: int) -> list[list[int]]:
        return self.table.profile(count)

    def _weights(self) -> list[tuple[int, int]]:
        """Return the addresses and sizes in bytes of the constants that steps read, packed ones and others."""
        read = {buffer.key: self.storage.weights[buffer.key] for buffer in self.plan.buffers if buffer.area == "weight"}
        packed = [array for context in self.contexts.values() for array in context.constants]
        return [(pointer(array), array.nbytes) for array in (*read.values(), *packed)]

    def close(self) -> None:
        if self._table is not None:
            self._table = None
            self._finalizer()


class Libraries:
    """Libraries of functions that steps call, each loaded when a step first needs it."""

    def __init__(self, files: Files, native: dispatcher.Dispatcher) -> None:
        self._files, self._native = files, native
        self._loaded: dict[Path, dispatcher.KernelLibrary] = {}

    def kernel(self, symbol: str) -> int:
        """Return the address of a generated kernel."""
        if self._files.kernels is None:
            raise ArtefactError(f"the plan needs the kernel {symbol!r} and no kernel library was given", fix="pass kernels=")
        return self._library(self._files.kernels).kernel(symbol)

    def function(self, file: str, name: str) -> int:
        """Return the address of a C function in a library that the artefact carries."""
        if self._files.carried is None:
            raise ArtefactError(f"the plan needs the library {file!r} and none was given", fix="open the artefact's folder")
        return self._library(self._files.carried(file)).function(name)

    def _library(self, path: Path) -> dispatcher.KernelLibrary:
        if path not in self._loaded:
            self._loaded[path] = dispatcher.KernelLibrary(path, self._native)
        return self._loaded[path]

    def close(self) -> None:
        while self._loaded:
            self._loaded.popitem()[1].close()


def _release(contexts: dict[str, Context], libraries: Libraries) -> None:
    for context in contexts.values():
        context.close()
    contexts.clear()
    libraries.close()
