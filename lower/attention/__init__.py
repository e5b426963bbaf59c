"""Attention on any target: fragments that are g(softmax(f(q k^T))) v, and tiles of them over the e-graph."""
