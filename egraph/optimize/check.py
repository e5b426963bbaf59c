"""Compare the saved files with onnxruntime on the original model: the last step before anything is written.

The error of an output is its largest absolute difference over the largest magnitude of the reference output, because small entries of a
large tensor carry the rounding of their large neighbours. NaN and infinities must be at the same places.

Some models amplify rounding on some inputs so much that onnxruntime disagrees with itself by more than the tolerance. If an error is above
the tolerance, the check therefore measures the noise of the original: how far onnxruntime's own optimisations, and changes of the inputs or
of the weights in their last bit (1e-7 of them in float32), move the same output. The program is wrong if the error is more than
``NOISE_FACTOR`` times the noise, or if any kernel alone computes something else than its part of the program on this very input
(``vouch``). Otherwise the error is rounding that the model amplifies, and it is reported:

* up to ``MOST_TOLERANCES`` tolerances, it is accepted;
* beyond, it is accepted if every part of the program agrees on this input (``Parts``). A part lies between values that the program shares
  with the model, and is computed from the same ones. This allows the check to compare a model that rounds to bytes inside and amplifies
  rounding on every input;
* else the input cannot tell a wrong program from a right one, and another takes its place, so that as many are compared as were asked for.
  A user's own input is never replaced.

If a model rounds numbers to bytes, these numbers are moved, too (``noise_before_bytes``): its outputs depend on numbers halfway between two
bytes, and changes of the last bits of inputs and weights need not reach them.

So no program passes because its inputs are ill-conditioned. The noise that excuses an error is measured on the original alone. Every kernel
has agreed on that input, and so has the whole program on others, or every part of it on this one.

Some outputs hardly depend on the inputs, so that agreement on them proves little. The check therefore measures how much an output depends
on the inputs: the part of its values that other inputs change by more than the accepted error. For example, a saturated softmax, or a
signal that fades on its way, gives the same output for all inputs. Inputs of other magnitudes are tried then, and outputs that still depend
little on them are reported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from egraph.errors import CheckFailed, ModelError
from egraph.onnx.importer.halves import UNIT_ROUNDOFF
from egraph.onnx.integer_ranges import FLAGS, compared_numbers, integer_ranges
from egraph.optimize.blame import Blame
from egraph.optimize.check_noise import PART, UNKNOWN, MeasuredNoise, Noise, RunModel, RunOutput, open_onnxruntime, relative_error
from egraph.policy import CheckPolicy
from egraph.tensor import Graph, Node, walk
from egraph.tolerance import Tolerance
from runtime.feeds import FeedSpec, Values, random_feeds

LITTLE = 0.01
"""Least part of an output's values that other inputs must change for the output to distinguish inputs."""


class Spread:
    """Compares the outputs of the first inputs with those of all others."""

    def __init__(self, names: Sequence[str], tolerance: Tolerance) -> None:
        self._names, self._tolerance = names, tolerance
        self._first: Sequence[Any] = ()
        self._moved: dict[str, float] = {}

    def add(self, outputs: Sequence[Any]) -> None:
        """Add the outputs of one more input."""
        if not self._first:
            self._first = outputs
            return
        for name, first, other in zip(self._names, self._first, outputs, strict=True):
            self._moved[name] = max(self._moved.get(name, 0.0), moved(first, other, self._tolerance))

    @property
    def weak(self) -> tuple[str, ...]:
        """The outputs that hardly depend on the inputs."""
        return tuple(name for name, part in self._moved.items() if part < LITTLE)

    def notes(self) -> tuple[str, ...]:
        """Return notes on outputs that hardly depend on the inputs."""
        return tuple(
            f"the check tells little about output {name!r}: other inputs change {self._moved[name]:.2g} of its values by more than "
            "the accepted error (it is saturated, or nearly the same for every input)"
            for name in self.weak
        )


