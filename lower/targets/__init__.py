"""Targets: the machines that code is made for. Each has its libraries and the back half of its generator in a folder of its own.

A program becomes a plan of one target through its :class:`Lowering`: ``LOWERING`` in ``lower/targets/<kind>/lowering.py``. The device that
runs the plan has the same name in ``runtime.devices``. CONTRIBUTING.md shows how to add a library and a device.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from egraph.errors import LowerError
from egraph.tensor import PLAIN, Implementation, Kernel, Node, Target, placeholders
from lower.eoperator import KernelRequest
from lower.packing import Orders
from lower.roofline import DeviceSpeed
from runtime.plan import Plan

if TYPE_CHECKING:
    from lower.candidates.tile import Tile, Tiling
    from lower.steps import StepWriter
    from lower.views import Window

DEFAULT = Plan.device
"""The default kind of target, and the default device."""
FUNCTION_STEP = "function"
"""The kind of steps that call a C function of a library which the artefact carries."""


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel: the buffers it reads, the one it writes, and the kernel's recipe (JSON data only)."""

    inputs: tuple[int, ...]
    output: int
    spec: Mapping[str, Any]


def dense_alone(kernel: Kernel, window: Window) -> int:
    """Return 1 if a window is dense, and 0 if not: kernels of such a library write dense results only."""
    return int(window.is_contiguous)


def reads_as_computed(_fragment: Node, implementation: str) -> Mapping[int, frozenset[str]] | str:
    """Refuse values that are stored in another element type than they are computed in."""
    return f"{implementation} reads and writes values in the types that they are computed in"


def usual_family(_: Node) -> Hashable | None:
    """Return None: kernels with the same costly operator over the same operands are a family."""
    return None


def as_given(_: Node) -> Mapping[int, tuple[int, ...]]:
    """Return no orders: all constants are stored as they are given."""
    return {}


@dataclass(frozen=True)
class Library:
    """A library whose kernels compete with generated ones. Its implementations are called ``<name>.<kernel>``.

    ``tiles`` covers an e-graph with its kernels, ``launch`` writes one that was chosen. With a ``source`` the library consists of C
    functions: it is compiled once, every artefact that calls one carries it, and the device needs nothing of the library's own. ``writes``
    returns in how many runs a kernel writes its result into a window, as fast as elsewhere (0: it cannot). ``reads`` returns to what an
    implementation rounds each operand of a fragment, or why it does not compute the fragment.
    """

    name: str
    tiles: Callable[[Tiling], Iterator[tuple[int, Tile]]]
    launch: Callable[[StepWriter, Kernel], Launch]
    source: Path | None = None
    writes: Callable[[Kernel, Window], int] = dense_alone
    reads: Callable[[Node, str], Mapping[int, frozenset[str]] | str] = reads_as_computed
    has_plans: bool = False
    """Whether it has several plans for one call, each of which may be measured and chosen."""
    constant_orders: Orders = as_given
    """Returns the order of axes in which a fragment's constants are stored."""
    family: Callable[[Node], Hashable | None] = usual_family
    """Returns a key of a fragment: kernels with equal keys take about the same time. None: the usual family."""
    kind: str = ""
    """The kind of its steps, if these are neither the library's own nor C functions: for generated code, the generator's."""

    @property
    def step_kind(self) -> str:
        """Return the kind of its steps: its name if the device knows the library, else that of a C function."""
        return self.kind or (FUNCTION_STEP if self.source else self.name)

    @property
    def carried(self) -> str:
        """Return the file of an artefact that holds the functions of ``source``."""
        return f"{self.name}.so"


class Compiled(Protocol):
    """Generated kernels in a file: ``failures`` has a reason for each request that could not be compiled."""

    @property
    def failures(self) -> Mapping[Any, LowerError]: ...
    @property
    def compiled(self) -> int: ...
    @property
    def seconds(self) -> float: ...


