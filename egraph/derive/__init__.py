"""Derivations: equal programs of an operator, searched on its tensor-algebra expression instead of listed by rules."""
