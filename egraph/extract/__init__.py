"""Choose kernels for the classes that the roots need: the cheapest programs, by directed acyclic graph, never by tree."""

from egraph.extract.extract import extract
from egraph.extract.program import to_program

__all__ = ["extract", "to_program"]
