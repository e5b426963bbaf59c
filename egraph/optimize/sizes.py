"""Plan for several sizes: one artefact with a plan for each, one copy of their weights, and the original model for all other sizes.

1. ``--shape`` and the model's inputs give the sizes that vary. Axes with the same name are one size.
2. ``--buckets`` sizes of a range are planned, in geometric steps, and each of a list.
3. For each planned size, the whole driver runs in a staging folder (search, race and check), for the largest first, then the smallest. The
   profile database passes measurements to the next run. The remaining budget is divided among the remaining sizes. Sizes for which no time
   is left are not planned.
4. Their artefacts become folders of one artefact. All constants, including the original model's, are stored once in its weights file.
5. A size between planned ones is padded to the next planned one if this is proved right and pays by the measured times. Every other size,
   and a planned one whose run kept the model unchanged, is left to onnxruntime.
6. A session of the whole artefact is compared with onnxruntime at each planned size and between, before anything is moved into place.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from egraph.errors import CheckFailed, EinsatError, ModelError
from egraph.onnx import importer
from egraph.onnx.exact_bytes import with_separate_bytes
from egraph.onnx.importer.model_file import read_model, to_array
from egraph.onnx.importer.sizes import give_sizes
from egraph.onnx.types import from_proto, tensor_digest
from egraph.optimize import interruption, original
from egraph.optimize.artefact import MANIFEST
from egraph.optimize.byte_ranges import refuse_without_inputs
from egraph.optimize.check import check, find_feeds, open_original
from egraph.optimize.check_noise import Unoptimised, run_in_float64
from egraph.optimize.options import Options, SizeRequest, choice_text
from egraph.optimize.outcome import Outcome
from egraph.optimize.output import destination, publish, staging
from egraph.optimize.pipeline import optimize
from egraph.optimize.progress import Progress
from egraph.optimize.size_plan import PROOF_SHARE, Gap, SizePlan, find_gaps, point_text, size_plan
from egraph.tensor import Graph, Node, TensorType, attributes, make
from lower.compile import PLAN, WEIGHTS, compile_model, write_json
from lower.targets import lowering
from lower.weights import NAMES, write_weights
from runtime import Session
from runtime.errors import InvalidArgument
from runtime.input_file import Declared, read_inputs
from runtime.sizes import FOLDER, SIZES, Bucket, Size, Sizes
from runtime.weights import Weights

LEAST_SHARED_BYTES = 1024
"""Constants of the original model from this size on are stored in the weights file; smaller ones stay in the model."""
LEAST_SECONDS = 1.0
"""A size is planned only if at least this much of the budget is left for it."""
CHECK_SHARE = 0.03
"""Part of the budget that is kept for the steps after the last search: assembling the artefact and its check."""
ORIGINAL_MODEL = "original.onnx"
"""File of the original model in the artefact's main folder; its constants are in the weights file beside it."""


@dataclass(frozen=True)
class Given:
    """Inputs of the user's own, and their sizes."""

    file: Path
    feeds: Mapping[str, np.ndarray]
    point: Mapping[str, int]


def _given(plan: SizePlan, options: Options) -> tuple[Given, ...]:
    """Read the user's inputs; raises ModelError if they do not fit the model and the sizes that ``--shape`` gives."""
    declared = [Declared(name, type.dtype, plan.inputs.get(name, type.shape)) for name, type in plan.types.items()]
    sizes = Sizes(tuple(Size(varied.name, varied.axes, "") for varied in plan.varied), ())
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
        result.append(Given(file, feeds, _point(plan, point)))
    return tuple(result)


