"""Partial equivalence: programs that differ from an operator somewhere, with what corrects them exactly there."""
