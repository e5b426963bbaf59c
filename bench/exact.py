"""A model's outputs in 64-bit floats: what every engine's rounding can be measured against, onnxruntime's too."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx


def exact_outputs(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray] | None:
    """Return the outputs, computed by torch in 64-bit floats; None where torch is missing or cannot."""
    try:
        import torch

        from bench.torch_model import TorchModel

        module = TorchModel(model, precise=True)
        operands = [torch.from_numpy(_widened(feeds[value.name])) for value in model.graph.input]
        with torch.inference_mode():
            return [tensor.numpy() for tensor in module(*operands)]
    except (ImportError, LookupError, RuntimeError, MemoryError):  # not installed, not translated, refused by torch, too large
        return None


def _widened(value: np.ndarray) -> np.ndarray:
    return value.astype(np.float64) if value.dtype == np.float32 else np.array(value)
