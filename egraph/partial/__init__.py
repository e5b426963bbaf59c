"""Partial equivalence: programs that differ from an operator at some positions, with exact corrections at those positions."""
