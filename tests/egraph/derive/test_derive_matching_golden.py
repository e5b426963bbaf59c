"""Cases of EinNet's own tests that concern matching, under their original names."""

from __future__ import annotations

import numpy as np
import pytest

from egraph.derive.matching.bodies import merged
from egraph.derive.matching.form import form
from egraph.derive.matching.match import match
from egraph.derive.matching.views import arrange
from egraph.errors import TypeMismatch
from egraph.tensor import Node, TensorType, placeholder, walk
from egraph.tensor.expr.canonical import canonical
from egraph.tensor.expr.evaluate import Evaluator
from egraph.tensor.expr.functions import PRIME
from egraph.tensor.expr.index import Index, Iterator, index
from egraph.tensor.expr.laws import tidy
from egraph.tensor.expr.parsing import parse_scope
from egraph.tensor.expr.printing import format_scope
from egraph.tensor.expr.scope import Scope, Tensor
from egraph.tensor.ops import OPS, apply
from egraph.tensor.ops.expression import text_of
from egraph.tensor.ops.reference import evaluate, fragment_expression


def parsed(text: str, *shapes: tuple[int, ...]) -> Scope:
    return parse_scope(text, {str(k): Tensor(str(k), shape) for k, shape in enumerate(shapes)})


def leaves(*shapes: tuple[int, ...]) -> tuple[Node, ...]:
    return tuple(placeholder(k, TensorType("float32", shape)) for k, shape in enumerate(shapes))


def matches(text: str, *shapes: tuple[int, ...]) -> tuple[Node, ...]:
    """Match a scope and check that every program has the scope's value, in F_p."""
    scope, operands = parsed(text, *shapes), leaves(*shapes)
    programs = match(scope, operands)
    values = [np.random.default_rng(k).integers(0, PRIME, shape) for k, shape in enumerate(shapes)]
    expected = Evaluator({str(k): value for k, value in enumerate(values)}, "prime", {}).tensor(scope)
    for found in evaluate(programs, dict(zip(operands, values, strict=True)), "prime"):
        assert np.array_equal(found, expected)
    return programs


def kinds(programs: tuple[Node, ...]) -> set[str]:
    """Return which contractions occur in the programs."""
    return {node.op for program in programs for node in walk((program,)) if node.op in OPS and OPS[node.op].category == "contraction"}


# -- MatchMatmul: m 224, n 8, k 16 ------------------------------------------------------------------------------------------------

MATRICES = ((224, 16), (8, 16))


def test_match_matmul_no_batch() -> None:
    """Of EinNet's eight variants (order, two transpositions), only the two orders remain because our transposes are separate operators."""
    programs = matches("{m<224,n<8} sum(k<16) ($0[m,k] * $1[n,k])", *MATRICES)
    products = [program for program in programs if any(node.op == "MatMul" for node in walk((program,)))]
    shapes = [[operand.type.sizes for n in walk((p,)) if n.op == "MatMul" for operand in n.inputs] for p in products]
    assert shapes == [[(224, 16), (16, 8)], [(8, 16), (16, 224)]]


ILLEGAL = {
    "Illegal0: B[k,k]": ("{m<224,n<8} sum(k<16) ($0[m,k] * $1[k,k])", (224, 16), (16, 16)),
    "Illegal1: k traversed, not summed": ("{m<224,k<16} sum(n<8) ($0[m,k] * $1[n,k])", (224, 16), (8, 16)),
    "Illegal3: A[m,n+k]": ("{m<224,n<8} sum(k<16) ($0[m,n+k] * $1[n,k])", (224, 23), (8, 16)),
}


@pytest.mark.parametrize("case", ILLEGAL)
def test_match_matmul_illegal(case: str) -> None:
    text, *shapes = ILLEGAL[case]
    assert kinds(matches(text, *shapes)) == set()


