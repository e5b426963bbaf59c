"""Choose kernels for the classes that the roots need: the cheapest programs, with shared classes counted once."""

from egraph.extract.extract import extract
from egraph.extract.program import to_program

__all__ = ["extract", "to_program"]
