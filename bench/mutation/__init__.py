"""Mutants of rules: nothing that is wrong may be proved.

A mutant is a rule with one change in its text, or in the text of a function that it calls: operands swapped or replaced, an
operator or a constant replaced, a guard dropped or turned round, a number off by one, an attribute changed, branches swapped,
an operator left out. The prover judges it by its symbolic cases alone, without the random tests that would refute it first;
mutants that it calls proved are then compared with the reference on many random shapes.
"""
