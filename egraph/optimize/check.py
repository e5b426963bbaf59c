"""Compare what was saved with onnxruntime on the original model: the last word before anything is written.

The error of an output is its largest absolute difference over the largest magnitude of the reference output: small
entries of a large tensor carry the rounding of their large neighbours. NaN and infinities must be at the same places.

Some models amplify rounding on some inputs until onnxruntime disagrees with itself by more than the tolerance. An
error above the tolerance is therefore accepted in one case, and said: it is at most ``NOISE_FACTOR`` times as large as
what onnxruntime's own optimisations, or a change of the inputs in their last bit, do to the same output, and never
more than ``MOST_TOLERANCES`` tolerances.

Where outputs tell inputs apart badly, inputs of other sizes are tried too; what then still tells little is said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from egraph.errors import CheckFailed, ModelError
from egraph.optimize.check_spread import Spread
from egraph.tensor import Graph, walk
from egraph.tolerance import Tolerance
from lower.cost.model import index_bounds
from runtime.feeds import DEFAULT_BOUND, FeedSpec, Values, random_feeds

RunModel: TypeAlias = Callable[[Mapping[str, Any]], Sequence[Any]]
TRIED_SIZES = (2, 8, 32, 64, 224)
"""Sizes tried for dynamic dimensions, until onnxruntime accepts them."""
VALUES: tuple[Values, ...] = ("normal", "uniform")
"""Random inputs are signed and like images by turns."""
OTHER_VALUES: tuple[Values, ...] = ("faint", "bytes")
"""Inputs that are tried as well where outputs tell little: some activations saturate, some models scale pixels themselves."""
TRIED_RANKS = (2, 1, 3, 4, 0)
"""Numbers of axes tried where a model leaves them open, and for the elements of sequences."""
TOO_LARGE = ("Maximum allowed dimension", "Failed to allocate memory", "bad_alloc")
"""What numpy and onnxruntime say of sizes beyond the memory, beside MemoryError."""
PART = 1 << 22
"""Elements compared at once."""
NOISE_FACTOR = 4.0
MOST_TOLERANCES = 10.0


class TooFar(CheckFailed):
    """An output differs by more than the tolerance."""


class Disagreement(CheckFailed):
    """A saved file differs from the original, on these inputs."""

    def __init__(self, error: CheckFailed, feeds: Mapping[str, Any]) -> None:
        super().__init__(error.what, where=error.where, fix=error.fix)
        self.feeds = feeds


class NoInputs(ModelError):
    """The original model runs on none of the random inputs that were tried."""


@dataclass(frozen=True)
class CheckResult:
    """How far the saved files are from the original, over all compared outputs."""

    inputs: int
    max_rel_err: float
    worst_output: str
    amplified: tuple[str, ...] = ()
    """Errors above the tolerance that were accepted, in words."""
    weak: tuple[str, ...] = ()
    """Outputs about which the random inputs tell little, in words."""
    is_short: bool = False
    """Whether there was no time for all inputs."""
    given: int = 0
    """How many of the inputs were the user's own."""

    def __str__(self) -> str:
        """Return ``2 random inputs``, or ``1 given and 2 random inputs``."""
        drawn = self.inputs - self.given
        return " and ".join([f"{self.given} given"] * (self.given > 0) + [f"{drawn} random"] * (drawn > 0 or not self.given)) + " inputs"


def open_onnxruntime(model: Path | bytes, threads: int, *, optimise: bool = True) -> Any:
    """Open a model (a file, or its bytes) in onnxruntime on the CPU, with all optimisations or with none."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimise else level.ORT_DISABLE_ALL
    options.log_severity_level = 4  # what goes wrong is raised as well, and told in our words
    options.enable_cpu_mem_arena = False  # it would keep what the largest run needed, beside everything that is timed
    return onnxruntime.InferenceSession(model if isinstance(model, bytes) else str(model), options, providers=["CPUExecutionProvider"])


def open_original(model: Path, threads: int, *, optimise: bool = True) -> Any:
    """Open the user's own model; raises ModelError where onnxruntime, which everything is compared with, refuses it."""
    try:
        return open_onnxruntime(model, threads, optimise=optimise)
    except Exception as error:  # onnxruntime raises a class a status; every one means "not this model"
        raise ModelError(
            f"onnxruntime cannot load the original model: {' '.join(str(error).split())}",
            where=str(model),
            fix="make onnxruntime load it (results are compared with it): export the model again, or upgrade onnxruntime",
        ) from error


