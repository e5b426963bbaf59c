"""Compile, while the e-graph grows on one core, what is needed afterwards whatever the search finds.

Starting the code generator takes seconds, and so do the kernels of the program without rules; growing uses one core. The first
run of a user builds what every artefact carries, too. Only caches are filled, so that nothing depends on how far this gets.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from egraph.errors import EinsatError
from egraph.optimize.batch import kernel_requests
from egraph.policy import MeasurePolicy
from egraph.tensor import Program
from lower.compile import CompileOptions
from lower.targets import CodeCompiler, lowering
from runtime.errors import LibraryMissing


@contextmanager
def compiling_ahead(
    programs: Sequence[Program],
    folder: Path,
    options: CompileOptions,
    tell: Callable[[int, float], None],
    policy: MeasurePolicy = MeasurePolicy(),
) -> Iterator[Callable[[], None]]:
    """Compile the kernels of ``programs`` in their order, beside what is done inside; yield how to end that early.

    Without programs no compiler is started. A kernel that fails is met again where it is needed. ``tell`` hears of compiled kernels
    and the seconds that they took.
    """
    way = lowering(options.target.kind)
    compiler = way.generator.compiler
    if not programs or compiler is None:
        yield lambda: None
        return
    is_over = threading.Event()

    def compile_all(compiler: CodeCompiler) -> None:
        with suppress(LibraryMissing, OSError):
            way.prepare()
        requests = list(kernel_requests(programs, options).values())
        together = policy.compiled_ahead * max(1, compiler.most_processes() - 1)  # growing has a core of its own
        for start in range(0, len(requests), together):
            if is_over.is_set():
                return
            try:
                library = compiler.compile(requests[start : start + together], folder / "ahead.so", threads=options.threads)
            except (EinsatError, OSError):
                return
            tell(library.compiled, library.seconds)
        with suppress(LibraryMissing, OSError):
            way.prepare_artefact()

    thread = threading.Thread(target=compile_all, args=(compiler,), name="compiling ahead", daemon=True)

    def end() -> None:
        is_over.set()
        if thread.is_alive():  # not where Ctrl-C came before it was started
            thread.join()

    with compiler.borrowed(compiler.most_processes()) as compilers:
        try:
            for process in compilers:
                process.start()
            thread.start()
            yield end
        except BaseException:
            for process in compilers:
                process.stop()  # so that nobody waits for a kernel when the end was asked for
            raise
        finally:
            end()
