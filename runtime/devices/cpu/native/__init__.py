"""The native dispatcher: one C file, its build, and nothing else."""