def moved(first: Any, second: Any, tolerance: Tolerance) -> float:
    """Return the part of the values that differ by more than the accepted error, or 1 if the outputs are of different kinds."""
    if first is None and second is None:
        return 0.0
    if isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        return max((moved(a, b, tolerance) for a, b in zip(first, second, strict=True)), default=0.0)
    if first is None or second is None or isinstance(first, list) or isinstance(second, list):
        return 1.0
    first, second = np.asarray(first), np.asarray(second)
    if first.shape != second.shape:
        return 1.0
    if not first.size:
        return 1.0  # an empty output proves nothing either way
    if first.dtype.kind in "OSUTb" or np.issubdtype(first.dtype, np.integer):
        return float(np.mean(first != second))
    wide = np.complex128 if first.dtype.kind == "c" else np.float64
    first, second = first.astype(wide), second.astype(wide)
    finite = np.isfinite(first) & np.isfinite(second)
    magnitude = max(float(np.max(np.abs(value), where=finite, initial=0.0)) for value in (first, second))
    with np.errstate(invalid="ignore"):
        is_close = np.abs(first - second) <= tolerance.absolute + tolerance.relative * magnitude
    return float(np.mean(np.where(finite, ~is_close, np.isfinite(first) != np.isfinite(second))))


TRIED_SIZES = (2, 8, 32, 64, 224)
"""Sizes tried for dynamic dimensions, until onnxruntime accepts them."""
VALUES: tuple[Values, ...] = ("normal", "uniform")
"""Random inputs are alternately signed and like images."""
OTHER_VALUES: tuple[Values, ...] = ("faint", "bytes")
"""Further inputs if outputs hardly depend on the first: some activations saturate, and some models scale pixels themselves."""
TRIED_RANKS = (2, 1, 3, 4, 0)
"""Numbers of axes tried if a model leaves them open, and for the elements of sequences."""
TOO_LARGE = ("Maximum allowed dimension", "Failed to allocate memory", "bad_alloc")
"""Texts of numpy's and onnxruntime's errors for sizes beyond the memory, in addition to MemoryError."""


class TooFar(CheckFailed):
    """An output differs by more than the tolerance."""


class Disagreement(CheckFailed):
    """A saved file differs from the original on these inputs. ``alone``: how its kernels and parts compare there, if known."""

    def __init__(self, error: CheckFailed, feeds: Mapping[str, Any], alone: Blame | None = None) -> None:
        super().__init__(f"{error.what}; {alone}" if alone else error.what, where=error.where, fix=error.fix)
        self.feeds, self.alone = feeds, alone


class NoInputs(ModelError):
    """The original model runs on none of the random inputs that were tried."""


@dataclass(frozen=True)
class CheckResult:
    """The difference between the saved files and the original over all compared outputs."""

    inputs: int
    max_rel_err: float
    worst_output: str
    amplified: tuple[str, ...] = ()
    """Errors above the tolerance that were accepted, in words."""
    weak: tuple[str, ...] = ()
    """Outputs that hardly depend on the inputs, in words."""
    is_short: bool = False
    """Whether there was no time for all inputs."""
    given: int = 0
    """Number of the inputs that are the user's own."""
    refused: tuple[str, ...] = ()
    """Random inputs that the original does not run on, in words."""

    def __str__(self) -> str:
        """Return ``2 random inputs``, or ``1 given and 2 random inputs``."""
        drawn = self.inputs - self.given
        return " and ".join([f"{self.given} given"] * (self.given > 0) + [f"{drawn} random"] * (drawn > 0 or not self.given)) + " inputs"