class Compiler(Protocol):
    """A process that compiles; ``wait`` returns once it has loaded what it needs."""

    def start(self) -> None: ...
    def wait(self, seconds: float) -> None: ...
    def stop(self) -> None: ...


class CodeCompiler(Protocol):
    """How requests become code: in processes that may be kept, through a cache. ``digest`` is a hash of its sources and its compiler.

    ``keeps_kernels``: whether there is a cache, so that a kernel that is compiled ahead need not be compiled again. ``uncompiled`` returns
    the requests that it lacks.

    ``code_digest`` is a hash of all that determines an implementation's code for one fragment; it depends on no more than ``digest``.
    """

    @property
    def keeps_kernels(self) -> bool: ...
    def compile(self, requests: Sequence[KernelRequest], path: Path, *, threads: int) -> Compiled: ...
    def uncompiled(self, requests: Sequence[KernelRequest], *, threads: int) -> list[KernelRequest]: ...
    def kept(self) -> AbstractContextManager[object]: ...
    def borrowed(self, count: int) -> AbstractContextManager[Sequence[Compiler]]: ...
    def most_processes(self) -> int: ...
    def digest(self) -> str: ...
    def code_digest(self, fragment: Node, implementation: Implementation) -> str: ...


@dataclass(frozen=True)
class Generator:
    """The generator for fragments that no library computes: code that is made for the fragment, or its meaning.

    ``tiles`` covers an e-graph, asking for each fragment whether it can be generated; ``supports`` is the default answer. ``spec`` is a
    step's recipe. Without a ``compiler`` the recipe is all that the device needs. ``constant_orders`` returns the order of axes in which a
    fragment's constants are stored.
    """

    tiles: Callable[[Tiling, Callable[[Node], str | None], Implementation], Iterator[tuple[int, Tile]]]
    supports: Callable[[Node], str | None]
    may_overwrite: Callable[[Node], frozenset[int]]
    spec: Callable[[KernelRequest], Mapping[str, Any]]
    compiler: CodeCompiler | None = None
    file: str = "kernels.so"
    """The artefact's file of compiled kernels."""
    constant_orders: Orders = as_given


def no_compiler(source: Path) -> Path:
    """Refuse to compile, because the target has no compiler for C."""
    raise LowerError("this target has no compiler for C", where=str(source), fix="add the library to a target that has one")


def nothing(*_: object) -> None:
    """Do nothing, because the target builds nothing."""