def test_match_matmul_illegal_2_is_a_leading_dimension_where_it_stays_inside() -> None:
    """A[m,m+k] is a matrix with a leading dimension of 240 if its reads stay inside 224x239.

    With A of 224x16 the reads leave the tensor, and nothing is matched.
    """
    outside = parsed("{m<224,n<8} sum(k<16) ($0[m,m+k] * $1[n,k])", (224, 16), (8, 16))
    assert match(outside, leaves((224, 16), (8, 16))) == ()
    programs = matches("{m<224,n<8} sum(k<16) ($0[m,m+k] * $1[n,k])", (224, 239), (8, 16))
    assert "MatMul" in kinds(programs)


def test_match_matmul_illegal_4_reads_outside() -> None:
    """B[k,n] reads outside a B of shape 8x16, so nothing is matched."""
    outside = parsed("{m<224,n<8} sum(k<16) ($0[m,k] * $1[k,n])", (224, 16), (8, 16))
    assert match(outside, leaves((224, 16), (8, 16))) == ()


# -- MatchConv --------------------------------------------------------------------------------------------------------------------

CONV = "{n<2,f<5,h<8,w<9} sum(c<3,r<3,s<3) [0<=h+r-1,h+r-1<8,0<=w+s-1,w+s-1<9 ? ($0[n,c,h+r-1,w+s-1] * $1[f,c,r,s]) : 0]"


def test_match_conv_no_batch() -> None:
    programs = matches(CONV, (2, 3, 8, 9), (5, 3, 3, 3))
    assert programs[0] is apply(
        "Conv", *leaves((2, 3, 8, 9), (5, 3, 3, 3)), strides=(1, 1), dilations=(1, 1), group=1, pads=(1, 1, 1, 1), layout="NCHW"
    )


def test_match_conv_wrong0_swapped_filters_are_found_through_a_transpose() -> None:
    """K[c,f,...] is matched with a transposed weight; EinNet has no match for it."""
    programs = matches(CONV.replace("$1[f,c", "$1[c,f"), (2, 3, 8, 9), (3, 5, 3, 3))
    assert "Conv" in kinds(programs)
    outside = parsed(CONV.replace("$1[f,c", "$1[c,f"), (2, 3, 8, 9), (5, 3, 3, 3))
    assert match(outside, leaves((2, 3, 8, 9), (5, 3, 3, 3))) == ()


def test_match_conv_wrong1_a_doubled_tap_is_a_dilation() -> None:
    """h+2r is matched as a dilated convolution; EinNet has no match for it."""
    programs = matches(CONV.replace("h+r-1", "h+2*r-2"), (2, 3, 8, 9), (5, 3, 3, 3))
    assert programs[0].op == "Conv" and programs[0].attribute("dilations") == (2, 1)


def test_kernels_with_their_taps_swapped_are_another_program() -> None:
    """A[h+r,w+s] K[r,s] and A[h+r,w+s] K[s,r] are different programs, which EinNet's fingerprint confuses."""
    swapped = CONV.replace("$1[f,c,r,s]", "$1[f,c,s,r]")
    assert form(parsed(CONV, (2, 3, 8, 9), (5, 3, 3, 3))).text != form(parsed(swapped, (2, 3, 8, 9), (5, 3, 3, 3))).text
    assert matches(CONV, (2, 3, 8, 9), (5, 3, 3, 3))[0] is not matches(swapped, (2, 3, 8, 9), (5, 3, 3, 3))[0]


# -- MatchReshape -----------------------------------------------------------------------------------------------------------------

RESHAPES = {
    "flat rows": ("{i<49,c<512} $0[i//49,i//7,i%7,c]", (1, 7, 7, 512), True),
    "window of one": ("{n<1,h<7,w<7,c<512} sum(r<1,s<1) $0[49*n+7*(h+r)+(w+s),c]", (49, 512), True),
    "taps of one": ("{i<512,c<512} $0[i,c,i%1,i%1]", (512, 512, 1, 1), True),
    "channels first": ("{c<2048,i<49} $0[i//49,c,i//7,i%7]", (1, 2048, 7, 7), True),
    "nested": ("{c<2048,i<49} {{n<1,f<2048,h<7,w<7} $0[n,f,h,w]}[i//49,c,i//7,i%7]", (1, 2048, 7, 7), True),
    "output form": ("{n<1,h<7,w<7,c<512} $0[49*n+7*h+w,c]", (49, 512), True),
    "stride of six": ("{n<1,h<7,w<7,c<512} sum(r<1,s<1) $0[49*n+6*(h+r)+(w+s),c]", (49, 512), False),
    "all flat": ("{i<25088} $0[i//3584,(i//512)%7,i%512]", (7, 7, 512), True),
}


