"""Plan the sizes that ``--shape`` gives: which sizes of a model vary, which axes have them, and which numbers are planned.

A size between planned ones is padded to the larger one if this is proved right and pays, else it is left to onnxruntime.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from pathlib import Path

import onnx

from egraph.errors import EinsatError, ModelError
from egraph.onnx import importer
from egraph.onnx.importer.model_file import read_model
from egraph.onnx.types import from_proto
from egraph.optimize.options import ANY, Choice, Options, SizeRequest, choice_text, is_several
from egraph.optimize.outcome import Outcome
from egraph.optimize.padding import Padding
from egraph.optimize.progress import Progress
from egraph.tensor import Graph, TensorType
from runtime.sizes import Padded

MOST_BUCKETS = 64
"""Largest number of planned sizes of one artefact, counting all combinations: each takes a search."""
ROUND_PARTS = 8
"""Planned sizes inside a range are multiples of a power of two of at most this part of them, so that rows end with whole vectors."""


def spread(span: range, count: int) -> tuple[int, ...]:
    """Return the planned sizes of a range, in geometric steps from its first to its last."""
    if len(span) <= count:
        return tuple(span)
    low, high = span[0], span[-1]
    sizes = [low]
    for step in range(1, count - 1):
        size = _rounded(low * (high / low) ** (step / (count - 1)))
        sizes.append(min(max(size, sizes[-1] + 1), high - (count - 1 - step)))
    return (*sizes, high)


def _rounded(size: float) -> int:
    unit = 1
    while 2 * unit * ROUND_PARTS <= size:
        unit *= 2
    return max(1, round(size / unit)) * unit


@dataclass(frozen=True)
class Varied:
    """A size that varies from run to run, and the axes of inputs that have it."""

    name: str
    choice: Choice
    axes: tuple[tuple[str, int], ...]

    def planned(self, count: int) -> tuple[int, ...]:
        return tuple(sorted({size for span in self.choice for size in spread(span, count)}))


@dataclass(frozen=True)
class SizePlan:
    """The sizes of one model that ``--shape`` gives. ``inputs``: the axes of inputs with given sizes, as numbers or as names that vary."""

    varied: tuple[Varied, ...]
    inputs: Mapping[str, tuple[int | str, ...]]
    types: Mapping[str, TensorType]
    """The types of all inputs, as the model states them."""

    def shapes(self, point: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """Return the sizes of inputs at a point."""
        return {name: tuple(point[size] if isinstance(size, str) else size for size in sizes) for name, sizes in self.inputs.items()}

    def is_between(self, point: Mapping[str, int]) -> bool:
        """Return whether a size of a point lies inside a range, so that the user did not name it as a number."""
        return any(span[0] < point[each.name] < span[-1] for each in self.varied for span in each.choice if span)

    def points(self, count: int) -> tuple[dict[str, int], ...]:
        """Return all combinations of planned sizes in ascending order; raises ModelError if there are too many."""
        planned = [each.planned(count) for each in self.varied]
        combinations = tuple(dict(zip((each.name for each in self.varied), sizes, strict=True)) for sizes in product(*planned))
        if len(combinations) > MOST_BUCKETS:
            each = " x ".join(f"{len(sizes)} of {varied.name}" for varied, sizes in zip(self.varied, planned, strict=True))
            raise ModelError(
                f"{len(combinations)} combinations of sizes would be planned ({each}); at most {MOST_BUCKETS} can be",
                where="--shape", fix="give fewer sizes, or --buckets a smaller number",
            )  # fmt: skip
        return combinations


def size_plan(options: Options, model: onnx.ModelProto) -> SizePlan:
    """Return the plan for a model's inputs; raises ModelError if ``--shape`` does not fit them."""
    explicit: dict[str, tuple[Choice, ...]] = {name: tuple((range(n, n + 1),) for n in shape) for name, shape in options.shapes.items()}
    explicit |= options.size_request.inputs
    types = _input_types(model, explicit)
    for name, choices in explicit.items():
        _check_input(name, choices, types)
    named = _named(explicit, options.size_request.names, types)
    varied: dict[tuple[str, Choice], list[tuple[str, int]]] = {}
    inputs: dict[str, tuple[int | str, ...]] = {}
    for name, type in types.items():
        declared: tuple[int | str, ...] = type.shape or ()
        axes_choices = [
            explicit[name][axis] if name in explicit else named.get(size) if isinstance(size, str) else None
            for axis, size in enumerate(declared)
        ]
        if not any(axes_choices):
            continue
        sizes: list[int | str] = []
        for axis, (size, choice) in enumerate(zip(declared, axes_choices, strict=True)):
            if choice is None and isinstance(size, str):
                raise ModelError(
                    f"the size {size!r} of the input {name!r} is open", where=f"--shape, input {name}:{_shape_text(type)}",
                    fix=f"give it a number too: --shape {size}=NUMBER",
                )  # fmt: skip
            if choice is None or not is_several(choice):
                sizes.append(int(size) if choice is None else choice[0].start)
                continue
            is_named = isinstance(size, str) and size != f"{name}_{axis}"
            key = (str(size) if is_named else "", choice)
            axes = varied.setdefault(key, [])
            axes.append((name, axis))
            sizes.append(key[0] or f"{axes[0][0]}_{axes[0][1]}")
        inputs[name] = tuple(sizes)
    several = tuple(Varied(key[0] or f"{axes[0][0]}_{axes[0][1]}", key[1], tuple(axes)) for key, axes in varied.items())
    if len({each.name for each in several}) < len(several):
        raise ModelError(
            f"two sizes have one name: {', '.join(sorted(each.name for each in several))}", where="--shape",
            fix="give one of them a single number, or rename the sizes in the model",
        )  # fmt: skip
    return SizePlan(several, inputs, types)


