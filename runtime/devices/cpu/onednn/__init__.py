"""oneDNN through its C API: loaded if a plan has a step of it."""
