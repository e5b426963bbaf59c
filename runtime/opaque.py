"""Run a step that stayed ONNX with onnxruntime, which is imported only if a plan has such a step."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from runtime.devices import Arithmetic
from runtime.dtypes import ELEMENT_TYPES, NUMPY_NATIVE, PACKED_BITS, element_type, numpy_dtype
from runtime.errors import ArtefactError, KernelError, LibraryMissing
from runtime.plan import Step
from runtime.processor import x86_flags

Value: TypeAlias = Any
"""An ndarray, or what onnxruntime returns for sequences, maps and optionals."""


FOREIGN = frozenset(ELEMENT_TYPES) - NUMPY_NATIVE - {"string"}
"""Element types that onnxruntime does not take from numpy."""
FLUSH_ENTRY = "session.set_denormal_as_zero"
EXACT_BYTES = ("session.x64quantprecision", "1")
"""The option for exact sums of products by constant bytes, which saturate by default on processors without instructions for them."""
BYTE_FEATURES = frozenset({"avx512_vnni", "avx_vnni"})
"""Instructions, by their names on x86, with which onnxruntime's sums are exact by default. The option would keep it from using them: a
quantised ResNet-18 took 23 ms rather than 11, a BERT 110 rather than 38."""


def saturates() -> bool:
    """Return whether onnxruntime's sums of products by signed bytes saturate by default on this processor."""
    return BYTE_FEATURES.isdisjoint(x86_flags())


def open_session(model: str | bytes, options: Any) -> Any:
    """Open a model in onnxruntime with exact sums of bytes; without the option for that if onnxruntime refuses the model because of it.

    With it, onnxruntime (1.32) has no kernel for convolutions of signed bytes by signed bytes on processors without instructions for bytes.
    """
    import onnxruntime

    if saturates():
        options.add_session_config_entry(*EXACT_BYTES)
    try:
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions share no base class
        if type(error).__name__ != "NotImplemented":
            raise
        options.add_session_config_entry(EXACT_BYTES[0], "0")
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


