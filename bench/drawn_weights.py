"""Ship an artefact without its random weights and inputs: data that does not compress is drawn again where the artefact is opened.

A program does not depend on the values of its weights, so a GPU's results on drawn weights are compared with those of the recorded device
on the same weights. Tables, masks, positions and other data with a structure compress, and are kept.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from runtime.artefact import WEIGHTS, Artefact
from runtime.errors import LibraryMissing
from runtime.feeds import FeedSpec, random_feeds
from runtime.judge import SAME, fingerprint
from runtime.weights import Weights

KEPT, DRAWN = "kept.npz", "drawn.json"
DRAWN_FEED = "drawn:"
"""The prefix of the name of an input that is drawn when it is read."""
NONZERO = "nonzero:"
"""The prefix of the name of weights that are drawn except for their zeros; one bit per element is kept."""
LEAST_BYTES = 1 << 14
"""Arrays with fewer bytes are kept."""
FLOAT32 = 1
"""ONNX's number for that type."""
EXAMINED_BYTES = 1 << 18
RANDOM = 0.85
"""Data that compresses to more than this fraction of its size looks random: of drawn numbers, only the exponents compress."""


def leave_out(folder: Path, seed: int = 0) -> None:
    """Replace the random weights of an artefact's folder by a description from which to draw others of the same mean and deviation.

    Zeros keep their places, because a transform of weights may be padded.
    """
    weights = Weights(folder / WEIGHTS)
    random = {name: array for name, array in sorted(weights.items()) if looks_random(array[array != 0])}
    rows = [(name, array.shape, float(array[array != 0].mean()), float(array[array != 0].std())) for name, array in random.items()]
    nonzero: dict[str, Any] = {f"{NONZERO}{name}": np.packbits(array != 0) for name, array in random.items() if not array.all()}
    described = {"seed": seed, "weights": rows, "fingerprint": fingerprint(_drawn(rows, seed, nonzero))}
    (folder / DRAWN).write_text(json.dumps(described), encoding="utf-8")
    kept: dict[str, Any] = {name: array for name, array in weights.items() if name not in random}
    np.savez_compressed(folder / KEPT, **kept, **nonzero)
    (folder / WEIGHTS).unlink()


def shrink(folder: Path, factor: float, kept: Collection[str]) -> bool:
    """Scale the drawn weights of an artefact's folder by ``factor``, except those in ``kept``; return whether any were scaled."""
    described = json.loads((folder / DRAWN).read_text(encoding="utf-8"))
    factors = {name: 1.0 if name in kept else factor for name, *_ in described["weights"]}
    rows = [(name, shape, factors[name] * mean, factors[name] * deviation) for name, shape, mean, deviation in described["weights"]]
    with np.load(folder / KEPT) as stored:
        drawn = _drawn(rows, described["seed"], dict(stored))
    (folder / DRAWN).write_text(json.dumps({**described, "weights": rows, "fingerprint": fingerprint(drawn)}), encoding="utf-8")
    return any(name not in kept for name, *_ in rows)


def write_feeds(path: Path, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Write inputs as an npz file, random ones as their shapes alone; return them as ``read_feeds`` draws them."""
    kept: dict[str, Any] = {f"{DRAWN_FEED}{name}" if looks_random(array) else name: array for name, array in feeds.items()}
    written: dict[str, Any] = {key: array.shape if key.startswith(DRAWN_FEED) else array for key, array in kept.items()}
    np.savez_compressed(path, **written)
    return read_feeds(path)


def read_feeds(path: Path, seed: int = 0) -> dict[str, np.ndarray]:
    """Read inputs, and draw those of which only the shapes were written."""
    with np.load(path) as stored:
        arrays = dict(stored)
    specs = [
        FeedSpec(key.removeprefix(DRAWN_FEED), "float32", tuple(int(size) for size in sizes))
        for key, sizes in arrays.items() if key.startswith(DRAWN_FEED)
    ]  # fmt: skip
    return {**{key: array for key, array in arrays.items() if not key.startswith(DRAWN_FEED)}, **random_feeds(specs, seed)}


def hollow(model: Any) -> Any:
    """Return an ONNX model without the contents of weights that look random; ``filled`` draws new ones."""
    from onnx import ModelProto, numpy_helper

    made = ModelProto()
    made.CopyFrom(model)
    for tensor in made.graph.initializer:
        if looks_random(numpy_helper.to_array(tensor)):
            tensor.ClearField("raw_data")
            tensor.ClearField("float_data")
    return made


def filled(model: Any, seed: int = 0) -> Any:
    """Draw the weights of a hollow model in place, scaled by their fan-in; return the model."""
    generator = np.random.default_rng(seed)
    for tensor in model.graph.initializer:
        if tensor.data_type == FLOAT32 and not tensor.raw_data and not tensor.float_data and 0 not in tensor.dims:
            values = generator.standard_normal(tuple(tensor.dims), dtype=np.float32)
            tensor.raw_data = (values / np.float32(np.sqrt(max(1, values[0].size)))).tobytes()
    return model


def looks_random(array: np.ndarray) -> bool:
    """Return whether values look like floats from a random generator."""
    if array.dtype != np.float32 or array.nbytes < LEAST_BYTES:
        return False
    flat = np.ascontiguousarray(array).reshape(-1)
    examined = flat[:: max(1, flat.nbytes // EXAMINED_BYTES)].tobytes()
    return bool(np.isfinite(flat).all()) and len(zlib.compress(examined, 1)) > RANDOM * len(examined)


def opened(path: Path) -> Artefact:
    """Open an artefact; weights that were left out are drawn."""
    artefact = Artefact.open(path)
    if not (artefact.folder / DRAWN).exists():
        return artefact
    described = json.loads((artefact.folder / DRAWN).read_text(encoding="utf-8"))
    with np.load(artefact.folder / KEPT) as stored:
        kept = dict(stored)
    drawn = _drawn(described["weights"], described["seed"], kept)
    weighted, total = described["fingerprint"]
    if any(abs(a - b) > SAME * total for a, b in zip(fingerprint(drawn), (weighted, total), strict=True)):
        what = f"numpy {np.__version__} draws other weights than the one that prepared {artefact.folder.name}"
        raise LibraryMissing(what, fix="install the version of numpy that it was prepared with")
    others = {name: array for name, array in kept.items() if not name.startswith(NONZERO)}
    return replace(artefact, weights={**others, **drawn})


def _drawn(rows: list[tuple[str, tuple[int, ...], float, float]], seed: int, nonzero: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    specs = [FeedSpec(name, "float32", tuple(shape)) for name, shape, _, _ in rows]
    normal = random_feeds(specs, seed, repeated=True)
    drawn = {name: np.float32(mean) + np.float32(deviation) * normal[name] for name, _, mean, deviation in rows}
    for name, values in drawn.items():
        if (bits := nonzero.get(f"{NONZERO}{name}")) is not None:
            values[np.unpackbits(bits, count=values.size).reshape(values.shape) == 0] = 0
    return drawn
