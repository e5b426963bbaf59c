"""Matching: recognise a scope as one core operator between layout operators."""
