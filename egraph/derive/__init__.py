"""Derivations: equal programs of an operator, found on its tensor-algebra expression and not listed beforehand."""
