"""Matrix products: sums of products of two reads whose iterators fall into batch, rows, columns and summed ones."""

from __future__ import annotations

from collections.abc import Iterator as Iterable
from collections.abc import Sequence
from dataclasses import dataclass

from egraph.derive.matching.form import Form
from egraph.derive.matching.views import Group, Padded, arrange, axes_in_order, expanded, padded, reshaped, transposed
from egraph.tensor import Node
from egraph.tensor.expr.bodies import flattened, used
from egraph.tensor.expr.index import Iterator, length
from egraph.tensor.expr.scope import Read, Tensor
from egraph.tensor.ops import apply


@dataclass(frozen=True, slots=True)
class Roles:
    """The iterators of a product by the tensors they occur in, each group in the order of the output or of the left operand.

    A product of reads matches an operator only if every iterator belongs to one of these groups.
    """

    batch: tuple[Iterator, ...]
    left: tuple[Iterator, ...]
    right: tuple[Iterator, ...]
    summed: tuple[Iterator, ...]


def two_reads(form: Form) -> tuple[Read, Read] | None:
    """Return the two operands if a form is a sum of products of two reads of tensors, else None."""
    parts = flattened("mul", form.inner)
    if form.reduction != "sum" or len(parts) != 2 or (form.conditions and form.otherwise is None):
        return None
    left, right = parts
    if isinstance(left, Read) and isinstance(right, Read) and isinstance(left.source, Tensor) and isinstance(right.source, Tensor):
        return left, right
    return None


def roles_of(form: Form, left: Read, right: Read) -> Roles | None:
    """Return the iterators by role; None if one occurs in one operand and not in the output, or in the output alone."""
    first, second = used(left), used(right)
    batch, rows, columns = list[Iterator](), list[Iterator](), list[Iterator]()
    for i in form.digits:
        if i not in first | second:
            return None
        (batch if i in first & second else rows if i in first else columns).append(i)
    if not all(i in first & second for i in form.sums):
        return None
    order = [*axes_in_order(left.indices), *form.sums]
    return Roles(tuple(batch), tuple(rows), tuple(columns), tuple(sorted(form.sums, key=order.index)))


def operand(form: Form, read: Read, leaves: Sequence[Node]) -> Padded | None:
    """Return the tensor of a read, padded according to the conditions on its indices."""
    assert isinstance(read.source, Tensor)
    return padded(leaves[int(read.source.name)], read.indices, form.conditions, form.otherwise)


def finished(form: Form, node: Node, groups: Sequence[Group]) -> Node:
    """Return a result with one axis per group, rearranged to the form's output digits."""
    order = [i for group in groups for i in group]
    present = [i for i in form.digits if i in order]
    node = transposed(reshaped(node, [length(i) for i in order]), [order.index(i) for i in present])
    return expanded(reshaped(node, [length(i) if i in order else 1 for i in form.digits]), [length(i) for i in form.digits])


def products(form: Form, leaves: Sequence[Node]) -> Iterable[Node]:
    """Yield MatMul programs: both orders of the operands, the summed iterators merged in the order of either operand."""
    reads = two_reads(form)
    if reads is None:
        return
    for first, second in (reads, reads[::-1]):
        roles = roles_of(form, first, second)
        left, right = operand(form, first, leaves), operand(form, second, leaves)
        if roles is None or left is None or right is None or not (form.sums or (roles.left and roles.right)):
            continue
        for summed in dict.fromkeys((roles.summed, tuple(i for i in axes_in_order(second.indices) if i in roles.summed))):
            if len(summed) != len(roles.summed):
                continue
            batch = [roles.batch] if roles.batch else []
            rows = arrange(left.node, left.indices, [*batch, roles.left, summed])
            columns = arrange(right.node, right.indices, [*batch, summed, roles.right])
            if rows is not None and columns is not None:
                yield finished(form, apply("MatMul", rows, columns), [*batch, roles.left, roles.right])
