"""The core operators as functions over rule tensors: rules read ``relu(conv(x, w, a))``.

Attributes come from an attributes variable or tuple (the last argument) or as keywords, as in ``rewrite.terms.operation``.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from egraph.rewrite.terms import Attributes, Tensor, operation
from egraph.tensor import Attributes as AttributeTuple

By: TypeAlias = Attributes | AttributeTuple | None


def unary(name: str, x: Tensor, a: By = None) -> Tensor:
    """Apply the one-operand operator called ``name``: families of rules are generated over such names."""
    return operation(name, x, by=a)


def binary(name: str, x: Tensor, y: Tensor) -> Tensor:
    """Apply the two-operand operator called ``name``."""
    return operation(name, x, y)


def relu(x: Tensor) -> Tensor:
    """Return max(x, 0)."""
    return operation("Relu", x)


def sigmoid(x: Tensor) -> Tensor:
    """Return 1 / (1 + exp(-x))."""
    return operation("Sigmoid", x)


def tanh(x: Tensor) -> Tensor:
    """Return the hyperbolic tangent."""
    return operation("Tanh", x)


def cast(x: Tensor, *, to: str) -> Tensor:
    """Return integers converted to another type."""
    return operation("Cast", x, to=to)


def saturate(x: Tensor, *, to: str) -> Tensor:
    """Return the nearest values of a byte type."""
    return operation("Saturate", x, to=to)


def quantize(x: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
    """Return round(x / scale) + zero_point, saturated."""
    return operation("Quantize", x, scale, zero_point)


def dequantize(x: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
    """Return (x - zero_point) * scale."""
    return operation("Dequantize", x, scale, zero_point)


def exp(x: Tensor) -> Tensor:
    """Return e to the x."""
    return operation("Exp", x)


def log(x: Tensor) -> Tensor:
    """Return the natural logarithm."""
    return operation("Log", x)


def sqrt(x: Tensor) -> Tensor:
    """Return the square root."""
    return operation("Sqrt", x)


def erf(x: Tensor) -> Tensor:
    """Return the error function."""
    return operation("Erf", x)


def reciprocal(x: Tensor) -> Tensor:
    """Return 1 / x."""
    return operation("Reciprocal", x)


def absolute(x: Tensor) -> Tensor:
    """Return |x|."""
    return operation("Abs", x)


def softplus(x: Tensor) -> Tensor:
    """Return log(1 + exp(x))."""
    return operation("Softplus", x)


def softsign(x: Tensor) -> Tensor:
    """Return x / (1 + |x|)."""
    return operation("Softsign", x)


def hard_swish(x: Tensor) -> Tensor:
    """Return x * clip(x + 3, 0, 6) / 6."""
    return operation("HardSwish", x)


def hard_sigmoid(x: Tensor, a: By = None, **values: float) -> Tensor:
    """Return clip(alpha x + beta, 0, 1)."""
    return operation("HardSigmoid", x, by=a, **values)


def mish(x: Tensor) -> Tensor:
    """Return x * tanh(softplus(x))."""
    return operation("Mish", x)


def gelu(x: Tensor, *, approximate: str) -> Tensor:
    """Return the Gaussian error linear unit, exact (``none``) or by ``tanh``."""
    return operation("Gelu", x, approximate=approximate)


def leaky_relu(x: Tensor, a: By = None, **values: float) -> Tensor:
    """Return x where x >= 0, else alpha x."""
    return operation("LeakyRelu", x, by=a, **values)


def clip(x: Tensor, a: By = None, **values: float) -> Tensor:
    """Return min(max(x, low), high)."""
    return operation("Clip", x, by=a, **values)


def power(x: Tensor, y: Tensor) -> Tensor:
    """Return x to the y."""
    return operation("Pow", x, y)


def maximum(x: Tensor, y: Tensor) -> Tensor:
    """Return the larger of both."""
    return operation("Max", x, y)


def minimum(x: Tensor, y: Tensor) -> Tensor:
    """Return the smaller of both."""
    return operation("Min", x, y)


def prelu(x: Tensor, slope: Tensor) -> Tensor:
    """Return x where x >= 0, else slope * x."""
    return operation("PRelu", x, slope)


def where(condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return x where the condition holds, else y."""
    return operation("Where", condition, x, y)


