"""Derivation rules on scopes, as in EinNet's Table 1, general: each returns an equal scope, or why it does not apply.

``summation`` splits sums and merges traversals, ``substitution`` changes variables, ``instances`` substitutes what indices say and
instantiates reads, ``boundary`` relaxes and tightens ranges, ``expressions`` splits, merges and fuses whole expressions.
"""
