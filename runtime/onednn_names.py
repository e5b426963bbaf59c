"""oneDNN's enumerations, as the numbers of its C API version 3."""

from __future__ import annotations

SUCCESS, UNIMPLEMENTED = 0, 3
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

CONVOLUTION_ALGORITHMS = {"direct": 0x1, "winograd": 0x2, "auto": 0x3}
DECONVOLUTION_ALGORITHMS = {"direct": 0xA, "winograd": 0xB}
ELTWISE_ALGORITHMS = {
    name: 0x20 + number
    for number, name in enumerate(
        "relu tanh elu square abs sqrt linear soft_relu hardsigmoid logistic exp gelu_tanh swish log clip clip_v2 pow gelu_erf round "
        "mish hardswish".split()
    )
}
POOLING_ALGORITHMS = {"max": 0x1FF, "average_include_padding": 0x2FF, "average_exclude_padding": 0x3FF}
LRN_ACROSS_CHANNELS = 0xAFF
BINARY_ALGORITHMS = {name: 0x1FFF0 + number for number, name in enumerate("add mul max min div sub ge gt le lt eq ne".split())}
RESAMPLING_ALGORITHMS = {"nearest": 0x2FFF0, "linear": 0x2FFF1}
REDUCTION_ALGORITHMS = {name: 0x2FFF2 + number for number, name in enumerate("max min sum mul mean".split())}
SOFTMAX_ALGORITHMS = {"softmax": 0x30000, "logsoftmax": 0x30001}

ARGUMENTS = {
    "src": 1, "src0": 1, "src1": 2, "dst": 17, "weights": 33, "bias": 41, "scale": 51, "shift": 52,
}  # fmt: skip
ARGUMENT_SCRATCHPAD = 80
ARGUMENT_MULTIPLE_SRC = 1024
ARGUMENT_POST_OPERATION = 32768
"""A post-operation's own argument is this times one more than its position, plus src1 (binary) or weights (prelu)."""

QUERY_IMPLEMENTATION = 8
QUERY_MEMORY_DESCRIPTORS = {"src": 129, "src0": 129, "src1": 129, "weights": 131, "bias": 131, "dst": 133}
QUERY_SCRATCHPAD = 136
