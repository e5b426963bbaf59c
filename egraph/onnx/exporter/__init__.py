"""Write a Graph or a Program as standard ONNX, with eOperators as functions that any ONNX runtime can run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx

from egraph.errors import EinsatError, LowerError
from egraph.onnx.exact_bytes import separate_file
from egraph.onnx.exporter.build import Builder
from egraph.onnx.exporter.store import Apart, External, Inline, Store, beside, total_bytes
from egraph.tensor import Graph, Node, Program

EXTERNAL_ABOVE_BYTES = 256 << 20


def export(exported: Graph | Program, *, rules: Mapping[Node, Sequence[str]] | None = None) -> onnx.ModelProto:
    """Return the model; inputs, outputs and surviving tensors keep their names.

    ``rules`` names the rules that made a node. Constants are in the model itself: above 2 GB use ``save``.
    """
    return _build(exported, Inline(), rules or {})


def serialized(exported: Graph | Program) -> bytes:
    """Return the model as bytes that onnxruntime runs exactly; equal graphs give equal bytes."""
    return separate_file(export(exported).SerializeToString(deterministic=True))


def parts(exported: Graph | Program) -> tuple[bytes, dict[str, np.ndarray]]:
    """Return the model as bytes, and separately the large constants that it names."""
    store = Apart()
    return _build(exported, store, {}).SerializeToString(deterministic=True), store.constants


def save(
    exported: Graph | Program, path: str | Path, *, rules: Mapping[Node, Sequence[str]] | None = None,
    external_above_bytes: int = EXTERNAL_ABOVE_BYTES,
) -> tuple[Path, ...]:  # fmt: skip
    """Write the model, and its constants beside it if they exceed the limit; return the files, the model first.

    Files are written under another name and renamed when complete, so that no reader ever sees half a file.
    """
    path = Path(path)
    graph = exported.graph if isinstance(exported, Program) else exported
    data = path.with_name(f"{path.name}.data")
    written: list[Path] = []
    try:
        if total_bytes(dict(graph.tensors)) > external_above_bytes:
            written.append(data)
            with beside(data).open("wb") as file:
                model = _build(exported, External(file, data.name), rules or {})
                _flush(file.fileno())
        else:
            model = _build(exported, Inline(), rules or {})
        written.insert(0, path)
        with beside(path).open("wb") as file:
            file.write(model.SerializeToString(deterministic=True))
            file.flush()
            _flush(file.fileno())
        for final in reversed(written):
            beside(final).replace(final)
    except OSError as error:
        raise LowerError(f"the model cannot be written: {error.strerror}", where=str(path),
                         fix="free some space or choose another folder with -o") from error
    finally:
        for final in (path, data):
            beside(final).unlink(missing_ok=True)
    return tuple(written)


def _flush(descriptor: int) -> None:
    """Flush a file to disk, so that a full disk is noticed before the rename."""
    os.fsync(descriptor)


def _build(exported: Graph | Program, store: Store, rules: Mapping[Node, Sequence[str]]) -> onnx.ModelProto:
    if isinstance(exported, Graph):
        return Builder.start(exported, exported.roots, store, rules).finish()
    kernels = [node for kernel in exported.kernels for node in (kernel.fragment, *kernel.inputs)]
    builder = Builder.start(exported.graph, [*kernels, *exported.graph.roots], store, rules)
    for kernel in exported.kernels:
        builder.kernel(kernel)
    return builder.finish()


__all__ = ["EXTERNAL_ABOVE_BYTES", "EinsatError", "export", "parts", "save"]