def find_feeds(
    session: Any, graph: Graph, seed: int, ran: Callable[[Mapping[str, Any], Sequence[Any]], None] = lambda feeds, outputs: None
) -> tuple[FeedSpec, ...]:
    """Return inputs that the original model accepts: sizes for its dynamic dimensions, bounds for its integers.

    ``ran`` hears of the inputs that were accepted, which are those that ``check`` begins with, and of the outputs.

    Raises ModelError when onnxruntime cannot run the original on any of them, or never gives the same twice.
    """
    bounds = index_bounds(graph.roots)
    problem: Exception | None = None
    shapes = [node.type.shape for node in graph.inputs]
    has_open_ranks = None in shapes
    is_dynamic = has_open_ranks or any(isinstance(size, str) for shape in shapes for size in shape or ())
    for size, is_single, rank, bound in product(
        TRIED_SIZES if is_dynamic else TRIED_SIZES[:1], (True, False) if is_dynamic else (True,),
        TRIED_RANKS if has_open_ranks else TRIED_RANKS[:1], (None, DEFAULT_BOUND, 1),
    ):  # fmt: skip
        specs = tuple(
            FeedSpec(
                node.string("name"),
                node.type.dtype,
                tuple(
                    _size(value, axis, 1 if is_single else size, size)
                    for axis, value in enumerate(("",) * rank if node.type.shape is None else node.type.shape)
                ),
                bound or bounds.get(node, DEFAULT_BOUND),
            )
            for node in graph.inputs
        )
        try:
            feeds = random_feeds(specs, seed)
            results = session.run(None, feeds)
        except Exception as error:  # onnxruntime raises a class a status; every one means "not these inputs"
            problem = error
        else:
            if any(node.op == "Opaque" for node in walk(graph.roots)):
                refuse_if_random(session, feeds, results)
            ran(feeds, results)
            return specs
    told = " ".join(str(problem).split())
    if isinstance(problem, MemoryError) or any(text in told for text in TOO_LARGE):
        sizes = ", ".join(f"{spec.name}: {'x'.join(map(str, spec.shape))}" for spec in specs)
        raise NoInputs(
            f"the model does not fit into memory at these sizes: {told}", where=sizes, fix="give smaller ones: --shape NAME:SIZES"
        )
    fix = "give the sizes of dynamic inputs with --shape NAME:SIZES" if is_dynamic else "check that onnxruntime runs it at these sizes"
    raise NoInputs(
        f"onnxruntime cannot run the original model on random inputs: {told}",
        fix=f"{fix}; python -m egraph.optimize MODEL --inputs FILE.npz takes inputs of your own",
    )


def refuse_if_random(session: Any, feeds: Mapping[str, Any], results: Sequence[Any]) -> None:
    """Raise ModelError where the same inputs give other outputs the second time: nothing could be compared with them."""
    for output, first, second in zip(session.get_outputs(), results, session.run(None, feeds), strict=True):
        try:
            compare(first, second, Tolerance(), where=output.name)
        except CheckFailed as error:
            raise ModelError(
                "the original model gives other outputs each time: it draws random numbers, so nothing can be compared with it",
                where=f"output {output.name!r}",
                fix="make what the random operators draw an input of the model, or take them out (export for inference)",
            ) from error


def _size(value: int | str, axis: int, batch: int, size: int) -> int:
    if isinstance(value, int):
        return value
    return batch if axis == 0 else size