@dataclass(frozen=True)
class SizesOutcome:
    """The results of the runs for all planned sizes, in ascending order."""

    model: str
    sizes: Sizes
    outcomes: tuple[Outcome, ...]
    gaps: tuple[Gap, ...]
    checked: Mapping[str, float]
    """Sizes between planned ones at which results were compared, each with the largest relative error."""
    weights_bytes: int
    left_out: tuple[tuple[int, ...], ...] = ()
    """Sizes that were not planned because there was no time."""
    files: tuple[str, ...] = ()
    seconds_total: float = 0.0

    @property
    def only(self) -> Outcome:
        """Return the outcome of the only planned size as the outcome of the whole."""
        (outcome,) = self.outcomes
        return replace(outcome, files=self.files, seconds_total=self.seconds_total)

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``--json`` prints; if only one size is planned, with all fields of a run for a single size."""
        return {
            **(self.only.to_json() if len(self.outcomes) == 1 else {}),
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
            "between": [gap.describe() for gap in self.gaps],
            "checked_between": dict(self.checked),
            "weights_bytes": self.weights_bytes,
            "seconds_total": round(self.seconds_total, 3),
            "files": list(self.files),
        }


def optimize_sizes(options: Options, progress: Progress) -> SizesOutcome:
    """Optimise a model for several sizes and write one artefact. Raises EinsatError; nothing is written then."""
    refuse_without_inputs(options)
    output = destination(options.model, options.output)
    plan = size_plan(options, read_model(options.model)[0])
    points = plan.points(options.size_request.buckets)
    user_inputs = _given(plan, options)
    progress.note(f"{len(points)} size{'s are' if len(points) > 1 else ' is'} planned: {'; '.join(map(point_text, points))}")
    with staging(output) as stage:
        outcomes: dict[str, Outcome] = {}
        order = [points[-1], *points[:1], *reversed(points[1:-1])] if len(points) > 1 else list(points)
        for number, point in enumerate(order):
            kept_share = CHECK_SHARE + PROOF_SHARE * (len(points) > 1)
            seconds = (progress.left_seconds - kept_share * options.budget_seconds) / (len(order) - number)
            if outcomes and seconds * (len(order) - number) < LEAST_SECONDS:
                break
            with interruption.unsettled():
                try:
                    share_seconds = max(LEAST_SECONDS, seconds)
                    outcomes[point_text(point)] = _optimize_at(point, plan, options, progress, stage, share_seconds, user_inputs)
                except ModelError as error:
                    if not plan.is_between(point):
                        raise
                    shutil.rmtree(stage / "single", ignore_errors=True)
                    progress.note(f"{point_text(point)} is left out: {error}")
        left_out = tuple(tuple(point.values()) for point in points if point_text(point) not in outcomes)
        points = tuple(point for point in points if point_text(point) in outcomes)
        progress.stage("prove that sizes between may be padded")
        gaps = find_gaps(plan, points, outcomes, options, progress)
        progress.stage("put the sizes together")
        results = stage / "results"
        main = results / output.artefact.name
        model = _for_all_sizes(plan, points, options.model)
        sizes = _sizes(plan, points, outcomes, gaps)
        for bucket in sizes.buckets:
            if not bucket.has_program:
                _keep_report(stage / bucket.folder)
        main.mkdir(parents=True)
        (stage / FOLDER).rename(main / FOLDER)
        _write_model(model, options.model, results / output.model.name)
        weights_bytes = _put_together(main, plan, model, options, sizes)
        progress.stage("check the saved files")
        checked = _check_saved(main, plan, sizes, gaps, user_inputs, options, results / output.model.name)
        progress.update(f"also at {', '.join(checked)}: largest relative error {max(checked.values()):.2g}" if checked else "")
        _write_manifest(main, checked, gaps)
        progress.stage("write")
        files = tuple(str(path) for path in publish(results, output))
    searched = tuple(outcomes[point_text(point)] for point in points)
    return SizesOutcome(options.model.name, sizes, searched, gaps, checked, weights_bytes, left_out, files, progress.spent_seconds)


def _optimize_at(
    point: Mapping[str, int], plan: SizePlan, options: Options, progress: Progress, stage: Path, seconds: float,
    user_inputs: Sequence[Given],
) -> Outcome:
    """Run the driver for one size with its part of the remaining time."""
    label = point_text(point)
    progress.note(f"--- {label} ({seconds:.0f} s of the budget)")
    part = Progress(progress.verbosity, seconds, time.monotonic(), options.budget_seconds)
    folder = stage / FOLDER / _folder(point)
    run = replace(
        options, shapes=plan.shapes(point), size_request=SizeRequest(), output=stage / "single" / f"{options.model.stem}.opt.onnx",
        budget_seconds=options.budget_seconds / len(plan.points(options.size_request.buckets)),
        inputs=tuple(inputs.file for inputs in user_inputs if inputs.point == point),
    )  # fmt: skip
    try:
        outcome = optimize(run, part)
    except EinsatError as error:
        kind = CheckFailed if isinstance(error, CheckFailed) else ModelError
        raise kind(error.what, where=f"{label}{', ' * bool(error.where)}{error.where}", fix=error.fix) from error
    finally:
        part.close()
    folder.parent.mkdir(exist_ok=True)
    (stage / "single" / f"{options.model.stem}.einsat").rename(folder)
    shutil.rmtree(stage / "single")
    return replace(outcome, files=())


def _folder(point: Mapping[str, int]) -> str:
    return re.sub(r"[^\w=,-]", "_", point_text(point))


def _point(plan: SizePlan, sizes: Sequence[int]) -> dict[str, int]:
    return dict(zip((varied.name for varied in plan.varied), sizes, strict=True))


def _sizes(plan: SizePlan, points: Sequence[Mapping[str, int]], outcomes: Mapping[str, Outcome], gaps: Sequence[Gap]) -> Sizes:
    return Sizes(
        tuple(Size(varied.name, varied.axes, choice_text(varied.choice)) for varied in plan.varied),
        tuple(Bucket(tuple(p.values()), f"{FOLDER}/{_folder(p)}", outcomes[point_text(p)].status != "unchanged") for p in points),
        tuple(gap.padded for gap in gaps if gap.padded),
    )


def _keep_report(folder: Path) -> None:
    """Remove plan and model from the artefact of a size that kept the model unchanged, because the main folder has the model."""
    shutil.rmtree(folder / "opaque")
    (folder / PLAN).unlink()


def _for_all_sizes(plan: SizePlan, points: Sequence[Mapping[str, int]], path: Path) -> onnx.ModelProto:
    """Return the original model; sizes that its file fixes but that vary here get names."""
    model, _ = read_model(path)
    if any(give_sizes(model, plan.shapes(point)) for point in points):
        values = {value.name: value for value in model.graph.input}
        for varied in plan.varied:
            for name, axis in varied.axes:
                values[name].type.tensor_type.shape.dim[axis].dim_param = varied.name
    return model


def _write_model(model: onnx.ModelProto, original_file: Path, target: Path) -> None:
    """Write the standard model; it is an exact copy of the given one if that accepts all sizes."""
    original.copy_model(original_file, target)
    if read_model(original_file)[0] != model:
        target.write_bytes(model.SerializeToString(deterministic=True))


def _put_together(main: Path, plan: SizePlan, model: onnx.ModelProto, options: Options, sizes: Sizes) -> int:
    """Write the main folder's files, and remove copies of them from the folders of sizes; return the bytes of the weights."""
    original_folder = options.model.parent
    digests, tensors = _constants(model, original_folder)
    folders = sorted((main / FOLDER).iterdir())
    for folder in folders:
        if (folder / WEIGHTS).exists():
            tensors = {**Weights(folder / WEIGHTS), **tensors}
    if tensors:
        write_weights(main / WEIGHTS, tensors)
        _refer(model, digests, main / WEIGHTS)
    for name in sorted(original.external_places(model) - {WEIGHTS}):
        (main / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(original_folder / name, main / name)
    _fix_given_sizes(plan, model)
    serialised = with_separate_bytes(model).SerializeToString(deterministic=True)
    compile_model(_interface(plan, model), serialised, main, keep_subnormals=options.is_exact_below_normal, name=ORIGINAL_MODEL)
    (main / SIZES).write_text(sizes.to_json(), encoding="utf-8")
    before = set(main.iterdir())
    lowering(options.device).complete(main)
    carried = {path.name for path in set(main.iterdir()) - before}
    for folder in folders:
        for name in (WEIGHTS, *carried):
            (folder / name).unlink(missing_ok=True)
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        manifest["files"] = {name: digest for name, digest in manifest["files"].items() if (folder / name).exists()}
        write_json(folder / MANIFEST, manifest)
    return (main / WEIGHTS).stat().st_size if tensors else 0


def _constants(model: onnx.ModelProto, folder: Path) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """Return the digests of a model's large constants by name, and their data by digest, the key of weights in plans."""
    digests, tensors = {}, {}
    for tensor in model.graph.initializer:
        array = to_array(tensor, folder)
        if array.nbytes >= LEAST_SHARED_BYTES and array.dtype.name in NAMES:
            digests[tensor.name] = tensor_digest(array)
            tensors[digests[tensor.name]] = array
    return digests, tensors


def _refer(model: onnx.ModelProto, digests: Mapping[str, str], weights: Path) -> None:
    """Move a model's large constants to the weights file beside it."""
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


def _fix_given_sizes(plan: SizePlan, model: onnx.ModelProto) -> None:
    """Write sizes with a single given number into the inputs, so that onnxruntime refuses others."""
    for value in model.graph.input:
        for dim, size in zip(value.type.tensor_type.shape.dim, plan.inputs.get(value.name, ()), strict=False):
            if isinstance(size, int):
                dim.dim_value = size


def _interface(plan: SizePlan, model: onnx.ModelProto) -> Graph:
    """Return the inputs and outputs of the original model; sizes with a single given number are fixed."""
    numbers: dict[str, int] = {}
    for name, type in plan.types.items():
        for size, number in zip(type.shape or (), plan.inputs.get(name, ()), strict=False):
            if isinstance(size, str) and isinstance(number, int):
                numbers[size] = number

    def port(name: str, type: TensorType, shape: tuple[int | str, ...] | None) -> Node:
        sizes = None if shape is None else tuple(numbers.get(size, size) if isinstance(size, str) else size for size in shape)
        return make("Input", (), attributes(name=name), TensorType(type.dtype, sizes))

    inputs = tuple(port(name, type, plan.inputs.get(name, type.shape)) for name, type in plan.types.items())
    results = {value.name: from_proto(value.type, value.name) for value in model.graph.output}
    return Graph(model.graph.name, inputs, tuple((name, port(name, type, type.shape)) for name, type in results.items()), {})


def _check_saved(
    main: Path, plan: SizePlan, sizes: Sizes, gaps: Sequence[Gap], user_inputs: Sequence[Given], options: Options, standard: Path
) -> dict[str, float]:
    """Compare the saved artefact with onnxruntime on the user's inputs, at each planned size, in each padded gap, and in another gap.

    Return the largest relative errors at sizes between the planned ones.
    """
    reference = open_original(standard, options.threads)
    plain, plain_moved = (Unoptimised(standard, options.threads, is_kept=False, seed=seed) for seed in (None, options.seed))
    names = [output.name for output in reference.get_outputs()]
    with Session(main, threads=options.threads, on=options.device) as session:

        def error_at(point: Mapping[str, int]) -> float:
            feeds = [(inputs.file.name, inputs.feeds) for inputs in user_inputs if inputs.point == point]
            graph = importer.load(standard, shapes=plan.shapes(point)).graph
            specs = () if feeds else find_feeds(reference, graph, options.seed)
            candidates = {f"{main.name} at {point_text(point)}": lambda feeds: session.run(None, feeds)}
            return check(
                lambda feeds: reference.run(None, feeds), candidates, names, specs,
                tolerance=options.tolerance, count=1, seed=options.seed, given=feeds, is_random=not feeds,
                plain=plain, plain_moved=plain_moved,
                in_float64=partial(run_in_float64, graph, options.policy.check.float64_seconds),
                most_replaced=options.policy.check.replaced,
            ).max_rel_err  # fmt: skip

        planned = [_point(plan, bucket.sizes) for bucket in sizes.buckets]
        for point in planned:
            error_at(point)
        errors = {point_text(inputs.point): error_at(inputs.point) for inputs in user_inputs if inputs.point not in planned}
        errors |= {point_text(gap.middle): error_at(gap.middle) for gap in gaps if gap.padded}
        for gap in sorted((gap for gap in gaps if not gap.padded), key=lambda gap: gap.low - gap.high):
            try:
                errors[point_text(gap.middle)] = error_at(gap.middle)
                break
            except ModelError:
                continue  # some models accept only multiples of a size, or run only on the user's inputs
    return errors


def _write_manifest(main: Path, checked: Mapping[str, float], gaps: Sequence[Gap]) -> None:
    """Add the fields to the main folder's manifest that the runtime does not write."""
    manifest = json.loads((main / MANIFEST).read_text(encoding="utf-8"))
    manifest["files"][SIZES] = hashlib.sha256((main / SIZES).read_bytes()).hexdigest()
    manifest["between"] = [gap.describe() for gap in gaps]
    manifest["checked_between"] = dict(checked)
    write_json(main / MANIFEST, manifest)
