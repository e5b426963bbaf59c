"""oneDNN through its C API: loaded where a plan has a step of it."""
