"""Derivations: equal programs of an operator, found by searching its tensor-algebra expression instead of listing rules."""
