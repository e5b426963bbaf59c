"""The compiling processes of one test process: started once, and again where a test ended them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import SupportsIndex

from lower.targets.cpu.generator import process
from lower.targets.cpu.generator.process import Compiler, most_processes


class _Renewed(list[Compiler]):
    """Compilers of which those that an error ended are replaced when they are needed again."""

    def __getitem__(self, key: slice | SupportsIndex) -> list[Compiler] | Compiler:  # type: ignore[override]
        for position, compiler in enumerate(self):
            if compiler._is_stopped:
                compiler.close()
                self[position] = Compiler()
        return super().__getitem__(key)


@contextmanager
def shared_compilers() -> Iterator[None]:
    """Keep compilers for all tests of this process."""
    compilers = _Renewed(Compiler() for _ in range(most_processes()))
    process._kept.append(compilers)
    try:
        yield
    finally:
        process._kept.remove(compilers)
        for compiler in compilers:
            compiler.close()