@pytest.mark.parametrize("case", RESHAPES)
def test_match_reshape(case: str) -> None:
    text, shape, expected = RESHAPES[case]
    first = matches(text, shape)[0]
    assert (first.op == "Reshape" and first.inputs[0].op == "Placeholder") is expected
    assert expected or first.op == "Expression"


# -- MatchElementWise, memboundOp -------------------------------------------------------------------------------------------------


def test_match_element_wise_a_large_convolution_is_a_convolution() -> None:
    text = CONV.replace("r<3,s<3", "r<9,s<9").replace("+r-1", "+r-4").replace("+s-1", "+s-4")
    assert matches(text, (2, 3, 8, 9), (5, 3, 9, 9))[0].op == "Conv"


def test_match_element_wise_two_scopes_are_one_expression() -> None:
    """A padded copy that is read along its diagonals is one Expression, and also a view of the flat tensor."""
    text = "{r<8,s<4} {{i<8,j<12} [2<=j,j<10 ? $0[i,j-2] : 0]}[r,s+r]"
    *views, program = matches(text, (8, 8))
    assert program.op == "Expression" and program.inputs[0].op == "Placeholder"
    assert kinds(tuple(views)) == set()
    skewed = "{r<8,s<4} {{i<8,j<12} [2<=j,j<10 ? max($0[i,j-2], $1[i]) : 0]}[r,s+r]"
    assert [p.op for p in matches(skewed, (8, 8), (8,))] == ["Expression"]


def test_membound_op_matmul_and_prelu() -> None:
    product = apply("Expression", *leaves((2, 3), (3, 4)), text=text_of(fragment_expression(apply("MatMul", *leaves((2, 3), (3, 4))))))
    values = [np.arange(1, 7).reshape(2, 3), np.arange(1, 13).reshape(3, 4)]
    (result,) = evaluate((product,), dict(zip(leaves((2, 3), (3, 4)), values, strict=True)))
    assert result.ravel().tolist() == [38, 44, 50, 56, 83, 98, 113, 128]
    prelu = apply("PRelu", *leaves((3, 4), (1,)))
    expression = apply("Expression", *prelu.inputs, text=text_of(fragment_expression(prelu)))
    data = dict(zip(prelu.inputs, (np.arange(-6, 6).reshape(3, 4), np.array([0.25])), strict=True))
    expected = [-1.5, -1.25, -1, -0.75, -0.5, -0.25, 0, 1, 2, 3, 4, 5]
    assert [value.ravel().tolist() for value in evaluate((prelu, expression), data)] == [expected] * 2


# -- FuseMembound, exprHash, compareFormulas, Interpreter, serializer --------------------------------------------------------------


def test_fuse_membound_copy_and_relu() -> None:
    nested = parsed("{i<8,j<100} {{a<8,b<100} max($0[a,b], 0)}[i,j]", (8, 100))
    assert form(nested).text == form(parsed("{i<8,j<100} max($0[i,j], 0)", (8, 100))).text


def test_fuse_membound_two_transposes_and_a_sum() -> None:
    nested = parsed("{b<8,m<100} sum(k<100) {{b<8,k<100,m<100} {{b<8,m<100,k<100} $0[b,m,k]}[b,m,k]}[b,k,m]", (8, 100, 100))
    assert form(nested).text == form(parsed("{b<8,m<100} sum(k<100) $0[b,m,k]", (8, 100, 100))).text


def test_fuse_membound_a_kernel_flattened_by_two_transposes() -> None:
    text = "{f<448,i<4096} {{r<4,s<4,c<256,f<448} {{s<4,f<448,r<4,c<256} $0[f,r,s,c]}[s,f,r,c]}[i//1024,(i//256)%4,i%256,f]"
    flat = "{f<448,i<4096} $0[f,i//1024,(i//256)%4,i%256]"
    shape = (448, 4, 4, 256)
    assert form(parsed(text, shape)).text == form(parsed(flat, shape)).text
    assert match(parsed(text, shape), leaves(shape))[0] is apply("Reshape", *leaves(shape), shape=(448, 4096))


