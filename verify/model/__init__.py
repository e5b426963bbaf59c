"""Compare two models: part by part, each by the strongest method that fits, and as wholes on random inputs.

    python -m verify.model a.onnx b.onnx

Nothing imports this package: it stands above the importer, the check and the runtime, which it uses.
"""
