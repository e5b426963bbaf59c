"""The CPU of this machine: the native dispatcher, the OpenMP threads, and oneDNN if a plan has a step of it."""