def open_original(model: Path, threads: int, *, optimise: bool = True) -> Any:
    """Open the user's own model; raises ModelError if onnxruntime, the reference, refuses it."""
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

    ``ran`` is called with the accepted inputs, which ``check`` begins with, and their outputs.

    Raises ModelError if onnxruntime cannot run the original on any inputs, or if its outputs are random.
    """
    ranges, numbers = integer_ranges(graph.roots, graph.tensors), compared_numbers(graph.roots, graph.tensors)
    tried: list[Mapping[Node, tuple[int, int]]] = [ranges, dict.fromkeys(graph.inputs, FLAGS), dict.fromkeys(graph.inputs, (0, 0))]
    tried += [{**ranges, **numbers}] if numbers else []
    problem: Exception | None = None
    shapes = [node.type.shape for node in graph.inputs]
    has_open_ranks = None in shapes
    is_dynamic = has_open_ranks or any(isinstance(size, str) for shape in shapes for size in shape or ())
    for size, is_single, rank, intervals in product(
        TRIED_SIZES if is_dynamic else TRIED_SIZES[:1], (True, False) if is_dynamic else (True,),
        TRIED_RANKS if has_open_ranks else TRIED_RANKS[:1], tried,
    ):  # fmt: skip
        specs = tuple(
            _spec(
                node,
                tuple(
                    _size(value, axis, 1 if is_single else size, size)
                    for axis, value in enumerate(("",) * rank if node.type.shape is None else node.type.shape)
                ),
                intervals.get(node, FLAGS),
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
    message = " ".join(str(problem).split())
    if isinstance(problem, MemoryError) or any(text in message for text in TOO_LARGE):
        sizes = ", ".join(f"{spec.name}: {'x'.join(map(str, spec.shape))}" for spec in specs)
        raise NoInputs(
            f"the model does not fit into memory at these sizes: {message}", where=sizes, fix="give smaller ones: --shape NAME:SIZES"
        )
    fix = "give the sizes of dynamic inputs with --shape NAME:SIZES" if is_dynamic else "check that onnxruntime runs it at these sizes"
    raise NoInputs(
        f"onnxruntime cannot run the original model on random inputs: {message}",
        fix=f"{fix}; python -m egraph.optimize MODEL --inputs FILE.npz takes inputs of your own",
    )


def refuse_if_random(session: Any, feeds: Mapping[str, Any], results: Sequence[Any]) -> None:
    """Raise ModelError if the same inputs give other outputs the second time, because nothing can be compared with them."""
    for output, first, second in zip(session.get_outputs(), results, session.run(None, feeds), strict=True):
        try:
            compare(first, second, Tolerance(), where=output.name)
        except CheckFailed as error:
            raise ModelError(
                "the original model gives other outputs each time: it draws random numbers, so nothing can be compared with it",
                where=f"output {output.name!r}",
                fix="make what the random operators draw an input of the model, or take them out (export for inference)",
            ) from error


def _spec(node: Node, shape: tuple[int, ...], interval: tuple[int, int]) -> FeedSpec:
    low, high = interval
    return FeedSpec(node.string("name"), node.type.dtype, shape, high + 1, low=low)


def _size(value: int | str, axis: int, batch: int, size: int) -> int:
    if isinstance(value, int):
        return value
    return batch if axis == 0 else size


@dataclass
class _Comparison:
    """The reference that saved files are compared with, and the results so far."""

    reference: RunModel
    candidates: Mapping[str, RunModel]
    output_names: Sequence[str]
    specs: tuple[FeedSpec, ...]
    tolerance: Tolerance
    seed: int
    plain: RunModel | None
    plain_moved: RunModel | None
    in_float64: RunOutput | None
    vouch: Callable[[Mapping[str, Any]], Blame] | None
    given: int
    spread: Spread
    worst_output: str = ""
    worst_error: float = -1.0
    amplified: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)

    def answer(self, feeds: Mapping[str, Any]) -> Sequence[Any] | None:
        """Return the original's outputs on random inputs, or None if it refuses them: it may need values that no range expresses."""
        try:
            return self.reference(feeds)
        except Exception as error:  # onnxruntime raises a class a status; every one means "not these inputs"
            self.refusals.append(" ".join(str(error).split()))
            return None

    def drawn(self, number: int, values: Values) -> dict[str, np.ndarray]:
        return random_feeds([replace(spec, values=values) for spec in self.specs], self.seed + number)

    def compare_on(self, name_of_input: str, feeds: Mapping[str, Any], expected: Sequence[Any], *, may_replace: bool) -> bool:
        """Compare on one input; return whether it is conclusive. It is not if the model amplifies rounding there too much."""
        noise = Noise(self.plain, feeds, self.seed, self.plain_moved, self.in_float64) if self.plain else None
        is_conclusive = True
        self.spread.add(expected)
        for file, run in self.candidates.items():
            try:
                outputs = run(feeds)
            except Exception as error:
                failed = CheckFailed(f"{file} does not run: {type(error).__name__}: {error}", where=f"{file}, {name_of_input}")
                raise Disagreement(failed, feeds) from error
            for position, (name, expected_output, actual) in enumerate(zip(self.output_names, expected, outputs, strict=True)):
                where = f"{file}, output {name!r}, {name_of_input}"
                try:
                    relative = compare(expected_output, actual, self.tolerance, where=where)
                except TooFar as error:
                    measured_noise = noise.of(position, expected_output, actual, self.tolerance) if noise else UNKNOWN
                    alone = self.vouch(feeds) if noise and self.vouch else None
                    reason = self._accepted(error, name, feeds, measured_noise, alone, may_replace=may_replace)
                    if isinstance(reason, Disagreement):
                        is_conclusive = False
                        self.amplified.append(f"{where}: another input takes its place, as this one tells nothing: {reason.what}")
                        break
                    relative = relative_error(expected_output, actual)
                    self.amplified.append(f"{where}: accepted although {relative:.2g} is above the tolerance{reason}")
                except CheckFailed as error:
                    raise Disagreement(error, feeds) from error
                if relative > self.worst_error:
                    self.worst_output, self.worst_error = name, relative
        return is_conclusive

    def _accepted(
        self, error: TooFar, name: str, feeds: Mapping[str, Any], noise: MeasuredNoise, alone: Blame | None, *, may_replace: bool
    ) -> str | Disagreement:
        """Return in words why an error above the tolerance is accepted, or a Disagreement if the input is not conclusive.

        Raises Disagreement if the program is wrong, or if the input is not conclusive and may not be replaced.
        """
        if alone and alone.noise.get(name, 0.0) > noise.noise:
            noise = replace(noise, noise=alone.noise[name], is_before_bytes=True)
        failure = Disagreement(CheckFailed(f"{error.what}{noise}", where=error.where, fix=error.fix), feeds, alone)
        alone = alone or Blame()
        if alone.kernels or not noise.explains:
            raise failure from error
        parts = "" if noise.is_accepted else agreement(alone)
        if noise.is_accepted or parts:
            return f"{noise}{parts}"
        if not may_replace:
            raise failure from error
        return failure

    def result(self, compared: int, *, is_short: bool) -> CheckResult:
        """Return the result of the comparison on this many inputs."""
        texts = self.refusals[:1]
        left_out = tuple(f"random inputs left out, as the original does not run on them: {len(self.refusals)} ({text})" for text in texts)
        return CheckResult(
            compared, max(self.worst_error, 0.0), self.worst_output, tuple(self.amplified), self.spread.notes(), is_short, self.given,
            left_out,
        )  # fmt: skip


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
    plain_moved: RunModel | None = None,
    in_float64: RunOutput | None = None,
    vouch: Callable[[Mapping[str, Any]], Blame] | None = None,
    most_replaced: int = CheckPolicy.replaced,
) -> CheckResult:
    """Compare each saved file (by name) with the reference on ``count`` inputs; raises Disagreement.

    All ``given`` inputs, with their names, come first. Random ones follow, unless the model runs on none (``is_random`` is false). After
    the given ones, ``goes_on`` is asked before each input whether there is time for another.

    ``plain`` runs the original without optimisations; without it, no error above the tolerance is accepted. ``plain_moved`` does the same
    with weights changed in their last bit. ``in_float64`` computes an output more exactly than both: a program within the tolerance of it
    is right even if onnxruntime is not. ``vouch`` compares the kernels and the parts of the program alone on given inputs.
    """
    comparison = _Comparison(
        reference, candidates, output_names, specs, tolerance, seed, plain, plain_moved, in_float64, vouch, len(given),
        Spread(output_names, tolerance),
    )  # fmt: skip
    for name, feeds in given:
        comparison.compare_on(f"the inputs of {name}", feeds, reference(feeds), may_replace=False)
    if not is_random:
        return comparison.result(len(given), is_short=False)
    if given and not goes_on(len(given)):
        return comparison.result(len(given), is_short=len(given) < count)
    refusals = comparison.refusals
    number = replaced = 0
    while number < count - len(given) + replaced + len(refusals):
        values = VALUES[number % len(VALUES)]
        feeds = comparison.drawn(number, values)
        expected = comparison.answer(feeds)
        number += 1
        if expected is None:
            if len(refusals) > most_replaced:
                break
            continue
        is_conclusive = comparison.compare_on(
            f"random input {number - 1} ({values})", feeds, expected, may_replace=replaced < most_replaced
        )
        del feeds, expected
        replaced += not is_conclusive
        has_conclusive = number - len(refusals) > replaced or bool(given)
        if has_conclusive and not goes_on(len(given) + number - len(refusals)):
            return comparison.result(len(given) + number - len(refusals), is_short=True)
    compared = len(given) + number - len(refusals)
    if not compared:
        what = f"onnxruntime cannot run the original model on random inputs: {refusals[0]}"
        raise NoInputs(what, fix="give inputs of your own: --inputs FILE.npz")
    return _compared_further(comparison, compared, number, goes_on)


