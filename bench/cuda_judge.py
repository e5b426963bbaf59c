"""Judge a generated CUDA kernel without a device: against its meaning in float64, in three orders of its threads, and without each barrier.

``digest_of(kernel)`` names a kernel's text with everything that judges it: what was judged once need not be judged again.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from egraph.errors import EinsatError
from egraph.tensor import Node, format_fragment, placeholders, walk
from egraph.tensor.expr.index import length
from egraph.tensor.ops.reference import evaluate
from lower import roofline
from lower.attention.match import AttentionCall, match
from lower.eoperator.request import KernelRequest, kernel_of
from lower.eoperator.terms import subterms
from lower.targets.cuda.generator import OUTPUT, SCRATCH, GeneratedKernel, Report, write
from lower.targets.cuda.generator import compiler as compilers
from lower.targets.cuda.generator.attention import AttentionRequest
from lower.targets.cuda.generator.compiler import MULTIPROCESSORS, compile_log, report_of
from lower.targets.cuda.generator.generate import compile_unspilled
from lower.views import Window, row_major
from runtime.devices.cuda import shim
from runtime.devices.cuda.kernels import Launch
from runtime.devices.cuda.shim import ORDERS, HostModule, Order, compile_for_host
from runtime.dtypes import numpy_dtype
from runtime.errors import ExecutionError

TOLERANCE = 1e-5
"""Error of an element relative to its size, or to a tenth of the largest element's: sums cancel."""
MOST_WORK = 4e9
"""The most scalar operations of a kernel that is run; larger ones are compiled only."""
MOST_ELEMENTS = 1 << 28
"""The most elements of a value that the meaning of a kernel, which is run, has on the way: two GB in float64."""
LARGEST_SCORE = 16.0
"""Scores of attention are no larger: an exponential is off by as many times a rounding as its operand is large."""
MOST_HALVINGS = 20
"""Operands are halved so often at most, until scores are small enough."""
BARRIER = "__syncthreads();"
FEW_BLOCKS = 8
"""Blocks of a kernel that are run without one of its barriers before all of them are: what these show need not be shown by more."""
ENTRY = re.compile(r"Compiling entry function '(\w+)'")
"""What ptxas says before what it says of a kernel."""
TOOLS = ("nvidia-cuda-nvrtc", "ziglang", "numpy")
"""Packages that compile kernels and compute what they must."""


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
    digest: str = ""
    """Of its text and of what judged it."""

    @property
    def is_good(self) -> bool:
        """Return whether nothing spills and the kernel is right in every order."""
        flawed = self.exception or self.unneeded or any(report.spill_bytes for report in self.reports)
        return not flawed and self.error is not None and self.error <= 1 and bool(self.orders_agree)


def work(request: KernelRequest) -> float:
    """Return about how many scalar operations a kernel takes: each term at all places of what it depends on."""
    if isinstance(request, AttentionRequest):
        return float(roofline.work(request.fragment).flops)
    return float(sum(math.prod(length(i) for i in term.free) for term in subterms((kernel_of(request).root,))))


def random_operands(request: KernelRequest) -> dict[Node, np.ndarray]:
    """Return random operands as the fragment sees them, by placeholder: those of attention give scores of a size that networks have.

    Single numbers are near one, since a network's factors, divisors and what it adds below a root are not negative; exponents are two.
    """
    random, values = np.random.default_rng(0), {}
    exponents = {node.inputs[1] for node in walk((request.fragment,)) if node.op == "Pow"}
    size = calls_of(request)[0].arguments[0].window.shape[-1] ** -0.25 if isinstance(request, AttentionRequest) else 1.0
    for leaf in placeholders(request.fragment):
        dtype = numpy_dtype(leaf.type.dtype)
        is_weight = leaf.attribute("constant") and leaf.type.rank > 1  # scaled as trained ones are: no activation saturates
        scale = size / math.sqrt(math.prod(leaf.type.sizes[1:])) if is_weight else size
        value = scale * random.standard_normal(leaf.type.sizes) if dtype.kind not in "iub" else random.integers(0, 2, leaf.type.sizes)
        if leaf in exponents:
            value = np.full(leaf.type.sizes, 2.0)
        elif dtype.kind not in "iub" and leaf.type.elements == 1:
            value = 1.0 + 0.1 * value
        values[leaf] = np.asarray(value).astype(dtype)
    return with_small_scores(request.fragment, values) if isinstance(request, AttentionRequest) else values


