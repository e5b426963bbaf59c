"""Hand-written derived programs, each with the operator that it computes, as cases for the prover of derivations.

A pair is (operator, program), both over the same placeholders. The builders take any sizes, so that every family is proved at relevant
sizes and evaluated at sizes that the reference can handle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from egraph.tensor import Node
from egraph.tensor.expr.bodies import guarded
from egraph.tensor.expr.index import Index, index
from egraph.tensor.expr.scope import ZERO, Compare, Guarded, Scalar, Tensor, inside
from egraph.tensor.ops import apply
from egraph.tensor.ops.scopes import multiply, read
from tests.support.derived_bilinear import fast
from tests.support.fragments import Body, Indices, Pair, concat, conv, cut, expression, leaf, matmul, reshape, transpose


def gathered(n: int, c: int, k: int, h: int, w: int, r: int, s: int, stride: int = 1, dilation: int = 1, group: int = 1) -> Pair:
    """NHWC convolution: gathered windows, then one (batched) matrix product."""
    pads = (r // 2 * dilation, s // 2 * dilation) * 2
    x, weight = leaf(0, n, h, w, c), leaf(1, k, c // group, r, s, constant=True)
    left = conv(x, weight, pads, stride, dilation, group=group)
    _, rows, columns, _ = left.type.sizes
    inner, outer = c // group, k // group

    def windows(tensors: Sequence[Tensor], out: Indices, _: Indices) -> Scalar:
        z, t, q = out
        y = ((t // columns) % rows) * stride + ((q // inner) // s) * dilation - pads[0]
        v = (t % columns) * stride + (q // inner) % s * dilation - pads[1]
        return guarded([*inside(y, 0, h), *inside(v, 0, w)], read(tensors[0], (t // (rows * columns), y, v, z * inner + q % inner)), ZERO)

    patches = expression([x], (group, n * rows * columns, r * s * inner), windows)
    weights = reshape(transpose(reshape(weight, group, outer, inner, r, s), 0, 3, 4, 2, 1), group, r * s * inner, outer)
    return left, reshape(transpose(matmul(patches, weights), 1, 0, 2), n, rows, columns, k)


def offset_reduced(n: int, c: int, f: int, h: int, w: int, r: int, s: int, shift: int = 0) -> Pair:
    """NCHW convolution: one product for all taps, then a sum of shifted reads."""
    x, weight = leaf(0, n, c, h, w), leaf(1, f, c, r, s, constant=True)
    top, before = r // 2, s // 2
    left = conv(x, weight, (top, before) * 2, layout="NCHW")
    products = matmul(reshape(transpose(x, 0, 2, 3, 1), n * h * w, c), reshape(transpose(weight, 1, 2, 3, 0), c, r * s * f))

    def shifted(tensors: Sequence[Tensor], out: Indices, taps: Indices) -> Scalar:
        b, g, y, z = out
        row, column = y + taps[0] - top, z + taps[1] - before + shift
        value = read(tensors[0], ((b * h + row) * w + column, (taps[0] * s + taps[1]) * f + g))
        return guarded([*inside(row, 0, h), *inside(column, 0, w)], value, ZERO)

    return left, expression([products], left.type.sizes, shifted, (r, s))


def pointwise_product(n: int, c: int, f: int, h: int) -> Pair:
    """A 1x1 convolution is a matrix product."""
    x, w = leaf(0, n, c, h, h), leaf(1, f, c, 1, 1, constant=True)
    product = matmul(reshape(transpose(x, 0, 2, 3, 1), n * h * h, c), transpose(reshape(w, f, c), 1, 0))
    return conv(x, w, (0,) * 4, layout="NCHW"), transpose(reshape(product, n, h, h, f), 0, 3, 1, 2)


def transposed(n: int, c: int, f: int, h: int, k: int = 4, s: int = 2, p: int = 1, by_parity: bool = True, tap: int = 0) -> Pair:
    """ConvTranspose: one product for all taps, then a sum of the taps that overlap, over all of them or by parity."""
    x, w = leaf(0, n, h, h, c), leaf(1, c, f, k, k, constant=True)
    left = _transposed(x, w, s, p)
    products = matmul(reshape(x, n * h * h, c), reshape(transpose(w, 0, 2, 3, 1), c, k * k * f))

    def along(out: Index, count: Index) -> tuple[Index, Index, list[Compare]]:
        if by_parity:
            return (out + p) // s - count, s * count + (out + p + tap) % s, []
        return (out + p - count) // s, count, [Compare((out + p - count) % s, "==", index(0))]

    def reduction(tensors: Sequence[Tensor], out: Indices, taps: Indices) -> Scalar:
        (y, r, first), (z, q, second) = along(out[1], taps[0]), along(out[2], taps[1])
        value = read(tensors[0], ((out[0] * h + y) * h + z, (r * k + q) * f + out[3]))
        return guarded([*first, *second, *inside(y, 0, h), *inside(z, 0, h)], value, ZERO)

    return left, expression([products], left.type.sizes, reduction, (k // s if by_parity else k,) * 2)


def _transposed(x: Node, w: Node, s: int, p: int) -> Node:
    return apply(
        "ConvTranspose", x, w, strides=(s, s), pads=(p,) * 4, dilations=(1, 1), group=1, output_padding=(0, 0), layout="NHWC"
    )  # fmt: skip


def taps_apart(n: int, c: int, f: int, h: int, r: int) -> Pair:
    """An NHWC convolution as a sum of products over slices of the padded image, one product for each tap."""
    x, w = leaf(0, n, h, h, c), leaf(1, f, c, r, r, constant=True)
    p = r // 2
    padded = apply("Pad", x, before=(0, p, p, 0), after=(0, p, p, 0), mode="constant", value=0.0)
    parts = [
        matmul(cut(padded, (0, i, j, 0), (n, i + h, j + h, c)), transpose(reshape(cut(w, (0, 0, i, j), (f, c, i + 1, j + 1)), f, c), 1, 0))
        for i in range(r)
        for j in range(r)
    ]
    total = parts[0]
    for part in parts[1:]:
        total = apply("Add", total, part)
    return conv(x, w, (p,) * 4), total


# --- convolution as other convolutions


def enlarged(n: int, c: int, h: int, f: int, k: int, reach: int | None = None) -> Pair:
    """A k x k convolution as one 3x3 convolution with more channels, and a sum of shifted reads."""
    x, w = leaf(0, n, c, h, h), leaf(1, f, c, k, k, constant=True)
    p, parts = (k - 1) // 2, -(-k // 3)
    left = conv(x, w, (p,) * 4, layout="NCHW")
    pad = 2 if reach is None else reach

    def weights(tensors: Sequence[Tensor], out: Indices, _: Indices) -> Scalar:
        g, channel, r, q = out
        row, column = 3 * ((g % (parts * parts)) // parts) + r, 3 * (g % parts) + q
        limits = [Compare(row, "<", index(k)), Compare(column, "<", index(k))]
        return guarded(limits, read(tensors[0], (g // (parts * parts), channel, row, column)), ZERO)

    t = conv(x, expression([w], (parts * parts * f, c, 3, 3), weights), (pad,) * 4, layout="NCHW")
    size = t.type.sizes[2]

    def shifted(tensors: Sequence[Tensor], out: Indices, by: Indices) -> Scalar:
        b, g, y, z = out
        row, column = y + 3 * by[0] - (p - pad), z + 3 * by[1] - (p - pad)
        value = read(tensors[0], (b, parts * parts * g + parts * by[0] + by[1], row, column))
        return guarded([*inside(row, 0, size), *inside(column, 0, size)], value, ZERO)

    return left, expression([t], left.type.sizes, shifted, (parts, parts))


def phased(n: int, c: int, f: int, h: int, k: int = 3) -> Pair:
    """A convolution of stride 2 as one of stride 1 over an image with four times the channels."""
    x, w = leaf(0, n, h, h, c), leaf(1, f, c, k, k, constant=True)
    p = k // 2
    left = conv(x, w, (p,) * 4, 2)
    rows = left.type.sizes[1]
    low = -((p + 1) // 2)
    taps, half = (k - 1 - p) // 2 - low + 1, -(-h // 2)

    def image(tensors: Sequence[Tensor], out: Indices, _: Indices) -> Scalar:
        b, u, v, z = out
        y, q = 2 * u + (z // c) // 2, 2 * v + (z // c) % 2
        return guarded([Compare(y, "<", index(h)), Compare(q, "<", index(h))], read(tensors[0], (b, y, q, z % c)), ZERO)

    def weights(tensors: Sequence[Tensor], out: Indices, _: Indices) -> Scalar:
        g, z, i, j = out
        r, q = 2 * (i + low) + (z // c) // 2 + p, 2 * (j + low) + (z // c) % 2 + p
        return guarded([*inside(r, 0, k), *inside(q, 0, k)], read(tensors[0], (g, z % c, r, q)), ZERO)

    end = max(rows - 1 + taps - 1 + low - (half - 1), 0)
    right = conv(expression([x], (n, half, half, 4 * c), image), expression([w], (f, 4 * c, taps, taps), weights), (-low, -low, end, end))
    return left, right if right.type.sizes[1] == rows else cut(right, (0,) * 4, (n, rows, rows, f))


def undilated(n: int, c: int, f: int, h: int, d: int = 2, k: int = 3) -> Pair:
    """A dilated convolution as one without dilation, with the phases of the image folded into the batch."""
    x, w = leaf(0, n, h, h, c), leaf(1, f, c, k, k, constant=True)
    folded = reshape(transpose(reshape(x, n, h // d, d, h // d, d, c), 0, 2, 4, 1, 3, 5), n * d * d, h // d, h // d, c)
    y = conv(folded, w, (k // 2,) * 4)
    right = reshape(transpose(reshape(y, n, d, d, h // d, h // d, f), 0, 3, 1, 4, 2, 5), n, h, h, f)
    return conv(x, w, (d * (k // 2),) * 4, 1, d), right


def interleaved(n: int, c: int, f: int, h: int) -> Pair:
    """ConvTranspose 4x4 of stride 2 as four convolutions, one for each phase of the output."""
    x, w = leaf(0, n, h, h, c), leaf(1, c, f, 4, 4, constant=True)
    parts = []
    for a in range(2):
        for b in range(2):

            def weights(tensors: Sequence[Tensor], out: Indices, _: Indices, a: int = a, b: int = b) -> Scalar:
                g, channel, i, j = out
                return read(tensors[0], (channel, g, (a + 1) % 2 + 2 * (1 - i), (b + 1) % 2 + 2 * (1 - j)))

            top, before = 1 - (a + 1) // 2, 1 - (b + 1) // 2
            parts.append(conv(x, expression([w], (f, c, 2, 2), weights), (top, before, 1 - top, 1 - before)))

    def woven(tensors: Sequence[Tensor], out: Indices, _: Indices) -> Scalar:
        place = (out[0], out[1] // 2, out[2] // 2, out[3])
        rows = [Guarded((Compare(out[2] % 2, "==", index(0)),), read(tensors[k], place), read(tensors[k + 1], place)) for k in (0, 2)]
        return Guarded((Compare(out[1] % 2, "==", index(0)),), rows[0], rows[1])

    return _transposed(x, w, 2, 1), expression(parts, (n, 2 * h, 2 * h, f), woven)


# --- band products


def band(a: Node, b: Node, reach: int, d: int) -> Node:
    """out[b,m,w] = sum_k A[b,m,k] B[b,m+d(w-W),k], zero outside"""
    batch, m, k = a.type.sizes

    def body(tensors: Sequence[Tensor], out: Indices, summed: Indices) -> Scalar:
        at = out[1] + (out[2] - reach) * d
        return guarded(inside(at, 0, m), multiply(read(tensors[0], (*out[:2], *summed)), read(tensors[1], (out[0], at, *summed))), ZERO)

    return expression([a, b], (batch, m, 2 * reach + 1), body, (k,))


def band_of(a: Node, b: Node, reach: int, d: int) -> Node:
    """out[b,m,n] = sum_w A[b,m,w] B[b,m+d(w-W),n], zero outside"""
    batch, m, width = a.type.sizes

    def body(tensors: Sequence[Tensor], out: Indices, summed: Indices) -> Scalar:
        at = out[1] + (summed[0] - reach) * d
        return guarded(inside(at, 0, m), multiply(read(tensors[0], (*out[:2], *summed)), read(tensors[1], (out[0], at, out[2]))), ZERO)

    return expression([a, b], (batch, m, b.type.sizes[2]), body, (width,))


def narrow_band(operator: Callable[[Node, Node, int, int], Node], batch: int, m: int, k: int, reach: int, d: int, into: str) -> Pair:
    """A dilated band product as one without dilation, with the phases folded ``into`` the "batch" (true) or "chunks" of m (false)."""
    a, b = leaf(0, batch, m, k if operator is band else 2 * reach + 1), leaf(1, batch, m, k)

    def folded(x: Node) -> Node:
        last = x.type.sizes[2]
        phases = transpose(reshape(x, batch, m // d, d, last), 0, 2, 1, 3)
        return reshape(phases, batch * d, m // d, last) if into == "batch" else reshape(phases, batch, m, last)

    y = operator(folded(a), folded(b), reach, 1)
    back = transpose(reshape(y, batch, d, m // d, y.type.sizes[2]), 0, 2, 1, 3)
    return operator(a, b, reach, d), reshape(back, batch, m, y.type.sizes[2])


def correlation(size: int, swapped: bool) -> Pair:
    """A[h+r,w+s] K[r,s], and the same or with K[s,r]"""
    a, k = leaf(0, size, size), leaf(1, 3, 3)

    def body(turned: bool) -> Body:
        return lambda tensors, out, taps: multiply(
            read(tensors[0], (out[0] + taps[0], out[1] + taps[1])), read(tensors[1], taps[::-1] if turned else taps)
        )

    return expression([a, k], (size - 2,) * 2, body(False), (3, 3)), expression([a, k], (size - 2,) * 2, body(swapped), (3, 3))


def band_attention(batch: int, m: int, k: int, reach: int, d: int) -> Pair:
    """Attention within a dilated band, and the same without dilation over phases that are folded into the batch."""
    operands = leaf(0, batch, m, k), leaf(1, batch, m, k), leaf(2, batch, m, k)

    def attention(q: Node, keys: Node, values: Node, dilation: int) -> Node:
        return band_of(apply("Softmax", band(q, keys, reach, dilation), axis=2), values, reach, dilation)

    folded = [reshape(transpose(reshape(x, batch, m // d, d, k), 0, 2, 1, 3), batch * d, m // d, k) for x in operands]
    y = transpose(reshape(attention(folded[0], folded[1], folded[2], 1), batch, d, m // d, k), 0, 2, 1, 3)
    return attention(operands[0], operands[1], operands[2], d), reshape(y, batch, m, k)


def line_of(kind: str) -> Pair:
    """sum(t) A[p(x, y) + t] B[t] along one line of positions p = x + 2y, x - 2y + 6 or 7 - x - 2y, computed once and then read."""
    a, b = leaf(0, 30), leaf(1, 5)

    def place(x: Index, y: Index) -> Index:
        return {"x + 2y": x + 2 * y, "x - 2y": x - 2 * y + 6, "-x - 2y": 7 - x - 2 * y}[kind]

    def product(tensors: Sequence[Tensor], at: Index, t: Index) -> Scalar:
        return multiply(read(tensors[0], (at + t,)), read(tensors[1], (t,)))

    once = expression([a, b], (8,), lambda tensors, out, summed: product(tensors, out[0], summed[0]), (5,))
    left = expression([a, b], (2, 4), lambda tensors, out, summed: product(tensors, place(*out), summed[0]), (5,))
    return left, expression([once], (2, 4), lambda tensors, out, _: read(tensors[0], (place(*out),)))


def flattened(stride: int) -> Pair:
    """A reshape as an expression; with a stride other than 7 it is no reshape."""
    x = leaf(0, 49, 512)

    def body(tensors: Sequence[Tensor], out: Indices, _: Indices) -> Scalar:
        return read(tensors[0], (49 * out[0] + stride * out[1] + out[2], out[3]))

    return reshape(x, 1, 7, 7, 512), expression([x], (1, 7, 7, 512), body)


def in_turn(n: int, c: int, h: int) -> Pair:
    """Two convolutions with an activation between them, both transformed."""
    x, w, v = leaf(0, n, h, h, c), leaf(1, c, c, 3, 3, constant=True), leaf(2, c, c, 3, 3, constant=True)
    pads = (1,) * 4
    left = conv(apply("Relu", conv(x, w, pads)), v, pads)
    return left, fast(apply("Relu", fast(x, w, (4, 4), pads)), v, (2, 2), pads)


def below(operator: Callable[[Node], Node], pair: Pair) -> Pair:
    """Apply the same operator to both sides."""
    return operator(pair[0]), operator(pair[1])


def pooled(x: Node) -> Node:
    return apply("MaxPool", x, kernel_shape=(3, 3), strides=(2, 2), pads=(1,) * 4, dilations=(1, 1), layout="NHWC")


def with_residual(x: Node) -> Node:
    bias, residual = leaf(2, 1, 1, 1, x.type.sizes[3], constant=True), leaf(3, *x.type.sizes)
    return apply("Relu", apply("Add", apply("Add", x, bias), residual))


# --- products


def merged(m: int, k: int, n: int, which: int) -> Pair:
    """One of two products, taken from a batched product of both."""
    a, b, c, d = leaf(0, m, k), leaf(1, k, n), leaf(2, m, k), leaf(3, k, n)
    both = matmul(concat(0, reshape(a, 1, m, k), reshape(c, 1, m, k)), concat(0, reshape(b, 1, k, n), reshape(d, 1, k, n)))
    return matmul(c, d), reshape(cut(both, (which, 0, 0), (which + 1, m, n)), m, n)


def heads(batch: int, length: int, count: int, size: int) -> Pair:
    """A projection split into heads, and the projections of all heads as one batched product."""
    width = count * size
    x, w = leaf(0, batch, length, width), leaf(1, width, width, constant=True)
    weights = reshape(transpose(reshape(w, width, count, size), 1, 0, 2), 1, count, width, size)
    left = transpose(reshape(matmul(x, w), batch, length, count, size), 0, 2, 1, 3)
    return left, matmul(reshape(x, batch, 1, length, width), weights)
