"""The optimizer's main job: a model in, a faster checked program out. Run with ``python -m egraph.optimize``."""