def check(
    reference: RunModel,
    candidates: Mapping[str, RunModel],
    output_names: Sequence[str],
    specs: tuple[FeedSpec, ...],
    *,
    tolerance: Tolerance,
    count: int,
    seed: int,
    plain: RunModel | None = None,
    goes_on: Callable[[int], bool] = lambda inputs: True,
    given: Sequence[tuple[str, Mapping[str, Any]]] = (),
    is_random: bool = True,
) -> CheckResult:
    """Compare each saved file (by name) with the reference on ``count`` inputs; raises Disagreement.

    First come all that are ``given``, with their names, then random ones unless ``is_random`` is false: the model runs on none.
    From the last one given on, ``goes_on`` is asked whether there is time for another.

    ``plain`` runs the original without optimisations; without it, no error above the tolerance is accepted.
    """
    worst_output, worst_error = "", -1.0
    amplified: list[str] = []
    spread = Spread(output_names, tolerance)

    def drawn(number: int, values: Values) -> dict[str, np.ndarray]:
        return random_feeds([replace(spec, values=values) for spec in specs], seed + number)

    def compare_on(told: str, feeds: Mapping[str, Any], expected: Sequence[Any]) -> None:
        nonlocal worst_output, worst_error
        noise = Noise(plain, feeds, seed) if plain else None
        spread.add(expected)
        for file, run in candidates.items():
            try:
                found = run(feeds)
            except Exception as error:
                failed = CheckFailed(f"{file} does not run: {type(error).__name__}: {error}", where=f"{file}, {told}")
                raise Disagreement(failed, feeds) from error
            for position, (name, want, got) in enumerate(zip(output_names, expected, found, strict=True)):
                where = f"{file}, output {name!r}, {told}"
                try:
                    relative = compare(want, got, tolerance, where=where)
                except TooFar as error:
                    excuse = noise.excuse(position, want, got, tolerance) if noise else ""
                    if not excuse:
                        raise Disagreement(error, feeds) from error
                    relative = relative_error(want, got)
                    amplified.append(f"{where}: {excuse}")
                except CheckFailed as error:
                    raise Disagreement(error, feeds) from error
                if relative > worst_error:
                    worst_output, worst_error = name, relative

    def result(compared: int, *, is_short: bool) -> CheckResult:
        return CheckResult(compared, max(worst_error, 0.0), worst_output, tuple(amplified), spread.notes(), is_short, len(given))

    for name, feeds in given:
        compare_on(f"the inputs of {name}", feeds, reference(feeds))
    if not is_random:
        return result(len(given), is_short=False)
    if given and not goes_on(len(given)):
        return result(len(given), is_short=len(given) < count)
    for number in range(count - len(given)):
        values = VALUES[number % len(VALUES)]
        feeds = drawn(number, values)
        compare_on(f"random input {number} ({values})", feeds, reference(feeds))
        del feeds
        if not goes_on(len(given) + number + 1):
            return result(len(given) + number + 1, is_short=True)
    compared = max(count, len(given))
    if compared == 1:
        spread.add(reference(drawn(1, VALUES[0])))
    if spread.weak and any(spec.is_float for spec in specs):
        for number, values in enumerate(OTHER_VALUES, start=compared - len(given)):
            feeds = drawn(number, values)
            expected = reference(feeds)
            if all(is_finite(value) for value in expected):  # a model may be undefined there
                compare_on(f"random input {number} ({values})", feeds, expected)
                compared += 1
    return result(compared, is_short=False)


class Noise:
    """What rounding alone does to the outputs of the original on some inputs; run when first asked."""

    def __init__(self, plain: RunModel, feeds: Mapping[str, Any], seed: int) -> None:
        self._plain, self._feeds, self._seed = plain, feeds, seed
        self._runs: tuple[Sequence[Any], Sequence[Any]] | None = None

    def excuse(self, position: int, want: Any, got: Any, tolerance: Tolerance) -> str:
        """Return why an output's error is rounding that the model amplifies; empty where it is not."""
        if self._runs is None:
            self._runs = self._plain(self._feeds), self._plain(shaken(self._feeds, self._seed))
        exact, moved = (run[position] for run in self._runs)
        if any(isinstance(value, list) for value in (want, got, exact)):
            return ""
        own = max(relative_error(exact, want), relative_error(exact, moved))
        ours = relative_error(exact, got)
        if not ours <= min(NOISE_FACTOR * own, MOST_TOLERANCES * tolerance.relative):
            return ""
        return (
            f"accepted although {relative_error(want, got):.2g} is above the tolerance: against onnxruntime without optimisations "
            f"the error is {ours:.2g}, and rounding alone makes onnxruntime differ from itself by {own:.2g} there"
        )