def reshape(x: Tensor, a: By = None, **values: tuple[int, ...]) -> Tensor:
    """Return the same elements in another shape."""
    return operation("Reshape", x, by=a, **values)


def transpose(x: Tensor, a: By = None, **values: tuple[int, ...]) -> Tensor:
    """Return x with its axes permuted."""
    return operation("Transpose", x, by=a, **values)


def concat(*xs: Tensor, a: By = None, **values: int) -> Tensor:
    """Return the operands one after the other along an axis."""
    return operation("Concat", *xs, by=a, **values)


def slice_(x: Tensor, a: By = None, **values: tuple[int, ...]) -> Tensor:
    """Return a strided part of x."""
    return operation("Slice", x, by=a, **values)


def pad(x: Tensor, a: By = None, **values: Any) -> Tensor:
    """Return x with a border."""
    return operation("Pad", x, by=a, **values)


def expand(x: Tensor, a: By = None, **values: tuple[int, ...]) -> Tensor:
    """Return x broadcast to a shape."""
    return operation("Expand", x, by=a, **values)


def gather(x: Tensor, indices: Tensor, a: By = None, **values: int) -> Tensor:
    """Return the entries of x at the indices along an axis."""
    return operation("Gather", x, indices, by=a, **values)


def resize(x: Tensor, a: By) -> Tensor:
    """Return x resampled."""
    return operation("Resize", x, by=a)


def matmul(x: Tensor, y: Tensor) -> Tensor:
    """Return the (batched) matrix product."""
    return operation("MatMul", x, y)


def conv(x: Tensor, w: Tensor, a: By = None, **values: Any) -> Tensor:
    """Return the convolution."""
    return operation("Conv", x, w, by=a, **values)


def conv_transpose(x: Tensor, w: Tensor, a: By = None, **values: Any) -> Tensor:
    """Return the transposed convolution."""
    return operation("ConvTranspose", x, w, by=a, **values)


def reduce_sum(x: Tensor, a: By = None, **values: tuple[int, ...]) -> Tensor:
    """Return sums over axes, kept with size one."""
    return operation("ReduceSum", x, by=a, **values)


def reduce_mean(x: Tensor, a: By = None, **values: tuple[int, ...]) -> Tensor:
    """Return means over axes, kept with size one."""
    return operation("ReduceMean", x, by=a, **values)


def reduce_max(x: Tensor, a: By = None, **values: tuple[int, ...]) -> Tensor:
    """Return maxima over axes, kept with size one."""
    return operation("ReduceMax", x, by=a, **values)


def max_pool(x: Tensor, a: By = None, **values: Any) -> Tensor:
    """Return maxima over windows; padding never wins."""
    return operation("MaxPool", x, by=a, **values)


def average_pool(x: Tensor, a: By = None, **values: Any) -> Tensor:
    """Return means over windows."""
    return operation("AveragePool", x, by=a, **values)


def softmax(x: Tensor, a: By = None, **values: int) -> Tensor:
    """Return exp(x) / sum(exp(x)) along an axis."""
    return operation("Softmax", x, by=a, **values)


def log_softmax(x: Tensor, a: By = None, **values: int) -> Tensor:
    """Return log(softmax(x))."""
    return operation("LogSoftmax", x, by=a, **values)


def layer_normalization(x: Tensor, scale: Tensor, bias: Tensor, a: By = None, **values: Any) -> Tensor:
    """Return x normalised over the axes from ``axis`` on, times scale, plus bias."""
    return operation("LayerNormalization", x, scale, bias, by=a, **values)


def instance_normalization(x: Tensor, scale: Tensor, bias: Tensor, a: By = None, **values: Any) -> Tensor:
    """Return x normalised over its spatial axes, times scale, plus bias, with one scale and bias per channel."""
    return operation("InstanceNormalization", x, scale, bias, by=a, **values)