@dataclass(frozen=True)
class Lowering:
    """How programs become plans of one target.

    ``generated``: the implementation of the generator's kernels; its text is also the kind of their steps. ``contraction``: the
    implementation whose speed stands for all kernels with much arithmetic. ``build`` compiles a library's C source once and returns the
    file, and ``source_digest`` is a hash of such a source. ``prepare`` builds what running needs, ``prepare_artefact`` builds what
    artefacts carry besides, and ``complete`` adds both to an artefact.
    """

    target: Target
    generated: Implementation
    generator: Generator
    libraries: tuple[Library, ...]
    contraction: Implementation
    build: Callable[[Path], Path] = no_compiler
    prepare: Callable[[], object] = nothing
    prepare_artefact: Callable[[], object] = nothing
    complete: Callable[[Path], object] = nothing
    speed: DeviceSpeed | None = None
    """The rates of the target from its data sheet, if its device is not timed."""
    source_digest: Callable[[Path], str] = str
    precisions: tuple[str, ...] = ()
    """The precisions besides float32 to which kernels of its libraries round the operands of products."""

    def library_of(self, implementation: Implementation) -> Library | None:
        """Return the library that an implementation belongs to."""
        return next((library for library in self.libraries if library.name == implementation.library), None)

    def sources(self, implementations: Iterable[Implementation]) -> tuple[Path, ...]:
        """Return the C sources of the libraries that implementations belong to, each once, in their order."""
        libraries = map(self.library_of, implementations)
        return tuple(dict.fromkeys(library.source for library in libraries if library and library.source))

    def constant_orders(self, kernel: Kernel) -> Mapping[int, tuple[int, ...]]:
        """Return the order of axes in which a kernel's constants are stored, by operand, if it is not their own."""
        library = self.library_of(kernel.implementation)
        orders = self.generator.constant_orders if kernel.implementation.is_generated else library.constant_orders if library else as_given
        return orders(kernel.fragment)

    def library_writes(self, kernel: Kernel, window: Window) -> int:
        """Return in how many runs a library's kernel writes its result into a window; 0 if it cannot."""
        library = self.library_of(kernel.implementation)
        return library.writes(kernel, window) if library is not None else 0

    def reads(self, fragment: Node, implementation: Implementation) -> Mapping[int, frozenset[str]] | str:
        """Return the precisions to which a kernel rounds each operand, by index (several if it is read twice), or why there is none."""
        if implementation.is_generated:
            reason = self.generator.supports(fragment)
            return reason or {leaf.integer("index"): frozenset({PLAIN}) for leaf in placeholders(fragment)}
        library = self.library_of(implementation)
        return library.reads(fragment, implementation.name) if library else reads_as_computed(fragment, implementation.name)

    @property
    def generator_digest(self) -> str:
        """Return a hash of all that determines generated code, for any fragment; '' without a compiler."""
        return self.generator.compiler.digest() if self.generator.compiler else ""

    def code_digest(self, fragment: Node, implementation: Implementation) -> str:
        """Return a hash of all that determines an implementation's code: its times hold for equal hashes; '' for code that is not ours."""
        library = self.library_of(implementation)
        if implementation.is_generated or (library and library.step_kind == self.generated.name):
            return self.generator.compiler.code_digest(fragment, implementation) if self.generator.compiler else ""
        return self.source_digest(library.source) if library and library.source else ""

    def kept_compilers(self) -> AbstractContextManager[object]:
        """Keep the compiling processes alive for all compilations meanwhile."""
        return self.generator.compiler.kept() if self.generator.compiler else nullcontext()

    def implementation(self, text: str) -> Implementation:
        """Return the implementation of a text, for this target."""
        return Implementation.parse(text, self.target)


def kinds() -> tuple[str, ...]:
    """Return the kinds of targets that there are."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__) if module.ispkg))


@cache
def lowering(name: str = DEFAULT) -> Lowering:
    """Return how programs become plans of a target: of a kind, or of one that is described (``cuda:h100``).

    The target's libraries are imported now, but no compiler.
    """
    kind, _, described = name.partition(":")
    lowerings = _lowerings(kind)
    if described not in lowerings:
        targets = (f"{kind}:{each}" if each else kind for each in lowerings)
        raise LowerError(f"there is no target {name!r}", fix=f"there are {', '.join(targets)}")
    return lowerings[described]


def lowering_for(target: Target) -> Lowering:
    """Return how programs become plans of exactly this target, in whatever precisions."""
    plain = replace(target, precision=PLAIN, precisions=())
    return next((each for each in _lowerings(target.kind).values() if each.target == plain), lowering(target.kind))


def name_of(target: Target) -> str:
    """Return the name of a target, which is also that of its device."""
    return next((f"{target.kind}:{name}" for name, each in _lowerings(target.kind).items() if name and each.target == target), target.kind)


def _lowerings(kind: str) -> Mapping[str, Lowering]:
    """Return the lowerings of a kind: its own, and those of described devices by name."""
    if kind not in kinds():
        raise LowerError(f"there is no target {kind!r}", fix=f"there are {', '.join(kinds())}")
    module = importlib.import_module(f"{__name__}.{kind}.lowering")
    return {"": module.LOWERING, **getattr(module, "DESCRIBED", {})}


def default_target() -> Target:
    """Return the default target: this machine's processor."""
    return lowering().target
