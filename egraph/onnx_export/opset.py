"""Choose the opset of an exported model: new where opaque nodes allow it, else the source model's own."""

from __future__ import annotations

from collections.abc import Iterable

import onnx

from egraph.ir import OnnxContext

WANTED = 18


def target_opset(context: OnnxContext, opaque: Iterable[onnx.NodeProto]) -> int:
    """Return an opset in which every opaque node means what it meant in the source model."""
    own = dict(context.opsets).get("", WANTED)
    if own >= WANTED:
        return own
    if context.functions or any(_changed(node, own) for node in opaque):
        return own
    return WANTED


def _changed(node: onnx.NodeProto, own: int) -> bool:
    """Return whether the operator, or one inside its subgraphs, has another definition in the wanted opset."""
    inner = (n for a in node.attribute for g in ([a.g] if a.HasField("g") else list(a.graphs)) for n in g.node)
    if any(_changed(n, own) for n in inner):
        return True
    if node.domain not in ("", "ai.onnx"):
        return False
    try:
        versions = {onnx.defs.get_schema(node.op_type, version, "").since_version for version in (own, WANTED)}
    except onnx.defs.SchemaError:
        return True
    return len(versions) > 1
