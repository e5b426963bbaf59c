"""How programs become plans for this machine's processor."""

from __future__ import annotations

import importlib
import platform
from functools import cache

from egraph.tensor import Implementation, Node, Target
from lower.candidates.eoperator_tiles import eoperator_tiles
from lower.eoperator.request import constant_orders, may_overwrite, supports_by_parts
from lower.targets import Generator, Library, Lowering
from lower.targets.cpu.generator import library as generator
from lower.targets.cpu.generator import process
from runtime.devices.cpu.native import build

LIBRARIES = (
    "onednn",
    "attention",
    "recurrence",
    "blocks",
    "bytes",
    "depthwise",
    "products",
)  # fmt: skip
"""The libraries whose kernels compete with generated ones on the CPU: folders beside this file, each with its ``LIBRARY``."""


class _Compiler:
    """TVM and a linker, in processes of their own."""

    compile = staticmethod(generator.compile_library)
    keeps_kernels = True
    uncompiled = staticmethod(generator.uncompiled)
    kept = staticmethod(process.kept_compiler)
    borrowed = staticmethod(process.borrowed_compilers)
    most_processes = staticmethod(process.most_processes)
    digest = staticmethod(generator.generator_digest)

    def code_digest(self, _fragment: Node, _implementation: Implementation) -> str:
        return generator.generator_digest()


def _library(name: str) -> Library:
    library: Library = importlib.import_module(f"lower.targets.cpu.{name}").LIBRARY
    return library


TARGET = Target("cpu", platform.machine(), generator.processor())
LOWERING = Lowering(
    TARGET,
    Implementation.parse("tvm", TARGET),
    Generator(
        eoperator_tiles, supports_by_parts, may_overwrite, lambda request: {"symbol": request.symbol}, _Compiler(),
        constant_orders=constant_orders,
    ),
    tuple(_library(name) for name in LIBRARIES),
    Implementation.parse("onednn.matmul", TARGET),
    build.build, build.build, build.build_openmp, build.copy_into, source_digest=cache(build.source_digest),
    precisions=("bf16", "bf16x3", "int8"),
)  # fmt: skip