def _input_types(model: onnx.ModelProto, explicit: Collection[str]) -> dict[str, TensorType]:
    """Return the types of inputs as the model states them; inputs with an initializer are included only if ``--shape`` names them."""
    initial = {tensor.name for tensor in model.graph.initializer} - set(explicit)
    return {value.name: from_proto(value.type, value.name) for value in model.graph.input if value.name not in initial}


BATCH: Choice = (range(1, 2), ANY)
"""Planned sizes of a batch without a given size: 1, the batch of users who wait for each result."""


def with_open_batch(options: Options) -> Options:
    """Return options with ``BATCH`` for the batch if model and options leave nothing else open.

    A batch is the first axis of inputs of which at least one has more axes; the only axis of an input is its length.
    """
    request = options.size_request
    if options.shapes or request.inputs or options.inputs:
        return options
    axes: dict[str, list[tuple[int, int]]] = {}
    for type in _input_types(read_model(options.model)[0], ()).values():
        if type.shape is None:
            return options
        for axis, size in enumerate(type.shape):
            if isinstance(size, str) and size not in request.names:
                axes.setdefault(size, []).append((axis, len(type.shape)))
    if any(any(axis for axis, _ in places) or all(rank == 1 for _, rank in places) for places in axes.values()):
        return options
    return replace(options, size_request=replace(request, names={**request.names, **dict.fromkeys(axes, BATCH)}))


def _shape_text(type: TensorType) -> str:
    return ",".join(map(str, type.shape or ()))


def _check_input(name: str, choices: Sequence[Choice], types: Mapping[str, TensorType]) -> None:
    where = f"--shape {name}:{','.join(map(choice_text, choices))}"
    if name not in types:
        fix = f"use one of its inputs: {', '.join(types) or '(it has none)'}"
        raise ModelError(f"the model has no input {name!r}", where=where, fix=fix)
    shape = types[name].shape
    if shape is None:
        what = f"the model does not say how many axes the input {name!r} has"
        raise ModelError(what, where=where, fix="give one number for each of its axes: several sizes take a model that says")
    if len(shape) != len(choices):
        raise ModelError(f"the input {name!r} has {len(shape)} axes, not {len(choices)}", where=where,
                         fix=f"give --shape {name}:{_shape_text(types[name])} with numbers or ranges for names")  # fmt: skip


