"""Iterator mapping tables: strides and groups, on the cases of EinNet's tests."""

from __future__ import annotations

from egraph.derive.matching.table import iterator_table
from egraph.expr.parsing import parse_scope
from egraph.expr.scope import Tensor

A, B = Tensor("A", (224, 16)), Tensor("B", (8, 16))


def rows(text: str, *tensors: Tensor) -> dict[str, tuple[int, tuple[int | None, ...]]]:
    table = iterator_table(parse_scope(text, {tensor.name: tensor for tensor in tensors}))
    return {row.iterator.name: (row.mask, row.strides) for row in table.rows}


def test_iterator_table_1() -> None:
    found = rows("{m<224,n<8} sum(k<16) ($A[m,k] * $B[n,k])", A, B)
    assert found == {"m": (0b101, (16, 0, 8)), "n": (0b110, (0, 16, 1)), "k": (0b011, (1, 1, 0))}


def test_iterator_table_2() -> None:
    found = rows("{m<224,n<8} sum(k<16) ($A[m,k+m] * $B[n,2*(k+2)])", A, B)
    assert found == {"m": (0b101, (17, 0, 8)), "n": (0b110, (0, 16, 1)), "k": (0b011, (1, 2, 0))}


def test_offsets_are_those_of_the_flat_tensors() -> None:
    table = iterator_table(parse_scope("{m<224,n<8} sum(k<16) ($A[m,k+3] * $B[n+1,2*(k+2)])", {"A": A, "B": B}))
    assert table.offsets == (3, 20)


def test_an_iterator_under_a_division_occurs_and_has_no_stride() -> None:
    found = rows("{i<3584} $A[i//16,i%16]", A)
    assert found == {"i": (0b11, (None, 1))}


def test_an_iterator_whose_strides_cancel_still_occurs() -> None:
    found = rows("{m<8,k<4} $A[m,20-16*m+k]", A)
    assert found["m"] == (0b11, (0, 4))


def test_the_groups_of_a_band_product() -> None:
    """G2BMM: b and m in both operands and the output, w in B and the output, k in both operands."""
    text = "{b<8,m<100,w<65} sum(k<64) ($A[b,m,k] * $B[b,m+4*w,k])"
    table = iterator_table(parse_scope(text, {"A": Tensor("A", (8, 100, 64)), "B": Tensor("B", (8, 356, 64))}))
    names = {mask: tuple(row.iterator.name for row in group) for mask, group in table.groups().items()}
    assert names == {0b011: ("k",), 0b110: ("w",), 0b111: ("b", "m")}


def test_a_read_that_is_used_twice_is_one_column() -> None:
    table = iterator_table(parse_scope("{m<224} sum(k<16) ($A[m,k] * $A[m,k])", {"A": A}))
    assert len(table.reads) == 1
