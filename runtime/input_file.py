"""Read the inputs of a model from a file: ``.npz`` with arrays by input name, or ``.npy`` for the only input."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from runtime.dtypes import ELEMENT_TYPES, numpy_dtype
from runtime.errors import InvalidArgument


@dataclass(frozen=True)
class Declared:
    """A model's declaration of an input; ``shape`` may hold names for open sizes, None is any shape."""

    name: str
    dtype: str
    shape: tuple[int | str, ...] | None


def read_inputs(path: Path, inputs: Sequence[Declared], *, shape_fix: str = "save arrays of these sizes") -> dict[str, np.ndarray]:
    """Return the arrays of a file in the order of a model's inputs; raises InvalidArgument if the model does not take them.

    ``shape_fix`` is the advice if a shape differs.
    """
    arrays = _arrays(path, [each.name for each in inputs])
    listed = ", ".join(each.name for each in inputs) or "(none)"
    if missing := [each.name for each in inputs if each.name not in arrays]:
        raise InvalidArgument(
            f"the file has no array for the input {missing[0]!r}; it has {', '.join(arrays) or 'none'}",
            where=str(path), fix=f"save one for each of the inputs {listed}: np.savez(FILE, **{{{missing[0]!r}: array, ...}})",
        )  # fmt: skip
    if unknown := [name for name in arrays if name not in {each.name for each in inputs}]:
        raise InvalidArgument(f"the model has no input {unknown[0]!r}", where=str(path), fix=f"save its inputs alone: {listed}")
    return {each.name: _checked(each, arrays[each.name], path, shape_fix) for each in inputs}


def _arrays(path: Path, names: Sequence[str]) -> Mapping[str, np.ndarray]:
    """Return the arrays of a file by name."""
    try:
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            if not isinstance(loaded, np.ndarray):
                return {name: loaded[name] for name in loaded.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        fix = "give a .npz file of np.savez, or a .npy file of np.save, with arrays of numbers or of fixed-width strings"
        raise InvalidArgument(f"the inputs cannot be read: {reason}", where=str(path), fix=fix) from error
    if len(names) != 1:
        what = f"the model has the inputs {', '.join(names) or '(none)'}: one array is not enough to know which"
        raise InvalidArgument(what, where=str(path), fix="give an .npz file with an array for each, by name")
    return {names[0]: loaded}


def _checked(declared: Declared, array: np.ndarray, path: Path, shape_fix: str) -> np.ndarray:
    """Return an array of the declared type in memory order; raises InvalidArgument if its type or shape differs."""
    name = declared.name
    if declared.dtype not in ELEMENT_TYPES:
        raise InvalidArgument(f"the input {name!r} is a {declared.dtype}, which no file of arrays holds", where=str(path))
    expected = numpy_dtype(declared.dtype)
    if declared.dtype == "string" and array.dtype.kind in "US":
        array = array.astype(expected)
    elif array.dtype.newbyteorder("=") != expected:
        raise InvalidArgument(
            f"the input {name!r} is {array.dtype.name} in the file, the model takes {expected.name}",
            where=str(path), fix=f"save it as {expected.name}, for example array.astype(np.{expected.name})",
        )  # fmt: skip
    if declared.shape is not None and not _fits(declared.shape, array.shape):
        raise InvalidArgument(
            f"the input {name!r} is {sizes_text(array.shape)} in the file, the model takes {sizes_text(declared.shape)}",
            where=str(path), fix=shape_fix,
        )  # fmt: skip
    return np.asarray(array, expected, order="C")


def _fits(declared: tuple[int | str, ...], actual: tuple[int, ...]) -> bool:
    return len(declared) == len(actual) and all(isinstance(n, str) or n == m for n, m in zip(declared, actual, strict=True))


def sizes_text(shape: Sequence[int | str]) -> str:
    """Return sizes as ``--shape`` takes them; of a scalar, that it is one."""
    return ",".join(map(str, shape)) or "a scalar"
