"""Plan for several sizes: one artefact with a plan for each, their weights once, and the model as it was given for all others.

1. ``--shape`` and the model's inputs give the sizes that vary: axes of one name are one size.
2. Of a range, ``--buckets`` numbers are planned, in geometric steps; of a list, each.
3. Each planned size is a run of the whole driver in a staging folder, the largest first, then the smallest: search, race and check
   as for one size. What one measures, the profile database gives the next; what is left of the budget is divided over those that
   are left. Those for which nothing is left are not planned.
4. Their artefacts become folders of one. Constants lie once in its weights file, the original model's among them.
5. A size between is padded to the next planned one where that is proved to be right for it, and measured to pay. Every other size,
   and a planned one whose run kept the model unchanged, is left to onnxruntime.
6. A session of the whole is compared with onnxruntime at each planned size and between, before anything is renamed into place.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from egraph.errors import EinsatError, ModelError
from egraph.onnx import importer
from egraph.onnx.importer.model_file import read_model, to_array
from egraph.onnx.importer.resizing import give_sizes
from egraph.onnx.types import from_proto, tensor_digest
from egraph.optimize import interruption, original
from egraph.optimize.artefact import MANIFEST
from egraph.optimize.check import NoInputs, check, find_feeds, open_original
from egraph.optimize.options import Choice, Options, choice_text, is_several
from egraph.optimize.outcome import Outcome
from egraph.optimize.output import destination, publish, staging
from egraph.optimize.padding import Padding
from egraph.optimize.pipeline import optimize
from egraph.optimize.progress import Progress
from egraph.tensor import Graph, Node, TensorType, attributes, make
from lower.compile import PLAN, WEIGHTS, compile_model
from lower.targets import lowering
from lower.weights import NAMES, write_weights
from runtime import Session
from runtime.errors import InvalidArgument
from runtime.input_file import Declared, read_inputs
from runtime.sizes import FOLDER, SIZES, Bucket, Padded, Size, Sizes
from runtime.weights import Weights

MOST_BUCKETS = 64
"""Planned sizes of one artefact, all combinations counted: each takes a search."""
ROUND_PARTS = 8
"""Planned sizes inside a range are multiples of a power of two that is at most this part of them: rows end with whole vectors."""
LEAST_SHARED_BYTES = 1024
"""Constants of the original model from this size on lie in the weights file; smaller ones stay in the model."""
LEAST_SECONDS = 1.0
"""A size for which less of the budget is left is not planned."""
CHECK_SHARE = 0.03
"""Part of the budget that is kept for what comes after the last search: putting the artefact together, and the check of it."""
PROOF_SHARE = 0.05
"""Part of the budget that is kept for proofs that sizes between may be padded; sizes that it does not suffice for are not."""
ORIGINAL_MODEL = "original.onnx"
"""The model as it was given, in the artefact's main folder: its constants lie in the weights file beside it."""


def spread(span: range, count: int) -> tuple[int, ...]:
    """Return the sizes of a range that are planned, in geometric steps from its first to its last."""
    low, high = span[0], span[-1]
    if len(span) <= count:
        return tuple(span)
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
    """A size that differs from run to run, and the axes of inputs that have it."""

    name: str
    choice: Choice
    axes: tuple[tuple[str, int], ...]

    def planned(self, count: int) -> tuple[int, ...]:
        return tuple(sorted({size for span in self.choice for size in spread(span, count)}))