def _compared_further(comparison: _Comparison, compared: int, number: int, goes_on: Callable[[int], bool]) -> CheckResult:
    """Compare on inputs of other magnitudes, too, if outputs hardly depend on the inputs; ``number``: of the next random input."""
    spread = comparison.spread
    if compared == 1:
        another_answer = comparison.answer(comparison.drawn(1, VALUES[0]))
        if another_answer is not None:
            spread.add(another_answer)
    if spread.weak and any(spec.is_float for spec in comparison.specs):
        for another, values in enumerate(OTHER_VALUES, start=number):
            if not goes_on(compared):
                return comparison.result(compared, is_short=True)
            feeds = comparison.drawn(another, values)
            expected = comparison.answer(feeds)
            if expected is not None and all(is_finite(value) for value in expected):  # a model may be undefined for such inputs
                comparison.compare_on(f"random input {another} ({values})", feeds, expected, may_replace=True)
                compared += 1
    return comparison.result(compared, is_short=False)


def agreement(alone: Blame) -> str:
    """Return in words that the parts of a program agree; empty if they do not or there are none."""
    return f"; {alone.parts}" if alone.parts.agree else ""


def is_finite(value: Any) -> bool:
    """Return whether all elements of a float output are finite; other outputs always are."""
    return not isinstance(value, np.ndarray) or value.dtype.kind not in "fc" or bool(np.isfinite(value).all())


