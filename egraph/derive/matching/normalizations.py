"""Softmax and LogSoftmax under any layout: candidates along the axes that their inner sums do not depend on.

Their meanings nest scopes, so a candidate is built from what is read and compared as a whole, as every match is.
"""

from __future__ import annotations

from collections.abc import Iterator as Iterable
from collections.abc import Sequence

from egraph.derive.matching.form import Form
from egraph.derive.matching.products import finished
from egraph.derive.matching.views import Group, arrange, axes_in_order
from egraph.tensor import Node
from egraph.tensor.expr.bodies import reads_of, used
from egraph.tensor.expr.scope import Scope, Tensor
from egraph.tensor.ops import OPS, apply


def normalizations(form: Form, leaves: Sequence[Node]) -> Iterable[Node]:
    """Yield operators that normalise one tensor along some axes."""
    reads = list(dict.fromkeys(reads_of(form.inner)))
    plain = [read for read in reads if isinstance(read.source, Tensor)]
    inner = [read for read in reads if isinstance(read.source, Scope)]
    if form.sums or form.conditions or len(plain) != 1 or not inner:
        return
    kept = set().union(*(used(read) for read in inner))
    data = plain[0]
    order = [i for i in axes_in_order(data.indices) if i in form.digits]
    spanned = [i for i in order if i not in kept]
    if not spanned or set(order) != set(form.digits):
        return
    groups: list[Group] = []
    for coordinate in data.indices:  # the tensor's own axes where they are kept or spanned whole
        iterators = axes_in_order((coordinate,))
        groups += [iterators] if kept.issuperset(iterators) else [[i] for i in iterators if i in kept]
    axis = sum(1 for group in groups if group and order.index(group[0]) < order.index(spanned[0]))
    groups = [group for group in groups if group]
    groups.insert(axis, spanned)
    assert isinstance(data.source, Tensor)
    node = arrange(leaves[int(data.source.name)], data.indices, groups)
    for name, spec in sorted(OPS.items()) if node is not None else ():
        if node is not None and spec.category == "normalization" and spec.arity == 1 and spec.attributes == ("axis",):
            yield finished(form, apply(name, node, axis=axis), groups)
