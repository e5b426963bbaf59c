"""Generate rewrite rules, as TASO does, but with proofs: enumerate small terms, compare their values, prove those that agree.

    python -m verify.generate --ops matmul,add,concat,relu --depth 2 -o rules_generated.py

The operators are the project's own, with their meanings. Terms are typed as generally as the operators allow, so that no two
extents are equal by chance. An equation becomes a rule only with a proof, under the weakest guards for which there is one.
Equations that a saturation with the other rules shows are dropped.
"""
