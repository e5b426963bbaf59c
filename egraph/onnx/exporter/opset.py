"""Choose the opset of an exported model: new where opaque nodes allow it, else the source model's own."""

from __future__ import annotations

from collections.abc import Iterable

import onnx

from egraph.tensor import OnnxContext

WANTED = 18
NEWEST = 26
"""Runtimes refuse models of an opset that they know only as under development."""


def target_opset(context: OnnxContext, opaque: Iterable[onnx.NodeProto]) -> int:
    """Return an opset in which every opaque node means what it meant in the source model."""
    own = dict(context.opsets).get("", WANTED)
    if WANTED <= own <= NEWEST or context.functions:
        return own
    nodes = list(opaque)
    wanted = (WANTED,) if own < WANTED else range(NEWEST, WANTED - 1, -1)
    return next((version for version in wanted if not any(_changed(node, own, version) for node in nodes)), own)


def _changed(node: onnx.NodeProto, own: int, wanted: int) -> bool:
    """Return whether the operator, or one inside its subgraphs, has another definition in the wanted opset."""
    inner = (n for a in node.attribute for g in ([a.g] if a.HasField("g") else list(a.graphs)) for n in g.node)
    if any(_changed(n, own, wanted) for n in inner):
        return True
    if node.domain not in ("", "ai.onnx"):
        return False
    try:
        versions = {onnx.defs.get_schema(node.op_type, version, "").since_version for version in (own, wanted)}
    except onnx.defs.SchemaError:
        return True
    return len(versions) > 1
