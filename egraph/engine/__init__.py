"""The e-graph: egglog matches patterns, Python builds terms and records the e-classes; saturation ends in a frozen e-graph."""
