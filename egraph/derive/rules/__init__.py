"""Derivation rules on scopes, generalised from EinNet's Table 1: each returns an equal scope, or the reason why it does not apply.

``summation`` splits sums and merges traversals, ``substitution`` changes variables, ``indices`` replaces indices by variables,
``instances`` turns factors into tensors, ``boundary`` relaxes and tightens ranges, ``expressions`` splits, merges and fuses.
"""
