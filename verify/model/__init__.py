"""Compare two models part by part, each by the strongest method that fits, and as wholes on random inputs.

    python -m verify.model a.onnx b.onnx

No other package imports this one; it uses the importer, the check and the runtime.
"""
