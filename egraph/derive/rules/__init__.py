"""Derivation rules on scopes, as in EinNet's Table 1, general: each returns an equal scope, or why it does not apply.

``summation`` splits sums and merges traversals, ``substitution`` changes variables, ``indices`` substitutes what indices say,
``instances`` makes factors tensors of their own, ``boundary`` relaxes and tightens ranges, ``expressions`` splits, merges and fuses.
"""
