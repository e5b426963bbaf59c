"""Networks built here, with random weights: shapes from the papers."""

from __future__ import annotations

import numpy as np
import onnx

from bench.builder import Builder


def resnet18(batch: int) -> onnx.ModelProto:
    b = Builder("resnet18")
    x = b.input("x", (batch, 3, 224, 224))
    y = b.relu(b.batch_norm(b.conv(x, 3, 64, 7, stride=2, bias=False), 64))
    y = b.node("MaxPool", y, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = 64
    for width, stride in ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)):
        z = b.relu(b.batch_norm(b.conv(y, channels, width, 3, stride=stride, bias=False), width))
        z = b.batch_norm(b.conv(z, width, width, 3, bias=False), width)
        if stride != 1 or channels != width:
            y = b.batch_norm(b.conv(y, channels, width, 1, stride=stride, bias=False), width)
        y, channels = b.relu(b.node("Add", z, y)), width
    y = b.node("Flatten", b.node("GlobalAveragePool", y), axis=1)
    return b.model(b.node("Gemm", y, b.weight(1000, 512), b.weight(1000, scale=0.1), transB=1))


def layer_norm(b: Builder, x: str, width: int, *, fused: bool, epsilon: float = 1e-12) -> str:
    """LayerNormalization as one node, or in the parts that older exporters write."""
    gain, bias = b.constant(b.random.uniform(0.5, 1.5, width).astype(np.float32)), b.weight(width, scale=0.1)
    if fused:
        return b.node("LayerNormalization", x, gain, bias, axis=-1, epsilon=epsilon)
    axes = b.integers(-1)
    centred = b.node("Sub", x, b.node("ReduceMean", x, axes, keepdims=1))
    variance = b.node("ReduceMean", b.node("Pow", centred, b.constant(np.float32(2))), axes, keepdims=1)
    deviation = b.node("Sqrt", b.node("Add", variance, b.constant(np.float32(epsilon))))
    return b.node("Add", b.node("Mul", b.node("Div", centred, deviation), gain), bias)


def gelu(b: Builder, x: str) -> str:
    """x * 0.5 * (1 + erf(x / sqrt 2)), as PyTorch exports it."""
    inner = b.node("Erf", b.node("Div", x, b.constant(np.float32(np.sqrt(2.0)))))
    return b.node("Mul", b.node("Mul", x, b.node("Add", inner, b.constant(np.float32(1)))), b.constant(np.float32(0.5)))


