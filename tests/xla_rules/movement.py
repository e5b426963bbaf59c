"""Elements that move: transposed, turned round, joined, cut and repeated."""

from __future__ import annotations

from collections.abc import Callable

from egraph.rule import Attributes, Steps, Tensor, require
from egraph.rule_operators import concat, expand, pad, reshape, slice_, transpose
from tests.xla_rules.claims import Claim, Truth, claim, member


def reverses(x: Tensor, a: Attributes, axis: int) -> bool:
    """Whether a slice turns one axis round and keeps the rest."""
    return all(
        (a.starts[i], a.ends[i], a.steps[i]) == ((size - 1, -1, -1) if i == axis else (0, size, 1)) for i, size in enumerate(x.shape)
    )


def reverse(x: Tensor, axis: int) -> Tensor:
    return slice_(
        x,
        starts=tuple(size - 1 if i == axis else 0 for i, size in enumerate(x.shape)),
        ends=tuple(-1 if i == axis else size for i, size in enumerate(x.shape)),
        steps=tuple(-1 if i == axis else 1 for i in range(x.rank)),
    )


@claim("false")
def transposes_in_the_wrong_order(x: Tensor, p: Attributes, q: Attributes) -> Steps:
    """transpose(transpose(x, p), q) = transpose(x, q[p])"""
    yield transpose(transpose(x, p), q)
    yield transpose(x, perm=tuple(q.perm[axis] for axis in p.perm))


@claim("true")
def reverse_twice(x: Tensor, a: Attributes, b: Attributes) -> Steps:
    """reverse(reverse(x)) = x"""
    yield slice_(slice_(x, a), b)
    require(x.rank == 1 and reverses(x, a, 0) and reverses(x, b, 0), "both turn the axis round")
    yield x


def of_joined(truth: Truth, name: str, text: str, *, exchanged: bool) -> Claim:
    """reverse(concat(x, y)) = concat of the parts turned round"""

    def law(x: Tensor, y: Tensor, c: Attributes, a: Attributes) -> Steps:
        whole = concat(x, y, a=c)
        yield slice_(whole, a)
        require(reverses(whole, a, c.axis), "the axis is turned round")
        first, second = (y, x) if exchanged else (x, y)
        yield concat(reverse(first, c.axis), reverse(second, c.axis), a=c)

    return member(truth, name, text, law, "exact")


def of_padded(truth: Truth, name: str, text: str, *, exchanged: bool) -> Claim:
    """reverse(pad(x)) = pad(reverse(x))"""

    def law(x: Tensor, p: Attributes, a: Attributes) -> Steps:
        padded = pad(x, p)
        yield slice_(padded, a)
        require(x.rank == 1 and p.mode == "constant" and reverses(padded, a, 0), "the axis is turned round")
        yield pad(reverse(x, 0), p.but(before=p.after, after=p.before) if exchanged else p)

    return member(truth, name, text, law, "exact")


def slice_of_reversed(truth: Truth, name: str, text: str, right: Callable[[Tensor, Attributes], Tensor]) -> Claim:
    """slice(reverse(x), b) = right(x, b)"""

    def law(x: Tensor, a: Attributes, b: Attributes) -> Steps:
        yield slice_(slice_(x, a), b)
        require(x.rank == 1 and reverses(x, a, 0) and b.steps == (1,), "the axis is turned round")
        yield right(x, b)

    return member(truth, name, text, law, "exact")


def reversed_part(x: Tensor, b: Attributes) -> Tensor:
    size = x.shape[0]
    return reverse(slice_(x, starts=(size - b.ends[0],), ends=(size - b.starts[0],), steps=(1,)), 0)


def join_expanded(truth: Truth, name: str, text: str, accepts: Callable[[Tensor, Attributes], bool], reason: str) -> Claim:
    """concat(expand(x), expand(x)) = expand(x)"""

    def law(x: Tensor, e: Attributes, f: Attributes, c: Attributes) -> Steps:
        whole = concat(expand(x, e), expand(x, f), a=c)
        yield whole
        require(x.rank == len(e.shape) and accepts(x, c), reason)
        yield expand(x, shape=whole.shape)

    return member(truth, name, text, law, "exact")


def of_interleaved(truth: Truth, name: str, text: str, start: int) -> Claim:
    """Every second element of x and y interleaved, from a start, is x"""

    def law(x: Tensor, y: Tensor, c: Attributes, r: Attributes, a: Attributes) -> Steps:
        yield slice_(reshape(concat(x, y, a=c), r), a)
        require(x.rank == 2 and x.shape[1] == 1 and x.shape == y.shape and c.axis == 1 and len(r.shape) == 1, "two columns")
        require(a.starts == (start,) and a.ends == r.shape and a.steps == (2,), f"every second one, from {start}")
        yield reshape(x, shape=(x.shape[0],))

    return member(truth, name, text, law, "exact")


CLAIMS = (
    transposes_in_the_wrong_order, reverse_twice,
    of_joined("true", "reverse_of_joined", "reverse(concat(x, y)) = concat(reverse(y), reverse(x))", exchanged=True),
    of_joined("false", "reverse_of_joined_wrongly", "reverse(concat(x, y)) = concat(reverse(x), reverse(y))", exchanged=False),
    of_padded("true", "reverse_of_padded", "reverse(pad(x)) = pad(reverse(x)), before and after exchanged", exchanged=True),
    of_padded("false", "reverse_of_padded_wrongly", "reverse(pad(x)) = pad(reverse(x)), before and after as they were", exchanged=False),
    join_expanded("true", "join_expanded", "concat(expand(x), expand(x)) = expand(x), along an axis of size one in x",
                  lambda x, c: x.shape[c.axis] == 1, "along a repeated axis"),
    join_expanded("false", "join_expanded_wrongly", "concat(expand(x), expand(x)) = expand(x), but along any axis",
                  lambda x, c: True, "no axis is added"),
    of_interleaved("true", "even_elements_of_interleaved", "Every second element of x and y interleaved is x", 0),
    of_interleaved("false", "odd_elements_of_interleaved",
                   "Every second element of x and y interleaved is x, but it begins with the second", 1),
    slice_of_reversed("true", "slice_of_reversed", "slice(reverse(x)) = reverse(slice(x)), counted from the other end", reversed_part),
    slice_of_reversed("false", "slice_of_reversed_wrongly", "slice(reverse(x)) = reverse(slice(x)), at the same place",
                      lambda x, b: reverse(slice_(x, b), 0)),
)  # fmt: skip
