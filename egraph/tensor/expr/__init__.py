"""The expression language: index polynomials, scopes, scalar functions, evaluation, printing."""
