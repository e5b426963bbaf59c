"""The language as text that prints and parses: ``format_x(parse_x(text)) == text``, and parsing gives back the same values.

Operators, values and types have one notation everywhere: ``Conv{group=1,...}(%0, %1) : float32[1,8,4,4]``, attributes as Python writes
them. A fragment is one term over placeholders; graphs, programs, e-graphs and selections are blocks of lines.
"""

from egraph.tensor.node import Node
from egraph.tensor.text.frozen import format_egraph, format_selection, parse_egraph, parse_selections, read_egraph
from egraph.tensor.text.graph import format_graph, format_program, parse_graph, parse_program, read_graph, read_program
from egraph.tensor.text.reader import Reader, TextError

__all__ = [
    "Reader", "TextError", "format_egraph", "format_graph", "format_program", "format_selection", "parse_egraph",
    "parse_fragment", "parse_graph", "parse_program", "parse_selections", "read_egraph", "read_graph", "read_program",
]  # fmt: skip


def parse_fragment(text: str) -> Node:
    """Return the fragment that ``format_fragment`` wrote."""
    reader = Reader(text)
    node = reader.term()
    reader.end()
    return node
