"""What generated kernels compute: requests, and their meanings as terms over flat memory; targets turn them into code."""

from lower.eoperator.request import KernelRequest, may_overwrite, supports

__all__ = ["KernelRequest", "may_overwrite", "supports"]