def attention_block(b: Builder, y: str, batch: int, seq: int, width: int, heads: int, inner: int, *, fused: bool) -> str:
    """One post-norm transformer encoder layer."""
    depth = width // heads
    split = b.integers(batch, seq, heads, depth)

    def project(perm: list[int]) -> str:
        return b.node("Transpose", b.node("Reshape", b.linear(y, width, width), split), perm=perm)

    q, k, v = project([0, 2, 1, 3]), project([0, 2, 3, 1]), project([0, 2, 1, 3])
    scores = b.node("Div", b.node("MatMul", q, k), b.constant(np.float32(np.sqrt(depth))))
    context = b.node("Transpose", b.node("MatMul", b.node("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
    attended = b.linear(b.node("Reshape", context, b.integers(batch, seq, width)), width, width)
    y = layer_norm(b, b.node("Add", attended, y), width, fused=fused)
    z = b.linear(gelu(b, b.linear(y, width, inner)), inner, width)
    return layer_norm(b, b.node("Add", z, y), width, fused=fused)


def bert_base(batch: int) -> onnx.ModelProto:
    b = Builder("bert_base")
    y = b.input("hidden", (batch, 128, 768))
    for _ in range(12):
        y = attention_block(b, y, batch, 128, 768, 12, 3072, fused=False)
    return b.model(y)


def dcgan(batch: int) -> onnx.ModelProto:
    b = Builder("dcgan")
    y = b.input("z", (batch, 100, 1, 1))
    for inputs, outputs, stride, pad in ((100, 512, 1, 0), (512, 256, 2, 1), (256, 128, 2, 1), (128, 64, 2, 1)):
        y = b.relu(b.batch_norm(b.deconv(y, inputs, outputs, 4, stride=stride, pad=pad, bias=False), outputs))
    return b.model(b.node("Tanh", b.deconv(y, 64, 3, 4, stride=2, pad=1, bias=False)))


def infogan(batch: int) -> onnx.ModelProto:
    b = Builder("infogan")
    y = b.input("z", (batch, 228, 1, 1))
    y = b.relu(b.batch_norm(b.deconv(y, 228, 448, 2, stride=1, pad=0, bias=False), 448))
    for inputs, outputs in ((448, 256), (256, 128), (128, 64)):
        y = b.relu(b.deconv(y, inputs, outputs, 4, stride=2, pad=1, bias=False))
    return b.model(b.node("Tanh", b.deconv(y, 64, 3, 4, stride=2, pad=1, bias=False)))


def fsrcnn(batch: int) -> onnx.ModelProto:
    """FSRCNN with its true last layer (9x9, stride 4, output padding 1) and PReLU."""
    b = Builder("fsrcnn")

    def prelu(x: str, channels: int) -> str:
        return b.node("PRelu", x, b.constant(b.random.uniform(0.05, 0.4, (channels, 1, 1)).astype(np.float32)))

    y = prelu(b.conv(b.input("x", (batch, 1, 32, 32)), 1, 56, 5), 56)
    y = prelu(b.conv(y, 56, 12, 1), 12)
    for _ in range(4):
        y = prelu(b.conv(y, 12, 12, 3), 12)
    y = prelu(b.conv(y, 12, 56, 1), 56)
    return b.model(b.deconv(y, 56, 1, 9, stride=4, pad=3, output_padding=1))


def csrnet(batch: int) -> onnx.ModelProto:
    b = Builder("csrnet_backend")
    y, channels = b.input("x", (batch, 512, 14, 14)), 512
    for width in (512, 512, 512, 256, 128, 64):
        y, channels = b.relu(b.conv(y, channels, width, 3, pad=2, dilation=2, bias=False)), width
    return b.model(y)


def antialiased(batch: int) -> onnx.ModelProto:
    """A small network that blurs before it takes every second pixel (borders mirrored), and has dilated convolutions on its last map."""
    b = Builder("antialiased")

    def blurred(x: str, channels: int) -> str:
        taps = np.outer([1, 2, 1], [1, 2, 1]).astype(np.float32) / 16
        data = b.node("Pad", x, b.constant(np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64)), mode="reflect")
        return b.node("Conv", data, b.constant(np.tile(taps, (channels, 1, 1, 1))), strides=[2, 2], group=channels)

    def separable(x: str, inputs: int, outputs: int) -> str:
        return b.node("Relu", b.conv(b.node("Relu", b.conv(x, inputs, inputs, 3, group=inputs)), inputs, outputs, 1))

    y = b.node("Relu", b.conv(b.input("x", (batch, 3, 224, 224)), 3, 32, 3, stride=2))
    y = blurred(b.node("MaxPool", y, kernel_shape=[2, 2], pads=[0, 0, 1, 1]), 32)
    y = blurred(separable(y, 32, 64), 64)
    y = b.node("Relu", b.conv(blurred(separable(y, 64, 128), 128), 128, 64, 1))
    near_and_far = [b.node("Relu", b.conv(y, 64, 64, 3, pad=step, dilation=step)) for step in (2, 6, 12)]
    y = b.node("Relu", b.conv(b.node("Concat", *near_and_far, axis=1), 192, 128, 1))
    y = b.node("Flatten", b.node("GlobalAveragePool", y))
    return b.model(b.node("Gemm", y, b.weight(128, 100), b.weight(100, scale=0.1)))


def gcn_block(batch: int) -> onnx.ModelProto:
    """A large-kernel block of GCN (arXiv 1703.02719): (k x 1 -> 1 x k) + (1 x k -> k x 1), and a boundary refinement."""
    b = Builder("gcn_block")
    x = b.input("x", (batch, 2048, 7, 7))
    left = b.conv(b.conv(x, 2048, 128, (7, 1)), 128, 128, (1, 7))
    right = b.conv(b.conv(x, 2048, 128, (1, 7)), 128, 128, (7, 1))
    y = b.node("Add", left, right)
    z = b.conv(b.relu(b.conv(y, 128, 128, 3)), 128, 128, 3)
    return b.model(b.node("Add", y, z))


def longformer_block(
    batch: int, sequence: int = 2048, width: int = 512, heads: int = 8, window: int = 128, dilation: int = 4
) -> onnx.ModelProto:
    """Banded self-attention in standard operators: the keys of each query are gathered by constant indices.

    The paper's sequence of 10000 and window of 1000 need 640 MB for the scores alone; this block is its shape at
    a size that fits a CPU benchmark: the band is every ``dilation``-th position, ``window`` on each side.
    """
    b = Builder("longformer_block")
    x = b.input("x", (batch, sequence, width))
    depth, band = width // heads, 2 * window // dilation + 1
    split = b.integers(batch, sequence, heads, depth)

    def project() -> str:
        return b.node("Transpose", b.node("Reshape", b.linear(x, width, width, bias=False), split), perm=[0, 2, 1, 3])

    q, k, v = project(), project(), project()
    positions = np.arange(sequence)[:, None] + (np.arange(band)[None, :] - band // 2) * dilation + window
    indices = b.constant(positions.astype(np.int64), "band")
    pads = b.integers(0, 0, window, 0, 0, 0, window, 0)

    def banded(t: str) -> str:
        return b.node("Gather", b.node("Pad", t, pads), indices, axis=2)  # [batch, heads, sequence, band, depth]

    query = b.node("Unsqueeze", b.node("Mul", q, b.constant(np.float32(1 / np.sqrt(depth)))), b.integers(3))
    scores = b.node("MatMul", query, b.node("Transpose", banded(k), perm=[0, 1, 2, 4, 3]))
    outside = np.where((positions - window < 0) | (positions - window >= sequence), np.float32(-1e9), np.float32(0))
    scores = b.node("Add", scores, b.constant(outside.reshape(1, 1, sequence, 1, band)))
    context = b.node("Squeeze", b.node("MatMul", b.node("Softmax", scores, axis=-1), banded(v)), b.integers(3))
    merged = b.node("Reshape", b.node("Transpose", context, perm=[0, 2, 1, 3]), b.integers(batch, sequence, width))
    y = b.node("Add", merged, x)
    z = b.linear(b.relu(b.linear(y, width, width)), width, width)
    return b.model(b.node("Add", y, z))
