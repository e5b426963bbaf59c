"""Compile kernels while a search does other work: an e-graph grows on one core, and the compilers use the others.

Only caches are filled, so no result depends on how far this gets.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from egraph.errors import EinsatError
from egraph.optimize.kernels import compile_requests, kernel_requests
from egraph.policy import MeasurePolicy
from egraph.tensor import Program
from lower.compile import CompileOptions
from lower.targets import CodeCompiler, Compiler, lowering_for
from runtime.errors import LibraryMissing

STOPPED_SECONDS = 0.5
"""Time until a thread notices that its compilers were stopped."""


@dataclass
class CompilingAhead:
    """Compiles kernels in a thread. A kernel that fails is reported when it is needed."""

    compilers: Sequence[Compiler]
    folder: Path
    options: CompileOptions
    tell: Callable[[float, float], None]
    """Called with the work of the kernels that were compiled together, and the seconds that this took."""
    policy: MeasurePolicy
    time_left: Callable[[], float]
    _thread: threading.Thread | None = None
    _is_over: threading.Event = field(default_factory=threading.Event)
    _is_building: bool = False

    @property
    def is_building(self) -> bool:
        """Whether it still builds the runtime or libraries, which the first run on a machine must do."""
        return self._thread is not None and self._is_building

    def start(self, programs: Iterable[Program], sources: Iterable[Path] = ()) -> None:
        """Compile C sources of libraries, then the kernels of ``programs``, in their order, until ``end``.

        An earlier start must have been ended.
        """
        compiler = lowering_for(self.options.target).generator.compiler
        if compiler is None or not compiler.keeps_kernels:
            return
        for process in self.compilers:
            process.start()
        self._is_over.clear()
        self._is_building = True
        thread = threading.Thread(target=self._compile, args=(compiler, iter(programs), iter(sources)), name="compiling ahead", daemon=True)
        thread.start()  # Ctrl-C may come before the next line
        self._thread = thread

    def end(self) -> None:
        """Wait for the batch that is being compiled, and for compilers that still load; if time runs out, stop the compilers for good.

        A processor's contractions were calibrated to a fifth of their rate beside a compiler that loaded.
        """
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._is_over.set()
        thread.join(min(max(0.0, self.time_left()), threading.TIMEOUT_MAX))
        if thread.is_alive():
            self.stop()
            thread.join(STOPPED_SECONDS)  # a build of libraries, once for all runs, continues meanwhile
            return
        for process in self.compilers:
            process.wait(max(0.0, self.time_left()))

    def stop(self) -> None:
        """Stop the compilers, so that an interrupted run does not wait for a kernel."""
        for process in self.compilers:
            process.stop()

    def _compile(self, compiler: CodeCompiler, programs: Iterator[Program], sources: Iterator[Path]) -> None:
        lowering = lowering_for(self.options.target)
        with suppress(LibraryMissing, OSError):
            lowering.prepare()
            for source in sources:
                if self._is_over.is_set():
                    break
                lowering.build(source)
        self._is_building = False
        together = self.policy.compiled_ahead * max(1, compiler.most_processes() - 1)  # one core is left to the search
        requests = (request for program in programs for request in kernel_requests([program], self.options).values())
        while not self._is_over.is_set() and (batch := list(islice(requests, together))):
            try:
                library, work = compile_requests(batch, self.folder / "ahead.so", self.options)
            except (EinsatError, OSError):
                return
            self.tell(work, library.seconds)
        if not self._is_over.is_set():
            with suppress(LibraryMissing, OSError):
                lowering.prepare_artefact()


@contextmanager
def compiling_ahead(
    folder: Path,
    options: CompileOptions,
    tell: Callable[[float, float], None],
    policy: MeasurePolicy = MeasurePolicy(),
    time_left: Callable[[], float] = lambda: math.inf,
) -> Iterator[CompilingAhead]:
    """Yield a CompilingAhead for the work inside the block; no compiler is started before there are kernels."""
    compiler = lowering_for(options.target).generator.compiler
    if compiler is None:
        yield CompilingAhead((), folder, options, tell, policy, time_left)
        return
    with compiler.borrowed(compiler.most_processes()) as compilers:
        ahead = CompilingAhead(compilers, folder, options, tell, policy, time_left)
        try:
            yield ahead
        except BaseException:
            ahead.stop()
            raise
        finally:
            ahead.end()
