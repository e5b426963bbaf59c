"""Look into an artefact: its kernels, and why each is allowed."""
