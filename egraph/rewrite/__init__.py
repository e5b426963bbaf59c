"""The rule language: a rule's function is read, evaluated and turned into a law.

Rules import its public interface, ``egraph.rule`` and ``egraph.rule_operators``; the modules here implement it.
"""
