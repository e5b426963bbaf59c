"""Generate rewrite rules, as TASO does, honestly: enumerate small terms, compare what they compute, prove what agrees.

    python -m verify.generate --ops matmul,add,concat,relu --depth 2 -o rules_generated.py

Operators are the project's own, with their meanings; terms are typed as generally as the operators allow, so that no two
extents are equal by chance; an equation becomes a rule only with a proof, under the weakest guards that it has one for;
and what a saturation with the other rules shows already is not said twice.
"""