def _named(
    explicit: Mapping[str, Sequence[Choice]], names: Mapping[str, Choice], types: Mapping[str, TensorType]
) -> dict[str, Choice]:
    """Return the sizes of names, including those given by an input's sizes; raises ModelError if two disagree."""
    names_of_sizes = {size for type in types.values() for size in type.shape or () if isinstance(size, str)}
    for name, choice in names.items():
        if name not in names_of_sizes:
            raise ModelError(
                f"no input has a size {name!r}", where=f"--shape {name}={choice_text(choice)}",
                fix=f"use one of the names {', '.join(sorted(names_of_sizes)) or '(there are none)'}, or --shape INPUT:SIZES",
            )  # fmt: skip
    result = dict(names)
    for name, choices in explicit.items():
        for size, choice in zip(types[name].shape or (), choices, strict=True):
            if isinstance(size, str) and result.setdefault(size, choice) != choice:
                raise ModelError(
                    f"the size {size!r} is given as {choice_text(result[size])} and as {choice_text(choice)}",
                    where=f"--shape, input {name!r}", fix=f"give {size!r} the same sizes everywhere",
                )  # fmt: skip
    return result


def with_shapes(options: Options) -> Options:
    """Return options whose sizes by name are replaced by sizes of inputs; each has exactly one planned number."""
    request = options.size_request
    if not (request.names or request.inputs):
        return options
    plan = size_plan(options, read_model(options.model)[0])
    (point,) = plan.points(request.buckets)
    return replace(options, shapes={**options.shapes, **plan.shapes(point)}, size_request=SizeRequest())


def point_text(point: Mapping[str, int]) -> str:
    return ",".join(f"{name}={size}" for name, size in point.items())


PROOF_SHARE = 0.05
"""Part of the budget that is kept for proofs that sizes between may be padded; sizes that are not proved in it are not padded."""