def compare(expected: Any, actual: Any, tolerance: Tolerance, *, where: str) -> float:
    """Return the relative error of an output; raises CheckFailed if it is too large or the output is of another kind."""
    if expected is None and actual is None:
        return 0.0
    if isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        pairs = enumerate(zip(expected, actual, strict=True))
        return max([compare(w, g, tolerance, where=f"{where}[{i}]") for i, (w, g) in pairs], default=0.0)
    if expected is None or actual is None or isinstance(expected, list) or isinstance(actual, list):
        raise CheckFailed("the output is of another kind than the original's", where=where)
    expected, actual = np.asarray(expected), np.asarray(actual)
    if expected.shape != actual.shape or expected.dtype != actual.dtype:
        must = f"{expected.dtype}{list(expected.shape)}"
        raise CheckFailed(f"the output is {actual.dtype}{list(actual.shape)}, it must be {must}", where=where)
    if not _is_floating(expected.dtype):
        if not np.array_equal(expected, actual):
            raise CheckFailed(f"{int(np.sum(expected != actual))} of {expected.size} elements differ", where=where)
        return 0.0
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    difference, magnitude = 0.0, 0.0
    for start in range(0, expected.size, PART):  # outputs may be larger than the memory that is left
        part = slice(start, start + PART)
        off, size = _difference(expected.reshape(-1)[part].astype(wide), actual.reshape(-1)[part].astype(wide), where)
        difference, magnitude = max(difference, off), max(magnitude, size)
    accepted = tolerance.relative + 2 * UNIT_ROUNDOFF.get(expected.dtype.name, 0.0)  # both are rounded: they may differ in the last place
    is_related = difference > tolerance.absolute or difference <= accepted * magnitude
    relative = difference / magnitude if is_related and magnitude > 0 else difference  # near zero, the absolute error counts
    if difference > tolerance.absolute + accepted * magnitude:
        raise TooFar(
            f"the largest error is {difference:.3g} where the output's largest magnitude is {magnitude:.3g} "
            f"({relative:.3g} relative; accepted: {accepted:g} relative plus {tolerance.absolute:g})",
            where=where,
            fix="python -m egraph.inspect names the rules behind an output; --allow exact or --skip-rule NAME leaves rules out, "
            "--tolerance REL,ABS accepts more",
        )
    return relative


def _difference(expected: np.ndarray, actual: np.ndarray, where: str) -> tuple[float, float]:
    """Return the largest difference and magnitude of finite values; raises CheckFailed if NaN or infinities differ."""
    finite = np.isfinite(expected)
    if not np.array_equal(np.isnan(expected), np.isnan(actual)) or not np.array_equal(finite, np.isfinite(actual)):
        raise CheckFailed("NaN or infinity at other places than in the original", where=where)
    infinite = ~finite & ~np.isnan(expected)
    if not np.array_equal(expected[infinite], actual[infinite]):
        raise CheckFailed("infinities of the other sign than in the original", where=where)
    if not finite.any():
        return 0.0, 0.0
    return float(np.max(np.abs(expected[finite] - actual[finite]))), float(np.max(np.abs(expected[finite])))


def _is_floating(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "fc" or dtype.name.startswith(("bfloat16", "float8", "float4", "float6"))
