"""Match a whole fragment of a graph: its composed meaning as one scope, so that chains of layouts around an operator are one operator."""

from __future__ import annotations

from egraph.derive.matching.match import match
from egraph.errors import EinsatError
from egraph.expr.compose import inline
from egraph.expr.scope import Tensor
from egraph.ir import Node, walk
from egraph.ops.reference import fragment_expression


def match_fragment(root: Node) -> tuple[Node, ...]:
    """Return programs over the same placeholders that compute a fragment by one operator, or by one Expression.

    The fragment itself is not among them; a fragment with an operator that has no meaning has none.
    """
    leaves = sorted((n for n in walk((root,)) if n.op == "Placeholder"), key=lambda n: int(str(n.attribute("index"))))
    names = {
        str(leaf.attribute("index")): Tensor(str(position), leaf.type.sizes, leaf.type.dtype) for position, leaf in enumerate(leaves)
    }
    try:
        scope = inline(fragment_expression(root), names)
    except (EinsatError, KeyError):
        return ()
    return tuple(program for program in match(scope, leaves) if program is not root and program.type == root.type)
