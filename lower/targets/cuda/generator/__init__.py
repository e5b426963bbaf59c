"""Generate CUDA kernels for eOperators: fused elementwise, movement and reduction fragments, from their meaning.

``generate(request, target)`` returns a request's text, its launches, and, where NVRTC or nvcc is, its code for the target's
architecture with the compiler's report. A launch's parameters are pointers: ``in<k>`` is the operand of placeholder k, ``out``
the result. Each points at the first element; shapes and strides are compiled in (``KernelRequest``), nothing is allocated.
Nothing may overlap, except where ``may_overwrite(fragment)`` names the placeholder.
"""

from lower.targets.cuda.generator.generate import constant_orders, generate, multiplies_in, supports, write
from lower.targets.cuda.generator.kernel import OUTPUT, SCRATCH, GeneratedKernel, Report

__all__ = ["OUTPUT", "SCRATCH", "GeneratedKernel", "Report", "constant_orders", "generate", "multiplies_in", "supports", "write"]