def test_expr_hash() -> None:
    shapes = ((2, 3, 8, 9), (5, 3, 3, 3))
    plain = text_of(parsed(CONV, *shapes))
    renamed = CONV.replace("r<3", "a<3").replace("+r", "+a").replace(",r,", ",a,")
    assert text_of(parsed(renamed, *shapes)) == plain
    swapped = CONV.replace("($0[n,c,h+r-1,w+s-1] * $1[f,c,r,s])", "($1[f,c,r,s] * $0[n,c,h+r-1,w+s-1])").replace("c<3,r<3", "r<3,c<3")
    assert text_of(parsed(swapped, *shapes)) == plain
    assert text_of(parsed(CONV.replace("$0[n,c,h+r-1", "$0[n,c,h"), *shapes)) != plain


def test_compare_formulas() -> None:
    shapes = ((1, 4, 12, 12), (2, 4, 5, 5))
    plain = "{n<1,f<2,h<8,w<8} sum(c<4,r<5,s<5) ($0[n,c,h+r,w+s] * $1[f,c,r,s])"
    shifted = "{n<1,f<2,h<8,w<8} sum(c<4,-2<=r<3,3<=s<8) ($0[n,c,h+r+2,w+s-3] * $1[f,c,r+2,s-3])"
    staged = "{n<1,f<2,h<8,w<8} sum(r<5) {{n<1,f<2,h<12,w<8,r<5} sum(s<5,c<4) ($1[f,c,r,s] * $0[n,c,h,w+s])}[n,f,h+r,w,r]"
    forms = {form(parsed(text, *shapes)).text for text in (plain, shifted, staged)}
    assert len(forms) == 1
    wrong = shifted.replace("-2<=r<3", "-1<=r<3")
    assert form(parsed(wrong, *shapes)).text not in forms


def test_interpreter_positions_written_as_one_index_or_as_two() -> None:
    """An index i3 + 25 i4 gives the same form, written directly or through a merged inner iterator m."""
    shapes = ((8, 100, 12), (8, 5, 12))
    two = parsed("{b<8,i4<4,i3<25,n<5} sum(k<12) ($0[b,i3+25*i4,k] * $1[b,n,k])", *shapes)
    one = parsed("{b<8,i4<4,i3<25,n<5} {{b<8,m<100,n<5} sum(k<12) ($0[b,m,k] * $1[b,n,k])}[b,25*i4+i3,n]", *shapes)
    assert form(two).text == form(one).text
    values = {"0": np.arange(9600).reshape(8, 100, 12), "1": np.arange(480).reshape(8, 5, 12)}
    results = [Evaluator(values, "prime", {}).tensor(scope) for scope in (two, one)]
    assert [result[0, 0, 0, 0] for result in results] == [506, 506]
    assert results[0][1, 2, 3, 4] == results[1][1, 2, 3, 4]


def test_serializer_round_trip() -> None:
    cases: list[tuple[str, tuple[tuple[int, ...], ...]]] = [(text, (shape,)) for text, shape, _ in RESHAPES.values()]
    for text, shapes in [(CONV, ((2, 3, 8, 9), (5, 3, 3, 3))), *cases]:
        scope = canonical(merged(parsed(text, *shapes)))
        assert canonical(parsed(format_scope(scope), *shapes)) == scope


# -- dlt, oob ---------------------------------------------------------------------------------------------------------------------


def places(width: int) -> tuple[tuple[Index, ...], list[Iterator]]:
    """Return K[f, c, 3 p1 + p2, 3 q1 + q2], with p2 of the given range."""
    iterators = [Iterator(name, 0, high) for name, high in (("f", 16), ("c", 12), ("p1", 2), ("p2", width), ("q1", 3), ("q2", 3))]
    f, c, p1, p2, q1, q2 = map(index, iterators)
    return (f, c, 3 * p1 + p2, 3 * q1 + q2), iterators


