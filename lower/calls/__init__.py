"""Calls of vendor libraries, for every target: an anchor over views of its operands, with an epilogue."""