def with_small_scores(fragment: Node, values: Mapping[Node, np.ndarray]) -> dict[Node, np.ndarray]:
    """Return operands halved until no score exceeds ``LARGEST_SCORE``; as they are where that does not come about."""
    scores, halved = [node.inputs[0] for node in walk((fragment,)) if node.op == "Softmax"], dict(values)
    for _ in range(MOST_HALVINGS):
        if largest(scores, halved) <= LARGEST_SCORE:
            return halved
        halved = {leaf: value if value.dtype.kind in "iub" else value / 2 for leaf, value in halved.items()}
    return dict(values)


def largest(nodes: Sequence[Node], values: Mapping[Node, np.ndarray]) -> float:
    """Return the largest finite magnitude among the values of nodes."""
    with np.errstate(all="ignore"):
        arrays = [np.asarray(array, np.float64) for array in evaluate(tuple(nodes), values)] if nodes else []
    return max((float(np.abs(array[np.isfinite(array)]).max(initial=0.0)) for array in arrays), default=0.0)


def in_memory(request: KernelRequest, values: Mapping[Node, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the memory of each parameter, in which operands lie with the request's strides."""
    if isinstance(request, AttentionRequest):
        call, plain = calls_of(request)
        by_index = {leaf.integer("index"): value for leaf, value in values.items()}
        seen = [through(by_index[argument.operand], argument.window) for argument in plain.arguments]
        return {f"in{k}": laid(each, call.arguments[k].window.strides) for k, each in enumerate(seen)}
    memories, strides = {}, dict(enumerate(request.input_strides or ()))
    for leaf, value in values.items():
        position = leaf.integer("index")
        memories[f"in{position}"] = laid(value, strides.get(position) or row_major(leaf.type.sizes))
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
        strides = request.output_strides or row_major(type.sizes)
        if isinstance(request, AttentionRequest):
            call, plain = calls_of(request)
            expected, strides = through(expected, plain.destination), call.destination.strides
        return Trial(kernel, in_memory(request, values), expected, strides, numpy_dtype(type.dtype))

    def output(self, module: HostModule, order: Order, suffix: str = "", blocks: int = 1 << 31) -> np.ndarray:
        """Return the output's memory after a run in one order of the threads.

        ``suffix``: of the symbols to launch, of a text that differs; ``blocks``: so many at most are run; what others pass on is 0 then.
        """
        out = laid(np.zeros(self.expected.shape, self.dtype), self.strides)
        most = max(launch.grid[0] for launch in self.kernel.launches)
        scratch = np.full(self.kernel.scratch_bytes // 4, 0.0 if blocks < most else np.nan, np.float32)
        for launch in self.kernel.launches:
            arrays = [{**self.memories, OUTPUT: out, SCRATCH: scratch}[name] for name in launch.parameters]
            x, y, z = launch.grid
            module.launch(f"{launch.symbol}{suffix}", (min(x, blocks), y, z), launch.block, launch.shared_bytes, arrays, order)
        return out

    def error(self, out: np.ndarray, right: np.ndarray | None = None) -> float:
        """Return the largest error of an output's memory over what is tolerated, of what is expected or of a right output's memory."""
        actual, exact = (
            None if each is None else viewed(each, self.expected.shape, self.strides).astype(np.float64) for each in (out, right)
        )
        assert actual is not None
        return error_of(actual, self.expected if exact is None else exact)

    def unneeded(self, module: HostModule, removed: Sequence[str]) -> tuple[int, ...]:
        """Return which of the texts that lack a barrier, by their symbols' suffixes, are right in every order."""
        most = max(launch.grid[0] for launch in self.kernel.launches)
        few = self.output(module, "ascending", blocks=FEW_BLOCKS) if removed and most > FEW_BLOCKS else None
        return tuple(
            k for k, suffix in enumerate(removed)
            if not (few is not None and self.shows(module, suffix, FEW_BLOCKS, few)) and not self.shows(module, suffix)
        )  # fmt: skip

    def shows(self, module: HostModule, suffix: str, blocks: int = 1 << 31, right: np.ndarray | None = None) -> bool:
        """Return whether another text of the kernel fails, or is wrong, in some order."""
        for order in ORDERS:
            try:
                out = self.output(module, order, suffix, blocks)
            except ExecutionError:
                return True
            if self.error(out, right) > 1:
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
    """Return texts that lack one barrier each, and the suffixes of their kernels' symbols; lines keep their numbers."""
    pieces, texts = kernel.text.split(BARRIER), []
    for k in range(1, len(pieces)):
        text, suffix = BARRIER.join(pieces[:k]) + BARRIER.join(pieces[k:]), f"_without_{k - 1}"
        for launch in kernel.launches:
            text = text.replace(f" {launch.symbol}(", f" {launch.symbol}{suffix}(")
        texts.append((text, suffix))
    return texts


@cache
def _judge() -> bytes:
    """Return a hash of what judges kernels: this file, what runs them on a processor, and what compiles them."""
    digest = hashlib.sha256()
    for path in (Path(__file__), Path(str(shim.__file__)), shim.HEADER, Path(str(compilers.__file__))):
        digest.update(path.read_bytes())
    for name in TOOLS:
        try:
            digest.update(f"{name} {metadata.version(name)}".encode())
        except metadata.PackageNotFoundError:
            continue
    return digest.digest()


def digest_of(kernel: GeneratedKernel) -> str:
    """Return a hash of a kernel's text, which has its fragment's hash in its symbol, of its launches, and of what judges it."""
    return hashlib.sha256(f"{kernel.text}\0{kernel.launches}\0".encode() + _judge()).hexdigest()[:16]


def judge(
    requests: Sequence[KernelRequest], model: str, known: Callable[[str], Row | None] = lambda digest: None
) -> Iterator[tuple[KernelRequest, Row]]:
    """Yield a row for each request; those of one model are compiled for the processor in one go.

    ``known``: what was judged before, by its digest.
    """
    group: dict[KernelRequest, GeneratedKernel] = {}
    for request in requests:
        try:
            kernel = write(request)
        except EinsatError as error:
            yield request, Row(request.symbol, format_fragment(request.fragment), (model,), 0, (), (), None, None, error.what)
            continue
        row = known(digest_of(kernel))
        if row is not None:
            yield request, row
        else:
            group[request] = kernel
    if group:
        texts = (text for kernel in group.values() for text in (kernel.text, *(changed for changed, _ in without_barriers(kernel))))
        module = compile_for_host("\n".join(texts))
        reports = compiled_together(list(group.values()))
        for (request, kernel), compiled in zip(group.items(), reports, strict=True):
            yield request, judged(module, request, kernel, (model,), compiled)


def reports_together(texts: Sequence[str], launches: Sequence[Sequence[Launch]], architecture: str) -> list[Report] | None:
    """Compile texts of one kernel each as one text, whose code nobody needs: return what the compiler says of each.

    Most of the time that a small kernel takes alone is the compiler's own beginning. None where no compiler is installed.
    """
    compiled = compile_log("\n".join(texts), architecture)
    if compiled is None:
        return None
    parts = ENTRY.split(compiled[1])
    by_symbol = dict(zip(parts[1::2], parts[2::2], strict=True))
    return [report_of("".join(by_symbol[each.symbol] for each in one), one, architecture) for one in launches]


def compiled_together(kernels: Sequence[GeneratedKernel]) -> list[tuple[Report, ...] | str]:
    """Return what the compiler says of each kernel for all architectures, of one that spills as it is compiled alone; or its refusal."""
    launches = [kernel.launches for kernel in kernels]
    reports: list[tuple[Report, ...]] = [()] * len(kernels)
    try:
        for architecture in MULTIPROCESSORS:
            together = reports_together([kernel.text for kernel in kernels], launches, architecture) or []
            for k, report in enumerate(together):
                alone = compile_unspilled(kernels[k].text, launches[k], architecture) if report.spill_bytes else None
                reports[k] += (alone[1] if alone else report,)
    except EinsatError as error:
        return [error.what] if len(kernels) == 1 else [each for kernel in kernels for each in compiled_together([kernel])]
    return [*reports]


def judged(
    module: HostModule, request: KernelRequest, kernel: GeneratedKernel, models: tuple[str, ...], compiled: tuple[Report, ...] | str
) -> Row:
    """Run a kernel and compare it; one that a compiler refuses is not run."""
    reports, exception = ((), compiled) if isinstance(compiled, str) else (compiled, "")
    error, agree, removed = None, None, without_barriers(kernel)
    unneeded: tuple[int, ...] = ()
    try:
        amount, elements = work(request), max(node.type.elements for node in walk((request.fragment,)))
        if amount > MOST_WORK:
            exception = exception or f"not run here: about {amount:.0e} operations"
        elif elements > MOST_ELEMENTS:
            exception = exception or f"not run here: what it means has a value of {elements:.0e} elements"
        elif not exception:
            trial = Trial.of(request, kernel)
            outputs = [trial.output(module, order) for order in ORDERS]
            error, agree = max(map(trial.error, outputs)), len({each.tobytes() for each in outputs}) == 1
            unneeded = trial.unneeded(module, [suffix for _, suffix in removed])
    except (EinsatError, ExecutionError) as problem:
        exception = problem.what
    (launch, *_) = kernel.launches
    fragment = format_fragment(request.fragment)
    return Row(
        request.symbol, fragment, models, launch.grid[0], launch.block, reports, error, agree, exception, len(removed), unneeded,
        digest=digest_of(kernel),
    )  # fmt: skip
