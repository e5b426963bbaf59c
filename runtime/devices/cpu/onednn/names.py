"""oneDNN's enumerations, as the numbers of its C API version 3."""

from __future__ import annotations

SUCCESS = 0
STATUS_NAMES = {
    1: "out of memory",
    2: "invalid arguments",
    3: "not implemented",
    4: "no further implementation",
    5: "runtime error",
    6: "not required",
    7: "invalid graph",
    8: "invalid graph operation",
    9: "invalid shape",
    10: "invalid data type",
}

MOST_DIMENSIONS = 12
ENGINE_CPU = 1
STREAM_IN_ORDER = 1
FORWARD_INFERENCE = 96
FORMAT_TAG_ANY = 1
SCRATCHPAD_USER = 1
USE_SCALE, USE_SHIFT = 2, 4

DATA_TYPES = {"float16": 1, "bfloat16": 2, "float32": 3, "int32": 4, "int8": 5, "uint8": 6, "bool": 6}
"""bool is read as bytes of 0 and 1, which is what comparisons write."""

DIRECT = {"convolution": 0x1, "deconvolution": 0xA}
ELTWISE_ALGORITHMS = {
    "relu": 0x20, "tanh": 0x21, "elu": 0x22, "square": 0x23, "abs": 0x24, "sqrt": 0x25, "linear": 0x26, "soft_relu": 0x27,
    "hardsigmoid": 0x28, "logistic": 0x29, "exp": 0x2A, "gelu_tanh": 0x2B, "swish": 0x2C, "log": 0x2D, "clip": 0x2E, "clip_v2": 0x2F,
    "pow": 0x30, "gelu_erf": 0x31, "round": 0x32, "mish": 0x33, "hardswish": 0x34,
}  # fmt: skip
POOLING_ALGORITHMS = {"average_include_padding": 0x2FF, "average_exclude_padding": 0x3FF}
LRN_ACROSS_CHANNELS = 0xAFF
BINARY_ALGORITHMS = {
    "add": 0x1FFF0, "mul": 0x1FFF1, "max": 0x1FFF2, "min": 0x1FFF3, "div": 0x1FFF4, "sub": 0x1FFF5, "ge": 0x1FFF6, "gt": 0x1FFF7,
    "le": 0x1FFF8, "lt": 0x1FFF9, "eq": 0x1FFFA, "ne": 0x1FFFB,
}  # fmt: skip
RESAMPLING_ALGORITHMS = {"nearest": 0x2FFF0, "linear": 0x2FFF1}
REDUCTION_ALGORITHMS = {"max": 0x2FFF2, "min": 0x2FFF3, "sum": 0x2FFF4, "mul": 0x2FFF5, "mean": 0x2FFF6}

ARGUMENTS = {
    "src": 1, "src0": 1, "src1": 2, "dst": 17, "weights": 33, "bias": 41, "scale": 51, "shift": 52,
}  # fmt: skip
ARGUMENT_SCRATCHPAD = 80
ARGUMENT_POST_OPERATION = 32768
"""A post-operation's own argument is this times one more than its position, plus src1 (binary) or weights (prelu)."""

QUERY_IMPLEMENTATION = 8
QUERY_MEMORY_DESCRIPTORS = {"src": 129, "src0": 129, "src1": 129, "weights": 131, "bias": 131, "dst": 133}
QUERY_SCRATCHPAD = 136