class OpaqueStep:
    """One onnxruntime session for one step; in a forked child, a new one, opened at its first run."""

    def __init__(
        self, step: Step, model: str | bytes, input_dtypes: Sequence[str], arithmetic: Arithmetic, *,
        threads: int, alone: bool, keep_subnormals: bool,
    ) -> None:  # fmt: skip
        try:
            import onnxruntime
        except ImportError as error:
            what = "this program has steps that onnxruntime runs, and it is not installed"
            raise LibraryMissing(what, fix="pip install onnxruntime") from error
        self.step = step
        self.input_names: list[str] = list(step.spec["input_names"])
        self.output_names: list[str] = list(step.spec["output_names"])
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = 1 if step.spec.get("is_small") else threads, 1
        options.log_severity_level = 3
        if not alone:  # threads may spin between the parts of one step (an LSTM has hundreds), but not on the next kernel's cores
            options.add_session_config_entry("session.force_spinning_stop", "1")
        if not keep_subnormals and arithmetic.can_flush:  # else the calling thread would flush from then on, whatever it computes
            options.add_session_config_entry(FLUSH_ENTRY, "1")
        self._onnxruntime, self._model, self._options = onnxruntime, model, options
        self._arithmetic, self._keep_subnormals = arithmetic, keep_subnormals
        self.is_forked = False
        self.session: Any = self._open()
        output_types = [value.type for value in self.session.get_outputs()]
        self.is_foreign = any(name in FOREIGN for name in input_dtypes) or any(
            kind == f"tensor({ELEMENT_TYPES[name].ort_name})" for kind in output_types for name in FOREIGN
        )

    def _open(self) -> Any:
        """Open the session. The first one of a process sets the calling thread's floating-point control, which is restored."""
        before = self._arithmetic.set_subnormals(keep=self._keep_subnormals)
        try:
            return open_session(self._model, self._options)
        except Exception as error:  # onnxruntime's exceptions share no base class
            fix = "keep the artefact where it is, or open the Session in the forked process" if self.is_forked else ""
            raise ArtefactError(f"onnxruntime refuses a step's model: {error}", where=self.step.name, fix=fix) from error
        finally:
            self._arithmetic.restore(before)

    def abandon(self) -> None:
        """Abandon the session, because its threads are in the parent process, and closing it would wait for them."""
        if self.session is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.session))
            self.session, self.is_forked = None, True

    def run(self, output_names: Sequence[str] | None, feeds: dict[str, Value], run_options: Any = None) -> list[Value]:
        """Run the model; errors name the step that failed."""
        names = self.output_names if output_names is None else list(output_names)
        try:
            return self.run_as_called(names, feeds, run_options)
        except ArtefactError:
            raise
        except Exception as error:  # onnxruntime's exceptions share no base class
            raise KernelError(f"onnxruntime failed: {error}", where=self.step.name) from error

    def run_as_called(self, names: list[str], feeds: Mapping[str, Value], run_options: Any = None) -> list[Value]:
        """Run the model as onnxruntime does, its own exceptions included."""
        if self.session is None:
            self.session = self._open()
        before = self._arithmetic.set_subnormals(keep=self._keep_subnormals)  # onnxruntime sets this only in its own threads
        try:
            if self.is_foreign:
                return self._run_foreign(names, feeds, run_options)
            result: list[Value] = self.session.run(names, feeds, run_options)
            return result
        finally:
            self._arithmetic.restore(before)

    def _run_foreign(self, names: list[str], feeds: Mapping[str, Value], run_options: Any) -> list[Value]:
        """Pass element types that numpy lacks as their bits."""
        values = {name: self._to_value(feed) for name, feed in feeds.items()}
        return [_from_value(value) for value in self.session.run_with_ort_values(names, values, run_options)]

    def _to_value(self, feed: np.ndarray) -> Any:
        make = self._onnxruntime.OrtValue
        if feed.dtype.name in NUMPY_NATIVE or feed.dtype == np.object_:
            return make.ortvalue_from_numpy(np.require(feed, requirements="C"))
        code = element_type(feed.dtype.name).onnx_code
        if feed.dtype.name not in PACKED_BITS:
            bits = np.require(feed, requirements="C").view(f"uint{8 * feed.dtype.itemsize}")
            return make.ortvalue_from_numpy_with_onnx_type(bits, code)
        value, packed = make.ortvalue_from_shape_and_type(list(feed.shape), code), _packed(feed)
        ctypes.memmove(value.data_ptr(), packed.ctypes.data, packed.nbytes)
        return value


def _packed(array: np.ndarray) -> np.ndarray:
    """Return sub-byte elements side by side, the first one in the lowest bits."""
    width = PACKED_BITS[array.dtype.name]
    bits = np.ascontiguousarray(array).reshape(-1).view(np.uint8) & ((1 << width) - 1)
    bits = np.pad(bits, (0, -bits.size % (8 // width))).reshape(-1, 8 // width)
    packed: np.ndarray = np.bitwise_or.reduce(bits << np.arange(0, 8, width, dtype=np.uint8), axis=1)
    return packed


def _unpacked(packed: np.ndarray, name: str, shape: Sequence[int]) -> np.ndarray:
    width, signed = PACKED_BITS[name], name.startswith("int")
    bits = (packed[:, None] >> np.arange(0, 8, width, dtype=np.uint8)) & ((1 << width) - 1)
    bits = bits.reshape(-1)[: int(np.prod(shape))].astype(np.int8)
    if signed:
        bits = np.where(bits >= 1 << (width - 1), bits - (1 << width), bits).astype(np.int8)
    dtype = numpy_dtype(name)
    return bits.astype(dtype).reshape(shape) if name != "float4_e2m1fn" else bits.view(dtype).reshape(shape)


def _from_value(value: Any) -> Value:
    names = {element.onnx_code: element.name for element in ELEMENT_TYPES.values()}
    if not value.is_tensor() or names.get(value.element_type()) not in FOREIGN:
        return value.numpy()
    name, shape = names[value.element_type()], value.shape()
    if name in PACKED_BITS:
        packed = np.empty(-(-int(np.prod(shape)) * PACKED_BITS[name] // 8), np.uint8)
        ctypes.memmove(packed.ctypes.data, value.data_ptr(), packed.nbytes)
        return _unpacked(packed, name, shape)
    result = np.empty(shape, numpy_dtype(name))
    ctypes.memmove(result.ctypes.data, value.data_ptr(), result.nbytes)
    return result
