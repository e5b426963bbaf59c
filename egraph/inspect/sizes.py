"""Say of an artefact for several sizes which size goes where, and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from egraph.errors import ModelError
from egraph.inspect.outcome import read_outcome
from runtime.artefact import MANIFEST, find_folder
from runtime.errors import ArtefactError
from runtime.sizes import Bucket, Sizes


def read_sizes(artefact: Path) -> Sizes | None:
    """Return the sizes of an artefact, None where it has one program."""
    try:
        return Sizes.read(find_folder(artefact))
    except ArtefactError as error:
        raise ModelError(error.what, where=error.where, fix=error.fix) from error


def sizes_json(artefact: Path, sizes: Sizes) -> dict[str, Any]:
    """Return the object that ``--json`` prints."""
    folder = find_folder(artefact)
    return {
        "sizes": {size.name: {"asked": size.asked, "axes": [list(axis) for axis in size.axes]} for size in sizes.sizes},
        "buckets": [
            {
                "sizes": dict(zip((size.name for size in sizes.sizes), bucket.sizes, strict=True)),
                "runs": "program" if bucket.has_program else "onnxruntime",
                "folder": bucket.folder,
                "run": read_outcome(folder / bucket.folder).to_manifest(),
            }
            for bucket in sizes.buckets
        ],
        "others": "onnxruntime",
        "between": json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["between"],
    }


def sizes_text(artefact: Path, sizes: Sizes) -> str:
    """Return a line for each planned size, and what becomes of the others."""
    folder = find_folder(artefact)
    last = read_outcome(folder / sizes.buckets[-1].folder)
    lines = [f"{last.model}: {len(sizes.buckets)} planned sizes, {last.device}"]
    for size in sizes.sizes:
        axes = ", ".join(f"axis {axis} of {name}" for name, axis in size.axes)
        lines.append(f"{size.name} ({size.asked}): {axes}")
    width = max(len(sizes.text(bucket.sizes)) for bucket in sizes.buckets)
    lines += [f"  {sizes.text(bucket.sizes):<{width}}  {_bucket_text(folder, bucket)}" for bucket in sizes.buckets]
    lines.append(f"  {'others':<{width}}  onnxruntime runs the model as it was given: there is no program for them")
    between = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["between"]
    if between["checked"]:
        lines.append(f"compared with onnxruntime at each of these, and at {between['checked']}")
    lines.append(f"one of them: python -m egraph.inspect {artefact if artefact.is_dir() else folder}/{sizes.buckets[-1].folder}")
    return "\n".join(lines)


def _bucket_text(folder: Path, bucket: Bucket) -> str:
    outcome = read_outcome(folder / bucket.folder)
    if not bucket.has_program:
        return "onnxruntime runs the model as it was given: no program measured faster"
    over, time_us = outcome.over("onnxruntime", 2), outcome.latency_us["optimized"]
    timed = "" if time_us is None or over is None else f", {time_us / 1e3:.3f} ms, {over:.2f}x over onnxruntime"
    return f"{len(outcome.kernels)} kernels{timed}"
