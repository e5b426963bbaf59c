"""Show which program runs each size of an artefact for several sizes, and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from egraph.errors import ModelError
from egraph.optimize.outcome import read_outcome
from runtime.artefact import MANIFEST, find_folder
from runtime.errors import ArtefactError
from runtime.sizes import Bucket, Sizes


def read_sizes(artefact: Path) -> Sizes | None:
    """Return the sizes of an artefact, or None if it has one program."""
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
        **_between(folder),
    }


def _between(folder: Path) -> dict[str, Any]:
    """Return the manifest's fields on sizes between planned ones: what runs them, and where results were compared."""
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    return {name: manifest[name] for name in ("between", "checked_between")}


def sizes_text(artefact: Path, sizes: Sizes) -> str:
    """Return a line for each planned size, and one for each range of other sizes."""
    folder = find_folder(artefact)
    last = read_outcome(folder / sizes.buckets[-1].folder)
    count = len(sizes.buckets)
    lines = [f"{last.model}: {count} planned size{'s' * (count > 1)}, {last.device}"]
    for size in sizes.sizes:
        axes = ", ".join(f"axis {axis} of {name}" for name, axis in size.axes)
        lines.append(f"{size.name} ({size.asked}): {axes}")
    between = _between(folder)
    rows = [(sizes.text(bucket.sizes), _bucket_text(folder, bucket)) for bucket in sizes.buckets]
    for gap in between["between"]:
        runs = "onnxruntime" if gap["runs"] == "onnxruntime" else f"padded to {gap['runs']}"
        rows.append((gap["sizes"], f"{runs}: {gap['why']}"))
    rows.append(("others", "onnxruntime: there is no program for them"))
    width = max(len(name) for name, _ in rows)
    lines += [f"  {name:<{width}}  {description}" for name, description in rows]
    if between["checked_between"]:
        lines.append(f"compared with onnxruntime at each of the planned ones, and at {', '.join(between['checked_between'])}")
    if count > 1:
        lines.append(f"one of them: python -m egraph.inspect {artefact if artefact.is_dir() else folder}/{sizes.buckets[-1].folder}")
    return "\n".join(lines)


def _bucket_text(folder: Path, bucket: Bucket) -> str:
    outcome = read_outcome(folder / bucket.folder)
    if not bucket.has_program:
        return "onnxruntime runs the model as it was given: no program measured faster"
    over, time_us = outcome.over("onnxruntime", 2), outcome.latency_us["optimized"]
    timed = "" if time_us is None or over is None else f", {time_us / 1e3:.3f} ms, {over:.2f}x over onnxruntime"
    return f"{len(outcome.kernels)} kernels{timed}"
