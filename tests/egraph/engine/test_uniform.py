"""Numbers of uniform constants and of operators over them, and values of small constants."""

from __future__ import annotations

import numpy as np
import pytest

from egraph.engine.analyses import PROBES, number_of_array, number_of_term, value_of_array
from egraph.tensor import Attributes, TensorType, attributes
from egraph.tensor.expr.functions import PRIME

FLOATS, WHOLE = TensorType("float32", (2, 3)), TensorType("int64", (2, 3))
NONE: Attributes = ()


def test_an_array_is_a_number_only_where_every_element_is() -> None:
    array = np.full((4, 5 * PROBES), 2.5, np.float32)
    assert number_of_array(array) == 2.5
    for place in range(0, array.size, 7):
        other = array.copy()
        other.reshape(-1)[place] = 2.0
        assert number_of_array(other) is None
    assert number_of_array(np.empty((0, 3), np.float32)) is None
    assert number_of_array(np.array(["a", "a"])) is None


@pytest.mark.parametrize(
    ("op", "values", "types", "numbers", "number"),
    [
        ("Sub", NONE, [FLOATS, FLOATS], [1.0, 0.25], 0.75),
        ("Sub", NONE, [FLOATS, FLOATS], [1.0, None], None),
        ("Sub", NONE, [FLOATS, FLOATS], [None, 1.0], None),
        ("Sub", NONE, [WHOLE, WHOLE], [1.0, 2.0], None),
        ("Sqrt", NONE, [FLOATS], [-1.0], None),
        ("Transpose", attributes(perm=(1, 0)), [FLOATS], [3.0], None),
        ("Reshape", attributes(shape=(3, 2)), [FLOATS], [3.0], 3.0),
        ("Reshape", attributes(shape=(3, 2)), [WHOLE], [3.0], 3.0),
        ("ReduceSum", attributes(axes=(0,)), [FLOATS], [1.0], None),
        ("Constant", NONE, [], [], None),
        ("NoSuchOperator", NONE, [FLOATS], [1.0], None),
    ],
)
def test_the_number_of_a_term(
    op: str, values: Attributes, types: list[TensorType], numbers: list[float | None], number: float | None
) -> None:
    assert number_of_term(op, values, types, numbers) == number


def test_constants_that_differ_by_the_prime_are_two() -> None:
    """Constants that differ by the prime are different.

    Their residues and digests agree, but their numbers do not.
    """
    one, other = value_of_array(np.array([0.5, 3.0])), value_of_array(np.array([0.5, 3.0]) + PRIME)
    assert one is not None and other is not None and one.digest == other.digest
    assert one.agrees(one) and not one.agrees(other)
    assert value_of_array(np.array([1.0, np.inf])) is None and value_of_array(np.array([1, 2])) is None