@dataclass(frozen=True)
class Question:
    """What ``--shape`` asks for, of this model. ``inputs``: the axes of inputs that have given sizes: numbers, and names that vary."""

    varied: tuple[Varied, ...]
    inputs: Mapping[str, tuple[int | str, ...]]
    types: Mapping[str, TensorType]
    """The types of all inputs, as the model states them."""

    def shapes(self, point: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """Return the sizes of inputs at a point."""
        return {name: tuple(point[size] if isinstance(size, str) else size for size in sizes) for name, sizes in self.inputs.items()}

    def points(self, count: int) -> tuple[dict[str, int], ...]:
        """Return the planned points in ascending order, all combinations; raises ModelError where there are too many."""
        planned = [each.planned(count) for each in self.varied]
        found = tuple(dict(zip((each.name for each in self.varied), sizes, strict=True)) for sizes in product(*planned))
        if len(found) > MOST_BUCKETS:
            each = " x ".join(f"{len(sizes)} of {varied.name}" for varied, sizes in zip(self.varied, planned, strict=True))
            raise ModelError(
                f"{len(found)} combinations of sizes would be planned ({each}); at most {MOST_BUCKETS} can be",
                where="--shape", fix="give fewer sizes, or --buckets a smaller number",
            )  # fmt: skip
        return found


def question(options: Options, model: onnx.ModelProto) -> Question:
    """Return what is asked of a model's inputs; raises ModelError where that does not fit them."""
    initial = {tensor.name for tensor in model.graph.initializer}
    types = {value.name: from_proto(value.type, value.name) for value in model.graph.input}
    explicit: dict[str, tuple[Choice, ...]] = {name: tuple((range(n, n + 1),) for n in shape) for name, shape in options.shapes.items()}
    explicit |= options.asked.inputs
    types = {name: type for name, type in types.items() if name not in initial or name in explicit}
    for name, choices in explicit.items():
        _check_input(name, choices, types)
    named = _named(explicit, options.asked.names, types)
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
    return Question(several, inputs, types)


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
    """Return the sizes of names, also those that an input's sizes give; raises ModelError where two disagree."""
    known = {size for type in types.values() for size in type.shape or () if isinstance(size, str)}
    for name, choice in names.items():
        if name not in known:
            raise ModelError(
                f"no input has a size {name!r}", where=f"--shape {name}={choice_text(choice)}",
                fix=f"use one of the names {', '.join(sorted(known)) or '(there are none)'}, or --shape INPUT:SIZES",
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
    """Return options whose sizes by name are sizes of inputs; there is one of each."""
    if not options.asked.names:
        return options
    asked = question(options, read_model(options.model)[0])
    return replace(options, shapes={**options.shapes, **asked.shapes({})})


@dataclass(frozen=True)
class Given:
    """Inputs of the user's own, and the sizes that they have."""

    file: Path
    feeds: Mapping[str, np.ndarray]
    point: Mapping[str, int]


def _given(asked: Question, options: Options) -> tuple[Given, ...]:
    """Read the user's inputs; raises ModelError where they do not fit the model and what ``--shape`` says of its sizes."""
    declared = [Declared(name, type.dtype, asked.inputs.get(name, type.shape)) for name, type in asked.types.items()]
    sizes = Sizes(tuple(Size(varied.name, varied.axes, "") for varied in asked.varied), ())
    result = []
    for file in options.inputs:
        try:
            feeds = read_inputs(file, declared, shape_fix="save arrays of these sizes, or give --shape others")
        except InvalidArgument as error:
            raise ModelError(error.what, where=f"--inputs {error.where}", fix=error.fix) from error
        point = sizes.point(feeds)
        if point is None:
            what = f"inputs that share a size ({', '.join(size.name for size in sizes.sizes)}) have different ones"
            raise ModelError(what, where=f"--inputs {file}", fix="save arrays that agree")
        result.append(Given(file, feeds, _point(asked, point)))
    return tuple(result)


@dataclass(frozen=True)
class SizesOutcome:
    """What the runs for all planned sizes found out, in ascending order."""

    model: str
    sizes: Sizes
    outcomes: tuple[Outcome, ...]
    gaps: tuple[Gap, ...]
    checked: Mapping[str, float]
    """Sizes between that results were compared at, each with the largest relative error."""
    weights_bytes: int
    left_out: tuple[tuple[int, ...], ...] = ()
    """Sizes that would have been planned, had there been time."""
    files: tuple[str, ...] = ()
    seconds_total: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``--json`` prints."""
        return {
            "model": self.model,
            "sizes": {size.name: size.asked for size in self.sizes.sizes},
            "buckets": [
                {
                    "sizes": dict(zip((size.name for size in self.sizes.sizes), bucket.sizes, strict=True)),
                    "runs": "program" if bucket.has_program else "onnxruntime",
                    **outcome.to_json(),
                }
                for bucket, outcome in zip(self.sizes.buckets, self.outcomes, strict=True)
            ],
            "left_out": [dict(zip((size.name for size in self.sizes.sizes), sizes, strict=True)) for sizes in self.left_out],
            "others": "onnxruntime",
            "between": [gap.told() for gap in self.gaps],
            "checked_between": dict(self.checked),
            "weights_bytes": self.weights_bytes,
            "seconds_total": round(self.seconds_total, 3),
            "files": list(self.files),
        }


def optimize_sizes(options: Options, progress: Progress) -> SizesOutcome:
    """Optimise a model for several sizes and write one artefact; raises EinsatError, and then nothing is written."""
    place = destination(options.model, options.output)
    asked = question(options, read_model(options.model)[0])
    points = asked.points(options.asked.buckets)
    given = _given(asked, options)
    progress.note(f"{len(points)} sizes are planned: {'; '.join(map(_point_text, points))}")
    with staging(place) as stage:
        outcomes: dict[str, Outcome] = {}
        order = [points[-1], *points[:1], *reversed(points[1:-1])] if len(points) > 1 else list(points)
        for number, point in enumerate(order):
            seconds = (progress.left_seconds - (CHECK_SHARE + PROOF_SHARE) * options.budget_seconds) / (len(order) - number)
            if outcomes and seconds * (len(order) - number) < LEAST_SECONDS:
                break
            with interruption.unsettled():
                outcomes[_folder(point)] = _optimize_at(point, asked, options, progress, stage, max(LEAST_SECONDS, seconds), given)
        left_out = tuple(tuple(point.values()) for point in points if _folder(point) not in outcomes)
        points = tuple(point for point in points if _folder(point) in outcomes)
        progress.stage("prove that sizes between may be padded")
        gaps = _gaps(asked, points, outcomes, options, progress)
        progress.stage("put the sizes together")
        results = stage / "results"
        main = results / place.artefact.name
        model = _for_all_sizes(asked, points, options.model)
        sizes = _sizes(asked, points, outcomes, gaps)
        for bucket in sizes.buckets:
            if not bucket.has_program:
                _keep_report(stage / bucket.folder)
        main.mkdir(parents=True)
        (stage / FOLDER).rename(main / FOLDER)
        _write_model(model, options.model, results / place.model.name)
        weights_bytes = _put_together(main, asked, model, options, sizes)
        progress.stage("check the saved files")
        checked = _check_saved(main, asked, sizes, gaps, given, options, results / place.model.name)
        progress.update(f"also at {', '.join(checked)}: largest relative error {max(checked.values()):.2g}" if checked else "")
        _write_manifest(main, checked, gaps)
        progress.stage("write")
        files = tuple(str(path) for path in publish(results, place))
    found = tuple(outcomes[_folder(point)] for point in points)
    return SizesOutcome(options.model.name, sizes, found, gaps, checked, weights_bytes, left_out, files, progress.spent_seconds)


def _optimize_at(
    point: Mapping[str, int], asked: Question, options: Options, progress: Progress, stage: Path, seconds: float, given: Sequence[Given]
) -> Outcome:
    """Run the driver for one size, with its part of the time that is left."""
    told = _point_text(point)
    progress.note(f"--- {told} ({seconds:.0f} s of the budget)")
    part = Progress(progress.verbosity, seconds, time.monotonic(), options.budget_seconds)
    folder = stage / FOLDER / _folder(point)
    run = replace(
        options, shapes=asked.shapes(point), asked=type(options.asked)(), output=stage / "single" / f"{options.model.stem}.opt.onnx",
        budget_seconds=options.budget_seconds / len(asked.points(options.asked.buckets)),
        inputs=tuple(one.file for one in given if one.point == point),
    )  # fmt: skip
    try:
        outcome = optimize(run, part)
    except EinsatError as error:
        raise type(error)(error.what, where=f"{told}{', ' * bool(error.where)}{error.where}", fix=error.fix) from error
    finally:
        part.close()
    folder.parent.mkdir(exist_ok=True)
    (stage / "single" / f"{options.model.stem}.einsat").rename(folder)
    shutil.rmtree(stage / "single")
    return replace(outcome, files=())


def _point_text(point: Mapping[str, int]) -> str:
    return ",".join(f"{name}={size}" for name, size in point.items())


def _folder(point: Mapping[str, int]) -> str:
    return re.sub(r"[^\w=,-]", "_", _point_text(point))


def _point(asked: Question, sizes: Sequence[int]) -> dict[str, int]:
    return dict(zip((varied.name for varied in asked.varied), sizes, strict=True))


@dataclass(frozen=True)
class Gap:
    """Neighbouring sizes between two planned ones that go the same way: to the larger one, ``padded``, or to onnxruntime.

    ``point`` is the larger planned one, and the gap is in its ``size``: a position, as in ``Padded``.
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

    def told(self) -> dict[str, str]:
        """Return which sizes these are, what runs them, and why, in words."""
        numbers = f"{self.low}..{self.high}" if self.low < self.high else str(self.low)
        sizes = ",".join(f"{n}={numbers if i == self.size else self.point[i]}" for i, n in enumerate(self.names))
        return {"sizes": sizes, "runs": _point_text(self._large) if self.padded else ONNXRUNTIME, "why": self.why}


ONNXRUNTIME = "onnxruntime"
SLOWER = "the program for {} takes longer than onnxruntime at these sizes, by its times at the planned ones"


def _gaps(
    asked: Question, points: Sequence[Mapping[str, int]], outcomes: Mapping[str, Outcome], options: Options, progress: Progress
) -> tuple[Gap, ...]:
    """Say of all sizes between neighbouring planned ones where they go."""
    ends_seconds = progress.spent_seconds + PROOF_SHARE * options.budget_seconds
    names = tuple(varied.name for varied in asked.varied)
    prover = _Prover(asked, options.model, lambda: progress.spent_seconds < ends_seconds)
    gaps: list[Gap] = []
    for size, name in enumerate(names):
        lines: dict[tuple[int, ...], list[Mapping[str, int]]] = {}
        for point in points:
            lines.setdefault(tuple(number for other, number in point.items() if other != name), []).append(point)
        for line in lines.values():
            for low, high in pairwise(line):
                if high[name] - low[name] > 1:
                    whole = Gap(names, size, low[name] + 1, high[name] - 1, tuple(high.values()), "")
                    gaps += _ways(whole, low, high, outcomes, prover)
                    progress.update(f"{gaps[-1].told()['sizes']}: {gaps[-1].told()['runs']}")
    return tuple(gaps)


def _ways(
    whole: Gap, low: Mapping[str, int], high: Mapping[str, int], outcomes: Mapping[str, Outcome], prover: _Prover
) -> list[Gap]:
    """Return the parts of a gap, the padded one last: it is next to the larger planned size."""
    large = outcomes[_folder(high)]
    if large.status == "unchanged":
        return [replace(whole, why=f"at {_point_text(high)}, no program measured faster")]
    least = _least_paying(whole, outcomes[_folder(low)], large)
    if least > whole.high:
        return [replace(whole, why=SLOWER.format(_point_text(high)))]
    first, outputs, refusal = prover.proved(whole, least, high)
    padded = Padded(whole.size, first, whole.high, whole.point, outputs)
    parts = [
        replace(whole, high=least - 1, why=SLOWER.format(_point_text(high))),
        replace(whole, low=least, high=first - 1, why=refusal),
        replace(whole, low=first, padded=padded, why="proved: no row that is kept reads an added one"),
    ]
    return [part for part in parts if part.low <= part.high]


def _least_paying(whole: Gap, small: Outcome, large: Outcome) -> int:
    """Return from which size on the larger program takes less than onnxruntime, whose times between are taken from both ends."""
    times = (small.latency_us["onnxruntime"], large.latency_us["onnxruntime"], large.latency_us["optimized"])
    if any(time_us is None for time_us in times):
        return whole.low
    low_us, high_us, program_us = (time_us or 0.0 for time_us in times)
    count = whole.high - whole.low + 2
    paying = (whole.low + n - 1 for n in range(1, count) if program_us < low_us + (high_us - low_us) * n / count)
    return next(paying, whole.high + 1)


@dataclass
class _Prover:
    """Proves sizes one by one, from the largest down, while there is time."""

    asked: Question
    model: Path
    goes_on: Callable[[], bool]
    padding: Padding = field(default_factory=Padding)

    def proved(self, gap: Gap, least: int, high: Mapping[str, int]) -> tuple[int, tuple[tuple[str, int], ...], str]:
        """Return the first of the proved sizes at the end of a gap, the axes of outputs that have the size, and why no more are."""
        large = self._graph(high)
        name, outputs = gap.names[gap.size], None
        for number in range(gap.high, least - 1, -1):
            if not self.goes_on():
                return number + 1, outputs or (), "not proved to be right when padded: no time was left for proofs"
            try:
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
        return importer.load(self.model, shapes=self.asked.shapes(point)).graph


def _axes_of(small: Graph, large: Graph, number: int, planned: int) -> tuple[tuple[str, int], ...] | None:
    """Return the axes of outputs that have the size that varies, None where one differs that has another size."""
    axes = []
    for (name, one), (_, other) in zip(small.outputs, large.outputs, strict=True):
        for axis, sizes in enumerate(zip(one.type.shape or (), other.type.shape or (), strict=True)):
            if sizes[0] != sizes[1]:
                if sizes != (number, planned):
                    return None
                axes.append((name, axis))
    return tuple(axes)


def _sizes(asked: Question, points: Sequence[Mapping[str, int]], outcomes: Mapping[str, Outcome], gaps: Sequence[Gap]) -> Sizes:
    return Sizes(
        tuple(Size(varied.name, varied.axes, choice_text(varied.choice)) for varied in asked.varied),
        tuple(Bucket(tuple(p.values()), f"{FOLDER}/{_folder(p)}", outcomes[_folder(p)].status != "unchanged") for p in points),
        tuple(gap.padded for gap in gaps if gap.padded),
    )


def _keep_report(folder: Path) -> None:
    """Remove what runs from the artefact of a size that kept the model unchanged: the main folder has the model."""
    shutil.rmtree(folder / "opaque")
    (folder / PLAN).unlink()


def _for_all_sizes(asked: Question, points: Sequence[Mapping[str, int]], path: Path) -> onnx.ModelProto:
    """Return the model as it was given; where its file fixes sizes that vary here, they have names."""
    model, _ = read_model(path)
    if any(give_sizes(model, asked.shapes(point)) for point in points):
        values = {value.name: value for value in model.graph.input}
        for varied in asked.varied:
            for name, axis in varied.axes:
                values[name].type.tensor_type.shape.dim[axis].dim_param = varied.name
    return model


def _write_model(model: onnx.ModelProto, given: Path, target: Path) -> None:
    """Write the standard model: byte for byte the given one where that takes all sizes."""
    original.copy_model(given, target)
    if read_model(given)[0] != model:
        target.write_bytes(model.SerializeToString(deterministic=True))


def _put_together(main: Path, asked: Question, model: onnx.ModelProto, options: Options, sizes: Sizes) -> int:
    """Write what the main folder holds, and take out of the folders of sizes what it holds for them; return the bytes of the weights."""
    given = options.model.parent
    digests, tensors = _constants(model, given)
    folders = sorted((main / FOLDER).iterdir())
    for folder in folders:
        if (folder / WEIGHTS).exists():
            tensors = {**Weights(folder / WEIGHTS), **tensors}
    if tensors:
        write_weights(main / WEIGHTS, tensors)
        _refer(model, digests, main / WEIGHTS)
    for name in sorted(original.external_places(model) - {WEIGHTS}):
        (main / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(given / name, main / name)
    serialised = model.SerializeToString(deterministic=True)
    compile_model(_interface(asked, model), serialised, main, keep_subnormals=options.is_exact_below_normal, name=ORIGINAL_MODEL)
    (main / SIZES).write_text(sizes.to_json(), encoding="utf-8")
    before = set(main.iterdir())
    lowering(options.device).complete(main)
    carried = {path.name for path in set(main.iterdir()) - before}
    for folder in folders:
        for name in (WEIGHTS, *carried):
            (folder / name).unlink(missing_ok=True)
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        manifest["files"] = {name: digest for name, digest in manifest["files"].items() if (folder / name).exists()}
        _write_json(folder / MANIFEST, manifest)
    return (main / WEIGHTS).stat().st_size if tensors else 0


def _constants(model: onnx.ModelProto, folder: Path) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """Return the digests of a model's large constants by name, and their data by digest, as plans name weights."""
    digests, tensors = {}, {}
    for tensor in model.graph.initializer:
        array = to_array(tensor, folder)
        if array.nbytes >= LEAST_SHARED_BYTES and array.dtype.name in NAMES:
            digests[tensor.name] = tensor_digest(array)
            tensors[digests[tensor.name]] = array
    return digests, tensors


def _refer(model: onnx.ModelProto, digests: Mapping[str, str], weights: Path) -> None:
    """Have a model's large constants lie in the weights file beside it."""
    with weights.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    for tensor in model.graph.initializer:
        if tensor.name in digests:
            first, last = header[digests[tensor.name]]["data_offsets"]
            reference = onnx.TensorProto(
                name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, data_location=onnx.TensorProto.EXTERNAL
            )
            for key, value in (("location", WEIGHTS), ("offset", 8 + length + first), ("length", last - first)):
                reference.external_data.add(key=key, value=str(value))
            tensor.CopyFrom(reference)


def _interface(asked: Question, model: onnx.ModelProto) -> Graph:
    """Return the inputs and outputs of the model as it was given: a size that is given one number has that alone."""
    numbers: dict[str, int] = {}
    for name, type in asked.types.items():
        for size, given in zip(type.shape or (), asked.inputs.get(name, ()), strict=False):
            if isinstance(size, str) and isinstance(given, int):
                numbers[size] = given

    def port(name: str, type: TensorType, shape: tuple[int | str, ...] | None) -> Node:
        sizes = None if shape is None else tuple(numbers.get(size, size) if isinstance(size, str) else size for size in shape)
        return make("Input", (), attributes(name=name), TensorType(type.dtype, sizes))

    inputs = tuple(port(name, type, asked.inputs.get(name, type.shape)) for name, type in asked.types.items())
    results = {value.name: from_proto(value.type, value.name) for value in model.graph.output}
    return Graph(model.graph.name, inputs, tuple((name, port(name, type, type.shape)) for name, type in results.items()), {})


def _check_saved(
    main: Path, asked: Question, sizes: Sizes, gaps: Sequence[Gap], given: Sequence[Given], options: Options, standard: Path
) -> dict[str, float]:
    """Compare the saved artefact with onnxruntime on the user's inputs, at each planned size, in each padded gap, and in another one.

    Return the largest relative errors between the planned sizes.
    """
    reference = open_original(standard, options.threads)
    names = [output.name for output in reference.get_outputs()]
    with Session(main, threads=options.threads) as session:

        def error_at(point: Mapping[str, int]) -> float:
            feeds = [(one.file.name, one.feeds) for one in given if one.point == point]
            graph = importer.load(standard, shapes=asked.shapes(point)).graph
            specs = () if feeds else find_feeds(reference, graph, options.seed)
            candidates = {f"{main.name} at {_point_text(point)}": lambda feeds: session.run(None, feeds)}
            return check(
                lambda feeds: reference.run(None, feeds), candidates, names, specs,
                tolerance=options.tolerance, count=1, seed=options.seed, given=feeds, is_random=not feeds,
            ).max_rel_err  # fmt: skip

        planned = [_point(asked, bucket.sizes) for bucket in sizes.buckets]
        for point in planned:
            error_at(point)
        errors = {_point_text(one.point): error_at(one.point) for one in given if one.point not in planned}
        errors |= {_point_text(gap.middle): error_at(gap.middle) for gap in gaps if gap.padded}
        for gap in sorted((gap for gap in gaps if not gap.padded), key=lambda gap: gap.low - gap.high):
            try:
                errors[_point_text(gap.middle)] = error_at(gap.middle)
                break
            except NoInputs:
                continue  # some models take multiples of a size alone
    return errors


def _write_manifest(main: Path, checked: Mapping[str, float], gaps: Sequence[Gap]) -> None:
    """Add to the main folder's manifest what the runtime does not write."""
    manifest = json.loads((main / MANIFEST).read_text(encoding="utf-8"))
    manifest["files"][SIZES] = hashlib.sha256((main / SIZES).read_bytes()).hexdigest()
    manifest["between"] = [gap.told() for gap in gaps]
    manifest["checked_between"] = dict(checked)
    _write_json(main / MANIFEST, manifest)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, sort_keys=True, indent=1) + "\n", encoding="utf-8")
