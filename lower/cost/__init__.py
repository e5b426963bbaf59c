"""The costs of kernels: measured times from the profile database, estimates if there are none."""
