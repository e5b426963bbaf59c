"""User-defined rules that hold in part, as the text of a file."""

from __future__ import annotations

IMPORTS = """
from egraph.rule import Attributes, Steps, Tensor, Weight, require, rule
from egraph.rule_operators import conv, pad, relu, tanh
"""

RULES = '''
@rule
def edges_are_zeros(x: Tensor, p: Attributes) -> Steps:
    """pad(x, edge) = pad(x, 0)"""
    yield pad(x, p)
    require(p.mode == "edge", "the edge must be repeated")
    yield pad(x, p.but(mode="constant"))

@rule
def under_each_other(x: Tensor, w: Weight, a: Attributes) -> Steps:
    """conv(x, w) = conv(pairs of images under each other, w)"""
    yield conv(x, w, a)
    require(a.layout == "NCHW" and x.rank == 4 and x.shape[1] == 1 and x.shape[0] % 2 == 0, "pairs of images of one channel")
    require(w.shape[0] == 1 and a.group == 1, "one filter")
    n, c, h, v = x.shape
    tall = conv(x.reshape(n // 2, c, 2 * h, v), w, a)
    require(tall.shape[2] == 2 * h and tall.shape[3] == v, "the result must be as large as the image")
    yield tall.reshape(n, 1, h, v)
'''


def rule_file(*more: str, corrected: bool = False) -> str:
    """Return a file with both rules, and with further rules whose texts are ``more``."""
    names = ["edges_are_zeros", "under_each_other", *(text.split("def ")[1].split("(")[0] for text in more)]
    text = "\n".join((IMPORTS, RULES, *more, f"RULES = ({', '.join(names)})\n"))
    return text.replace("@rule\n", "@rule(corrected=True)\n") if corrected else text
