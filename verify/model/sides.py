"""Read the models to compare: an ONNX model, or an artefact with the model stored beside it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import inliner

from egraph.errors import ModelError
from egraph.onnx import importer
from egraph.onnx.exact_bytes import exact_file
from egraph.onnx.importer.sizes import give_sizes
from egraph.onnx.importer.unsigned import as_unsigned
from egraph.tensor import Graph
from runtime import Session
from runtime.artefact import MANIFEST, MODEL_SUFFIX, SUFFIX


@dataclass(frozen=True)
class Side:
    """One of the two models. ``artefact``: the folder whose kernels compute the outputs, instead of onnxruntime."""

    path: Path
    proto: onnx.ModelProto
    graph: Graph
    artefact: Path | None = None
    rules: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """For each tensor, the rules that contributed to the node that makes it."""
    read_by: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """For each tensor, the tensors read by the node that makes it."""

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.graph.outputs)

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(node.string("name") for node in self.graph.inputs)

    @cached_property
    def manifest(self) -> Mapping[str, Any]:
        """Return the manifest of the run that made an artefact; empty for other models."""
        folder = self.artefact or (
            self.path.with_name(self.path.name.removesuffix(MODEL_SUFFIX) + SUFFIX) if self.path.name.endswith(MODEL_SUFFIX) else None
        )
        file = None if folder is None else folder / MANIFEST
        loaded: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file is not None and file.is_file() else {}
        run: Mapping[str, Any] = loaded.get("run", {})
        return run

    def rules_behind(self, tensor: str, candidates: Collection[str]) -> frozenset[str]:
        """Return the rules that contributed to a tensor, down to the known tensors."""
        rules: set[str] = set()
        seen: set[str] = set()
        stack = [tensor]
        while stack:
            name = stack.pop()
            if name in seen or (name in candidates and name != tensor):
                continue
            seen.add(name)
            rules |= self.rules.get(name, frozenset())
            stack += self.read_by.get(name, ())
        return frozenset(rules)

    def values(self, feeds: Mapping[str, Any], names: Sequence[str], threads: int) -> dict[str, np.ndarray]:
        """Return the values of tensors of the model on these inputs; an artefact's kernels compute its outputs."""
        computed = dict(zip(names, self._session(tuple(names), threads).run(list(names), dict(feeds)), strict=True)) if names else {}
        if self.artefact is not None:
            with Session(self.artefact, threads=threads) as session:
                computed |= dict(zip(self.outputs, session.run(None, dict(feeds)), strict=True))
        unsigned = {name for node, name in self.graph.names.items() if node.type.dtype == "uint8"}
        return {name: _as_imported(value, is_unsigned=name in unsigned) for name, value in computed.items() if name in names}

    def _session(self, names: tuple[str, ...], threads: int) -> Any:
        proto = onnx.ModelProto()
        proto.CopyFrom(self.proto)
        declared = {value.name for value in proto.graph.output}
        proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in declared)
        return _open(proto.SerializeToString(), threads)


def _as_imported(value: np.ndarray, *, is_unsigned: bool) -> np.ndarray:
    """Return signed bytes as unsigned ones, as the importer converts them."""
    return as_unsigned(value) if is_unsigned and value.dtype == np.int8 else value


def _open(model: bytes, threads: int) -> Any:
    """Open a model in onnxruntime on the CPU, without optimisations, so that every tensor is computed by its own node."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(exact_file(model), options, providers=["CPUExecutionProvider"])


def read_side(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> Side:
    """Return a model, or an artefact with its model; raises ModelError if it cannot be read."""
    artefact = path if path.is_dir() else None
    file = path.with_name(path.name.removesuffix(SUFFIX) + MODEL_SUFFIX) if artefact else path
    if artefact and not file.is_file():
        raise ModelError(f"there is no {file.name} beside the artefact", where=str(path), fix="keep both together")
    if not file.is_file():
        raise ModelError("there is no such file", where=str(path), fix="give an ONNX model, or the folder model.einsat")
    try:
        proto = onnx.load(str(file))
    except Exception as error:  # protobuf and the file system raise their own classes
        raise ModelError(f"the model cannot be read: {error}", where=str(file), fix="give an ONNX model") from error
    give_sizes(proto, shapes)
    rules = {output: _rules(node) for node in proto.graph.node for output in node.output}
    read_by = {output: tuple(node.input) for node in proto.graph.node for output in node.output}
    if proto.functions:
        proto = inliner.inline_local_functions(proto)
    return Side(file, proto, importer.load(proto, shapes=shapes).graph, artefact, rules, read_by)


def _rules(node: onnx.NodeProto) -> frozenset[str]:
    return frozenset(rule for entry in node.metadata_props if entry.key == "einsat.rules" for rule in entry.value.split(";") if rule)
