"""The original model: its digest, its files, and copies of it with other sizes, constants or types."""

from __future__ import annotations

import filecmp
import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx

from egraph.errors import ModelError
from egraph.onnx.importer import widened
from egraph.onnx.importer.fixed_inputs import fix_inputs
from egraph.onnx.importer.halves import half_types
from egraph.onnx.importer.model_file import embed_external, prepared, read_model, tensors_of
from egraph.onnx.importer.sizes import give_sizes
from egraph.onnx.importer.skeleton import skeleton
from egraph.optimize.options import Options
from egraph.optimize.output import destination

IN_ONE_FILE_BYTES = 1 << 30
"""Models up to this size are written as one file."""


def digest(model: Path) -> str:
    """Return a hash of the model file and of the sizes of its external files."""
    with model.open("rb") as file:
        content = hashlib.file_digest(file, "sha256")
    for name in external_files(model):
        content.update(f"{name}:{(model.parent / name).stat().st_size}".encode())
    return content.hexdigest()[:32]


def external_files(model: Path) -> tuple[str, ...]:
    """Return the names, relative to the model, of the files with its large tensors."""
    locations = external_places(skeleton(model))
    for name in locations:
        if not (model.parent / name).resolve().is_relative_to(model.parent.resolve()):
            raise ModelError(f"the model keeps data outside its folder: {name}", where=str(model), fix="save the data beside the model")
    return tuple(sorted(locations))


def external_places(model: onnx.ModelProto) -> set[str]:
    """Return the names of all files with tensors of a model."""
    tensors = tensors_of(model.graph)
    return {entry.value for tensor in tensors for entry in tensor.external_data if entry.key == "location"}


@contextmanager
def at_sizes(model: Path, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[Path]:
    """Yield the model, or a copy of the same name with the given sizes if it fixes others."""
    if not shapes:
        yield model
        return
    proto, _ = read_model(model)
    if not give_sizes(proto, shapes):
        yield model
        return
    with TemporaryDirectory(prefix="einsat-sizes-") as folder:
        yield _changed(proto, model, Path(folder))


@contextmanager
def with_constants(options: Options) -> Iterator[Options]:
    """Yield the options; if inputs are to become constants, for a copy of the model with these constants, under the same name."""
    if not options.constants:
        yield options
        return
    output = options.output or options.model.parent
    destination(options.model, output)  # refuses to replace the model, which is in another folder than the copy
    proto, _ = read_model(options.model)
    fix_inputs(proto, options.constants, options.shapes)
    shapes = {name: sizes for name, sizes in options.shapes.items() if name not in options.constants}
    with TemporaryDirectory(prefix="einsat-constants-") as folder:
        yield replace(options, model=_changed(proto, options.model, Path(folder)), output=output, shapes=shapes)


def _changed(proto: onnx.ModelProto, model: Path, folder: Path) -> Path:
    """Write a changed model into a folder, under its name, with its external files; return its path."""
    copy = folder / model.name
    copy.write_bytes(proto.SerializeToString(deterministic=True))
    for name in external_files(model):
        (copy.parent / name).parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link((model.parent / name).resolve(), copy.parent / name)
        except OSError:  # another disk, or one without links
            shutil.copyfile(model.parent / name, copy.parent / name)
    return copy


@contextmanager
def in_float32(model: Path) -> Iterator[Path]:
    """Yield the model or, if it computes in 16 bits and is read in float32, a file with the float32 model."""
    if not half_types(skeleton(model)):
        yield model
        return
    proto, folder = read_model(model)
    proto = prepared(proto)[0]
    wide = widened(proto, folder)[0]
    if wide is proto:
        yield model
        return
    with TemporaryDirectory(prefix="einsat-float32-") as temporary:
        copy = Path(temporary) / model.name
        embed_external(tensors_of(wide.graph), folder)
        onnx.save(wide, str(copy), save_as_external_data=wide.ByteSize() > IN_ONE_FILE_BYTES, location="weights.data")
        yield copy


def copy_model(model: Path, target: Path) -> None:
    """Copy a model, with its external files beside the copy under the same names."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(model, target)
    for name in external_files(model):
        (target.parent / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(model.parent / name, target.parent / name)


def is_copy(model: Path, copy: Path) -> bool:
    """Return whether a copy and its external files are equal to the model's byte by byte."""
    pairs = [(model, copy), *((model.parent / name, copy.parent / name) for name in external_files(model))]
    return all(filecmp.cmp(first, second, shallow=False) for first, second in pairs)
