"""The rule language: how a rule's function is read, evaluated and made a law.

Rules import ``egraph.rule`` and ``egraph.rule_operators``, which are what users see of it; the modules here are how it works.
"""
