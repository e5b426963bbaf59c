"""The e-graph: egglog matches, Python builds and keeps the book of classes; saturation ends in a frozen e-graph."""
