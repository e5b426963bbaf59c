"""Run a step that stayed ONNX with onnxruntime, which is imported only when a plan has such a step."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from runtime.dtypes import NUMPY_NATIVE, element_type, numpy_dtype
from runtime.errors import ArtefactError, KernelError, LibraryMissing
from runtime.plan import Step

Value: TypeAlias = Any
"""An ndarray, or what onnxruntime returns for sequences, maps and optionals."""


class OpaqueStep:
    """One onnxruntime session for one step."""

    def __init__(self, step: Step, model: str | bytes, input_dtypes: Sequence[str], *, threads: int, alone: bool) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            what = "this program has steps that onnxruntime runs, and it is not installed"
            raise LibraryMissing(what, fix="pip install onnxruntime") from error
        self.step = step
        self.input_names: list[str] = list(step.spec["input_names"])
        self.output_names: list[str] = list(step.spec["output_names"])
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3
        if not alone:  # its threads would spin on the cores that the next kernel needs
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self.session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's exceptions share no base class
            raise ArtefactError(f"onnxruntime refuses a step's model: {error}", where=step.name) from error
        self._onnxruntime = onnxruntime
        output_types = [value.type for value in self.session.get_outputs()]
        self._foreign = any(name not in NUMPY_NATIVE and name != "string" for name in input_dtypes) or any(
            word in kind for kind in output_types for word in ("bfloat16", "float8")
        )

    def run(self, output_names: Sequence[str] | None, feeds: dict[str, Value], run_options: Any = None) -> list[Value]:
        """Run the model; errors say which step failed."""
        names = self.output_names if output_names is None else list(output_names)
        try:
            if self._foreign:
                return self._run_foreign(names, feeds, run_options)
            result: list[Value] = self.session.run(names, feeds, run_options)
            return result
        except Exception as error:  # onnxruntime's exceptions share no base class
            raise KernelError(f"onnxruntime failed: {error}", where=self.step.name) from error

    def _run_foreign(self, names: list[str], feeds: dict[str, Value], run_options: Any) -> list[Value]:
        """Pass element types that numpy lacks as their bits."""
        values = {name: self._to_value(feed) for name, feed in feeds.items()}
        return [_from_value(value) for value in self.session.run_with_ort_values(names, values, run_options)]

    def _to_value(self, feed: np.ndarray) -> Any:
        make = self._onnxruntime.OrtValue
        if feed.dtype.name in NUMPY_NATIVE or feed.dtype == np.object_:
            return make.ortvalue_from_numpy(np.ascontiguousarray(feed))
        bits = np.ascontiguousarray(feed).view(f"uint{8 * feed.dtype.itemsize}")
        return make.ortvalue_from_numpy_with_onnx_type(bits, element_type(feed.dtype.name).onnx_code)


def _from_value(value: Any) -> Value:
    if not value.is_tensor() or not any(word in value.data_type() for word in ("bfloat16", "float8")):
        return value.numpy()
    name = {16: "bfloat16", 17: "float8_e4m3fn", 18: "float8_e4m3fnuz", 19: "float8_e5m2", 20: "float8_e5m2fnuz"}[value.element_type()]
    result = np.empty(value.shape(), numpy_dtype(name))
    ctypes.memmove(result.ctypes.data, value.data_ptr(), result.nbytes)
    return result
