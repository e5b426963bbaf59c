"""The graph language: types, hash-consed nodes, graphs, programs, frozen e-graphs."""

from egraph.ir.frozen import Candidate, ENode, FrozenEGraph, Selection
from egraph.ir.graph import Graph, Kernel, OnnxContext, Program
from egraph.ir.node import LEAVES, TUPLE, Node, format_fragment, make, placeholder, placeholders, rewrite, walk
from egraph.ir.types import Attributes, AttributeValue, Dim, TensorType, attributes, numpy_dtype

__all__ = [
    "LEAVES", "TUPLE", "AttributeValue", "Attributes", "Candidate", "Dim", "ENode", "FrozenEGraph", "Graph",
    "Kernel", "Node", "OnnxContext", "Program", "Selection", "TensorType", "attributes", "format_fragment",
    "make", "numpy_dtype", "placeholder", "placeholders", "rewrite", "walk",
]