def shaken(feeds: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Return the inputs with every float changed by at most its last bit."""
    generator = np.random.default_rng(seed)

    def shake(value: Any) -> Any:
        if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
            return value
        steps = generator.integers(-1, 2, size=value.shape)
        return (value * (1 + steps * np.finfo(value.dtype).eps)).astype(value.dtype)

    return {name: shake(value) for name, value in feeds.items()}


def is_finite(value: Any) -> bool:
    """Say whether all elements of a float output are finite; other outputs always are."""
    return not isinstance(value, np.ndarray) or value.dtype.kind not in "fc" or bool(np.isfinite(value).all())


def relative_error(want: Any, got: Any) -> float:
    """Return the largest difference over the largest magnitude of ``want``, both where it is finite."""
    wants, gots = (np.asarray(value).reshape(-1) for value in (want, got))
    difference, magnitude = 0.0, 0.0
    for start in range(0, wants.size, PART):
        one, other = (value[start : start + PART].astype(np.float64) for value in (wants, gots))
        finite = np.isfinite(one)
        difference = float(np.max(np.abs(one - other), where=finite, initial=difference))  # not a number where one is found
        magnitude = float(np.max(np.abs(one), where=finite, initial=magnitude))
    return difference / magnitude if magnitude > 0 else (0.0 if difference == 0 else float("inf"))


def compare(want: Any, got: Any, tolerance: Tolerance, *, where: str) -> float:
    """Return the relative error of an output; raises CheckFailed when it is too large or of another kind."""
    if want is None and got is None:
        return 0.0
    if isinstance(want, list) and isinstance(got, list) and len(want) == len(got):
        pairs = enumerate(zip(want, got, strict=True))
        return max([compare(w, g, tolerance, where=f"{where}[{i}]") for i, (w, g) in pairs], default=0.0)
    if want is None or got is None or isinstance(want, list) or isinstance(got, list):
        raise CheckFailed("the output is of another kind than the original's", where=where)
    want, got = np.asarray(want), np.asarray(got)
    if want.shape != got.shape or want.dtype != got.dtype:
        raise CheckFailed(f"the output is {got.dtype}{list(got.shape)}, it must be {want.dtype}{list(want.shape)}", where=where)
    if not _is_floating(want.dtype):
        if not np.array_equal(want, got):
            raise CheckFailed(f"{int(np.sum(want != got))} of {want.size} elements differ", where=where)
        return 0.0
    wide = np.complex128 if want.dtype.kind == "c" else np.float64
    difference, magnitude = 0.0, 0.0
    for start in range(0, want.size, PART):  # outputs may be larger than the memory that is left
        part = slice(start, start + PART)
        off, size = _difference(want.reshape(-1)[part].astype(wide), got.reshape(-1)[part].astype(wide), where)
        difference, magnitude = max(difference, off), max(magnitude, size)
    relative = difference / magnitude if magnitude > 0 else difference  # nothing to relate it to: it is accepted by its own size
    if difference > tolerance.absolute + tolerance.relative * magnitude:
        raise TooFar(
            f"the largest error is {difference:.3g} where the output's largest magnitude is {magnitude:.3g} "
            f"({relative:.3g} relative; accepted: {tolerance.relative:g} relative plus {tolerance.absolute:g})",
            where=where,
            fix="python -m egraph.inspect names the rules behind an output; --allow exact or --skip-rule NAME leaves rules out, "
            "--tolerance REL,ABS accepts more",
        )
    return relative


def _difference(want: np.ndarray, got: np.ndarray, where: str) -> tuple[float, float]:
    """Return the largest difference and the largest magnitude of what is finite; raises CheckFailed where other values are."""
    finite = np.isfinite(want)
    if not np.array_equal(np.isnan(want), np.isnan(got)) or not np.array_equal(finite, np.isfinite(got)):
        raise CheckFailed("NaN or infinity at other places than in the original", where=where)
    infinite = ~finite & ~np.isnan(want)
    if not np.array_equal(want[infinite], got[infinite]):
        raise CheckFailed("infinities of the other sign than in the original", where=where)
    if not finite.any():
        return 0.0, 0.0
    return float(np.max(np.abs(want[finite] - got[finite]))), float(np.max(np.abs(want[finite])))


def _is_floating(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "fc" or dtype.name.startswith(("bfloat16", "float8", "float4", "float6"))