def test_dlt_simple_and_conv2conv() -> None:
    (kernel,) = leaves((16, 12, 9, 9))
    indices, (f, c, p1, p2, q1, q2) = places(3)
    split = arrange(kernel, indices, [[f], [c], [p1], [p2], [q1, q2]])
    assert split is not None and split.type.sizes == (16, 12, 2, 3, 9)
    merged_filters = arrange(kernel, indices, [[f, p1, q1], [c], [p2], [q2]])
    assert merged_filters is not None and merged_filters.type.sizes == (96, 12, 3, 3)


def test_dlt_wrong0_digits_that_overlap_are_no_layout() -> None:
    indices, (f, c, p1, p2, q1, q2) = places(4)
    assert arrange(leaves((16, 12, 9, 9))[0], indices, [[f], [c], [p1], [p2], [q1], [q2]]) is None


def test_oob() -> None:
    """A band becomes an expression only if a guard keeps its reads inside the tensor."""
    shapes = ((8, 100, 65), (8, 100, 16))
    inside = "{b<8,m<100,n<16} sum(w<65) [0<=m+4*w-128,m+4*w-128<100 ? ($0[b,m,w] * $1[b,m+4*w-128,n]) : 0]"
    assert matches(inside, *shapes)[-1].op == "Expression"
    outside = "{b<8,m<101,n<16} sum(w<65) ($0[b,m,w] * $1[b,m-4*w,n])"
    assert match(parsed(outside, *shapes), leaves(*shapes)) == ()
    with pytest.raises(TypeMismatch, match="leaves"):
        apply("Expression", *leaves(*shapes), text=text_of(parsed(outside, *shapes)))


# -- simplify ---------------------------------------------------------------------------------------------------------------------

RANGES = {4: 3, 5: 8, 6: 10000, 7: 10000, 14: 5, 15: 7, 16: 9}
i4, i5, i6, i7, i14, i15, i16 = (index(Iterator(f"i{k}", 0, high)) for k, high in RANGES.items())
SIMPLIFY = {
    "cancels": ((i15 - i15) + i14, i14),
    "cancels multiples": (2 * i15 - 3 * i16 + 3 * i16 + i4, 2 * i15 + i4),
    "quotient and remainder": (2500 * (i6 // 2500) + i6 % 2500, i6),
    "a multiple of both": (5000 * (i7 // 2500) + 2 * (i7 % 2500), 2 * i7),
    "among other terms": (2 * i15 - 3 * i16 + 9 * (i16 // 3) + 3 * (i16 % 3) + i4, 2 * i15 + i4),
    "constants": (-3 + (i15 - i15) + i14 + 1, i14 - 2),
    "factor of one": (1 * (i5 // 2), i5 // 2),
}


@pytest.mark.parametrize("case", SIMPLIFY)
def test_simplify(case: str) -> None:
    written, expected = SIMPLIFY[case]
    assert tidy(written) == expected


def test_simplify_does_not_take_a_negative_modulus_for_a_marker() -> None:
    """(i5 % -2) + 2 (i5 / -2) is not simplified to i5: at 2 it is -2."""
    written = tidy(i5 % -2 + 2 * (i5 // -2))
    assert written != i5
    iterator = Iterator("i5", 0, 8)
    values = Evaluator({}, "float64", {}).index(written, {iterator: np.arange(8)})
    assert values.tolist() == [k % -2 + 2 * (k // -2) for k in range(8)] and values[2] == -2


@pytest.mark.parametrize(("text", "size"), [("{i<3} max(r<2) $0[2*i+r+1]", 7), ("{i<4} max(r<3) $0[i+2*r+2]", 11)])
def test_windows_that_begin_inside_are_a_pool_of_what_is_left(text: str, size: int) -> None:
    pools = [node for program in matches(text, (size,)) for node in walk((program,)) if node.op == "MaxPool"]
    assert {node.attribute("layout") for node in pools} == {"NCHW", "NHWC"}
    assert all(node.integers("pads") == (0, 0) and any(below.op == "Slice" for below in walk((node,))) for node in pools)
