"""Which plan of an artefact for several sizes runs, by the sizes of the inputs: ``sizes.json``. Data only.

The main folder passes the original model to onnxruntime, at any size; ``sizes/`` has a folder for each planned size.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from runtime.errors import ArtefactError

SIZES, FOLDER = "sizes.json", "sizes"
ORIGINAL = ""
"""The value that means the original model, in place of a plan's folder."""


@dataclass(frozen=True)
class Size:
    """A size that varies from run to run. ``axes``: the inputs and their axes that have it; ``asked``: its text in ``--shape``."""

    name: str
    axes: tuple[tuple[str, int], ...]
    asked: str


@dataclass(frozen=True)
class Bucket:
    """A planned point: a number for each size. ``folder`` is that of its run; onnxruntime runs it unless it ``has_program``."""

    sizes: tuple[int, ...]
    folder: str
    has_program: bool

    @property
    def runs(self) -> str:
        """Return the folder of the plan that runs."""
        return self.folder if self.has_program else ORIGINAL


@dataclass(frozen=True)
class Padded:
    """Sizes that run the plan of a larger size: rows added to inputs are proved not to reach the rows of outputs that are kept.

    ``size``: the position of the size that is between ``low`` and ``high``, both included, and larger in the planned ``point``.
    ``outputs``: the axes of outputs that have it.
    """

    size: int
    low: int
    high: int
    point: tuple[int, ...]
    outputs: tuple[tuple[str, int], ...]

    @property
    def points(self) -> Iterator[tuple[int, ...]]:
        """Yield the points that are padded."""
        for number in range(self.low, self.high + 1):
            yield (*self.point[: self.size], number, *self.point[self.size + 1 :])

    def kept(self, name: str, result: np.ndarray, number: int) -> np.ndarray:
        """Return an output without the added rows, in memory of its own."""
        slices = [slice(None)] * result.ndim
        for output, axis in self.outputs:
            if output == name:
                slices[axis] = slice(number)
        return np.ascontiguousarray(result[tuple(slices)])


@dataclass(frozen=True)
class Sizes:
    """The sizes that vary, the planned ones in ascending order, and those that are padded."""

    sizes: tuple[Size, ...]
    buckets: tuple[Bucket, ...]
    padded: tuple[Padded, ...] = ()
    version: int = 1

    @staticmethod
    def read(folder: Path) -> Sizes | None:
        """Return the sizes of an artefact; None if it has one plan. Raises ArtefactError if they cannot be used."""
        try:
            return Sizes.from_json((folder / SIZES).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ArtefactError(f"{SIZES} cannot be used: {error}", where=str(folder), fix="optimise the model again") from error

    @staticmethod
    def from_json(text: str) -> Sizes:
        raw = json.loads(text)
        if raw["version"] != Sizes.version:
            raise ValueError(f"version {raw['version']} is not {Sizes.version}")
        return Sizes(
            tuple(Size(row["name"], tuple((name, axis) for name, axis in row["axes"]), row["asked"]) for row in raw["sizes"]),
            tuple(Bucket(tuple(row["sizes"]), row["folder"], row["has_program"]) for row in raw["buckets"]),
            tuple(
                Padded(**{**row, "point": tuple(row["point"]), "outputs": tuple((name, axis) for name, axis in row["outputs"])})
                for row in raw["padded"]
            ),
        )

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True, indent=1) + "\n"

    def point(self, feed: Mapping[str, Any]) -> tuple[int, ...] | None:
        """Return the number of each size in a feed; None if inputs are missing, have too few axes, or do not agree."""
        numbers = []
        try:
            for size in self.sizes:
                (name, axis), *others = size.axes
                number = _shape(feed[name])[axis]
                for other, other_axis in others:
                    if _shape(feed[other])[other_axis] != number:
                        return None
                numbers.append(number)
        except (KeyError, IndexError):
            return None
        return tuple(numbers)

    def pad(self, padded: Padded, feed: Mapping[str, Any]) -> dict[str, Any]:
        """Return a feed with copies of its last rows appended up to the planned size, because the model is made for such values."""
        result = dict(feed)
        for name, axis in self.sizes[padded.size].axes:
            array = as_array(result[name])
            last = np.take(array, [-1], axis)
            missing = [*array.shape[:axis], padded.point[padded.size] - array.shape[axis], *array.shape[axis + 1 :]]
            result[name] = np.concatenate([array, np.broadcast_to(last, missing)], axis)
        return result

    def text(self, point: tuple[int, ...]) -> str:
        """Return ``batch=1,seq=32``."""
        return ",".join(f"{size.name}={number}" for size, number in zip(self.sizes, point, strict=True))


def main_folder(folder: Path) -> Path:
    """Return the folder that the plans of several sizes share; for any other artefact, itself."""
    above = folder.resolve().parent
    return above.parent if above.name == FOLDER and (above.parent / SIZES).exists() else folder


def as_array(value: Any) -> np.ndarray:
    """Return a feed as an array, without copying if possible."""
    if isinstance(value, np.ndarray):
        return value
    return np.from_dlpack(value) if hasattr(value, "__dlpack__") else np.asarray(value)


def _shape(value: Any) -> tuple[int, ...]:
    shape = getattr(value, "shape", None)
    return tuple(np.shape(value) if shape is None else shape)
