"""Find the first rule, or the first kernel, whose removal makes an optimised model accurate again.

    python -m verify.bisect model.onnx --rules mine.py --unsafe-rules

Nothing imports this package: it stands above the optimiser, which it runs.
"""
