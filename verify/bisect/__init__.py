"""Find the first rule, or the first kernel, whose removal makes an optimised model accurate again.

    python -m verify.bisect model.onnx --rules mine.py --unsafe-rules

No other package imports this one; it runs the optimiser.
"""
