"""The e-graph: egglog matches, Python builds terms and keeps the record of e-classes; saturation ends in a frozen e-graph."""
