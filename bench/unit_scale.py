"""Give a model of random weights activations of unit scale, as training would, so that its outputs tell inputs apart.

Random weights of their fan-in's scale are not enough: a few dozen layers of sums saturate the last softmax to zeros and a
one, or the signal fades until the output is the same for every input, and comparing such outputs proves little. Here the
layers are run once, in order, on random inputs: each convolution and product is scaled so that its result's standard
deviation is 1 (and the means of its channels are 0, where it has a bias), and each batch normalisation gets the statistics
of what it normalises.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import onnx
from onnx import numpy_helper

CONTRACTIONS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
LEAST_DEVIATION = 1e-6
"""Results that vary less are constant, and stay as they are."""


def unit_scale(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """Return the model with its layers' weights scaled and statistics measured, on these inputs."""
    weights = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    values: dict[str, np.ndarray] = dict(weights) | {name: _half_uniform(value) for name, value in feeds.items()}
    changed: dict[str, np.ndarray] = {}
    uses = Counter(name for node in model.graph.node for name in set(node.input))
    for node in model.graph.node:
        if node.op_type == "BatchNormalization":
            x = np.asarray(values[node.input[0]], np.float64)
            axes = (0, *range(2, x.ndim))
            changed |= {node.input[3]: x.mean(axes), node.input[4]: x.var(axes) + LEAST_DEVIATION**2}
        elif node.op_type in CONTRACTIONS and node.input[1] in weights and node.input[1] not in changed:
            changed |= _scaled(node, np.asarray(_run(model, node, values)[0], np.float64), weights)
        values |= {name: changed[name].astype(np.float32) for name in node.input if name in changed}
        values |= zip([name for name in node.output if name], _run(model, node, values), strict=True)
        uses -= Counter(set(node.input))
        for name in node.input:
            if name in values and name not in uses and name not in weights:
                del values[name]
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for tensor in made.graph.initializer:
        if tensor.name in changed:
            tensor.CopyFrom(numpy_helper.from_array(changed[tensor.name].astype(np.float32), tensor.name))
    return made


def _scaled(node: onnx.NodeProto, result: np.ndarray, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return weights, and a bias where there is one, that take the channels' means away and make the deviation 1."""
    channel = 1 if "Conv" in node.op_type else result.ndim - 1
    means = result.mean(tuple(axis for axis in range(result.ndim) if axis != channel))
    bias = weights[node.input[2]] if len(node.input) > 2 and result.size > means.size else None
    if bias is not None:
        result = result - means.reshape([-1 if axis == channel else 1 for axis in range(result.ndim)])
    deviation = float(np.std(result))
    if deviation <= LEAST_DEVIATION:
        return {}
    scaled = {node.input[1]: weights[node.input[1]] / deviation}
    return scaled if bias is None else scaled | {node.input[2]: bias - (means - bias) / deviation}


def _half_uniform(value: np.ndarray) -> np.ndarray:
    """Return normal values with half of each row uniform from 0 to 1, as in images: the check draws both."""
    if value.dtype.kind != "f":
        return value
    width = value.shape[-1] // 2
    return np.concatenate([value[..., :width] % 1.0, value[..., width:]], axis=-1)


def _run(model: onnx.ModelProto, node: onnx.NodeProto, values: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Return a node's results."""
    import onnxruntime

    feeds = {name: values[name] for name in dict.fromkeys(node.input) if name}
    types = [
        onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in feeds.items()
    ]
    results = [onnx.helper.make_empty_tensor_value_info(name) for name in node.output if name]
    graph = onnx.helper.make_graph([node], "node", types, results)
    single = onnx.helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # the same weights on every number of cores
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        onnx.shape_inference.infer_shapes(single).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return list(map(np.asarray, session.run(None, feeds)))