@dataclass(frozen=True)
class Gap:
    """Neighbouring sizes between two planned ones that run the same way: ``padded`` to the larger one, or in onnxruntime.

    ``point`` is the larger planned one. ``size`` is the position of the size that the gap is in, as in ``Padded``.
    """

    names: tuple[str, ...]
    size: int
    low: int
    high: int
    point: tuple[int, ...]
    why: str
    padded: Padded | None = None

    @property
    def middle(self) -> dict[str, int]:
        return {**self._large, self.names[self.size]: (self.low + self.high) // 2}

    @property
    def _large(self) -> dict[str, int]:
        return dict(zip(self.names, self.point, strict=True))

    def describe(self) -> dict[str, str]:
        """Return in words which sizes these are, what runs them, and the reason."""
        numbers = f"{self.low}..{self.high}" if self.low < self.high else str(self.low)
        sizes = ",".join(f"{n}={numbers if i == self.size else self.point[i]}" for i, n in enumerate(self.names))
        return {"sizes": sizes, "runs": point_text(self._large) if self.padded else ONNXRUNTIME, "why": self.why}


ONNXRUNTIME = "onnxruntime"
MOST_PROOFS = 64
"""Largest number of sizes below a planned one that are proved, so that the same command pads the same sizes unless time is short."""
SLOWER = "the program for {} takes longer than onnxruntime at these sizes, by its times at the planned ones"


def find_gaps(
    plan: SizePlan, points: Sequence[Mapping[str, int]], outcomes: Mapping[str, Outcome], options: Options, progress: Progress
) -> tuple[Gap, ...]:
    """Decide for each size between neighbouring planned ones whether it is padded."""
    ends_seconds = progress.spent_seconds + PROOF_SHARE * options.budget_seconds
    names = tuple(varied.name for varied in plan.varied)
    prover = _Prover(plan, options.model, lambda: progress.spent_seconds < ends_seconds)
    gaps: list[Gap] = []
    for size, name in enumerate(names):
        lines: dict[tuple[int, ...], list[Mapping[str, int]]] = {}
        for point in points:
            lines.setdefault(tuple(number for other, number in point.items() if other != name), []).append(point)
        for line in lines.values():
            for low, high in pairwise(line):
                if high[name] - low[name] > 1:
                    gap = Gap(names, size, low[name] + 1, high[name] - 1, tuple(high.values()), "")
                    gaps += _ways(gap, low, high, outcomes, prover)
                    progress.update(f"{gaps[-1].describe()['sizes']}: {gaps[-1].describe()['runs']}")
    return tuple(gaps)


def _ways(
    gap: Gap, low: Mapping[str, int], high: Mapping[str, int], outcomes: Mapping[str, Outcome], prover: _Prover
) -> list[Gap]:
    """Return the parts of a gap; the padded one is last, next to the larger planned size."""
    large = outcomes[point_text(high)]
    if large.status == "unchanged":
        return [replace(gap, why=f"at {point_text(high)}, no program measured faster")]
    least = _least_paying(gap, outcomes[point_text(low)], large)
    if least > gap.high:
        return [replace(gap, why=SLOWER.format(point_text(high)))]
    first, outputs, refusal = prover.proved(gap, least, high)
    padded = Padded(gap.size, first, gap.high, gap.point, outputs)
    parts = [
        replace(gap, high=least - 1, why=SLOWER.format(point_text(high))),
        replace(gap, low=least, high=first - 1, why=refusal),
        replace(gap, low=first, padded=padded, why="proved: no row that is kept reads an added one"),
    ]
    return [part for part in parts if part.low <= part.high]


def _least_paying(gap: Gap, small: Outcome, large: Outcome) -> int:
    """Return the smallest size at which the larger program is faster than onnxruntime, whose times are interpolated between both ends."""
    times = (small.latency_us["onnxruntime"], large.latency_us["onnxruntime"], large.latency_us["optimized"])
    if any(time_us is None for time_us in times):
        return gap.low
    low_us, high_us, program_us = (time_us or 0.0 for time_us in times)
    count = gap.high - gap.low + 2
    paying = (gap.low + n - 1 for n in range(1, count) if program_us < low_us + (high_us - low_us) * n / count)
    return next(paying, gap.high + 1)


@dataclass
class _Prover:
    """Proves for sizes one by one, from the largest down, that they may be padded, while there is time."""

    plan: SizePlan
    model: Path
    goes_on: Callable[[], bool]
    padding: Padding = field(default_factory=Padding)

    def proved(self, gap: Gap, least: int, high: Mapping[str, int]) -> tuple[int, tuple[tuple[str, int], ...], str]:
        """Return the smallest proved size at the end of a gap, the axes of outputs with the size, and why no smaller ones are proved."""
        large: Graph | None = None
        name, outputs = gap.names[gap.size], None
        for number in range(gap.high, least - 1, -1):
            if not self.goes_on():
                return number + 1, outputs or (), "not proved to be right when padded: no time was left for proofs"
            if gap.high - number >= MOST_PROOFS:
                return number + 1, outputs or (), f"not proved to be right when padded: {MOST_PROOFS} sizes next to a planned one are"
            try:
                large = large or self._graph(high)
                small = self._graph({**high, name: number})
            except EinsatError as error:
                return number + 1, outputs or (), f"the model cannot be read at {name}={number}: {error.what}"
            refusal = self.padding.refusal(small, large)
            axes = _axes_of(small, large, number, high[name])
            if refusal or axes is None or outputs not in (None, axes):
                return number + 1, outputs or (), f"padding is not proved to be right: {refusal or 'the size of an output is another one'}"
            outputs = axes
        return least, outputs or (), ""

    def _graph(self, point: Mapping[str, int]) -> Graph:
        return importer.load(self.model, shapes=self.plan.shapes(point)).graph


def _axes_of(small: Graph, large: Graph, number: int, planned: int) -> tuple[tuple[str, int], ...] | None:
    """Return the axes of outputs that have the varying size, or None if an axis varies with another size."""
    axes = []
    for (name, small_output), (_, large_output) in zip(small.outputs, large.outputs, strict=True):
        for axis, sizes in enumerate(zip(small_output.type.shape or (), large_output.type.shape or (), strict=True)):
            if sizes[0] != sizes[1]:
                if sizes != (number, planned):
                    return None
                axes.append((name, axis))
    return tuple(axes)
