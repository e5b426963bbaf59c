"""Bring a model to a supported opset and inline its own functions."""

from __future__ import annotations

import onnx
import onnx.inliner
import onnx.version_converter

from egraph.errors import ModelError

OLDEST = 7
"""The oldest opset that is read as it is: broadcasting is numpy's from here on."""


def prepared(model: onnx.ModelProto) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """Return the model at a supported opset with its functions inlined where onnx can, and notes on what was done."""
    notes: list[str] = []
    version = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)
    newest = onnx.defs.onnx_opset_version()
    if not model.opset_import:
        version = 1  # models of IR version 2 and older state no opset
        model.opset_import.append(onnx.helper.make_opsetid("", 1))
    if version > newest:
        raise ModelError(f"opset {version} is newer than the onnx package knows ({newest})", where="the model's opset_import",
                         fix="pip install --upgrade onnx, or export the model with an older opset")
    if 0 < version < OLDEST:
        try:
            model = onnx.version_converter.convert_version(model, OLDEST)
        except Exception as error:  # the converter raises what its C++ raises
            raise ModelError(
                f"opset {version} is older than {OLDEST} and cannot be converted: {' '.join(str(error).split())[:200]}",
                where="the model's opset_import", fix="export the model again with opset 9 or newer",
            ) from error
        notes.append(f"converted from opset {version} to {OLDEST}")
    if model.functions:
        try:
            inlined = onnx.inliner.inline_local_functions(model)
        except Exception as error:  # the inliner raises what its C++ raises
            notes.append(f"the model's functions are kept as they are: {' '.join(str(error).split())[:200]}")
        else:
            model = inlined
    return model, tuple(notes)
