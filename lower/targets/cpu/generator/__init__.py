"""Generate machine code for eOperators: fused elementwise, movement and reduction fragments, from their meaning.

``supports(fragment)`` says whether a fragment can be generated (None) or why not. ``compile_library(requests, path)``
compiles many fragments into one shared library and returns a ``Library``: a mapping from request (or fragment) to
symbol, with ``failures`` apart. TVM is imported only when something is not in the cache, and only in a child process.

The library's contract with whoever loads it (nothing of TVM is needed at run time)
-----------------------------------------------------------------------------------
*Functions.* Request ``r`` becomes the C symbol ``__tvm_ffi_<symbol>``::

    int __tvm_ffi_<symbol>(void *self, const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result);
    typedef struct { int32_t type_index; uint32_t zero; void *pointer; } TVMFFIAny;      /* 16 bytes */

``arguments[i]`` is placeholder ``i`` for i = 0 .. inputs-1, then one for the output: ``type_index`` = 7 (DLTensor pointer),
``pointer`` = a ``DLTensor *``. Only ``DLTensor.data`` (its first field) is read: it must point at the first element itself
(``byte_offset`` is ignored), aligned to the element type. Shapes and strides are compiled in (``KernelRequest``), nothing is
checked, ``self``, ``count`` and ``result`` are not read, nothing is allocated; it returns 0.
So the arguments can be prepared once and a pointer to a lone ``void *`` will do for a DLTensor.

*Threads.* A kernel that is worth it runs in parallel through the exported variable ``__TVMBackendParallelLaunch``
(a ``void *``, present only if some kernel needs it), which the loader must fill with the address of::

    int launch(int (*body)(int task, const struct Environment *environment, void *data), void *data, int tasks);
    struct Environment { void *sync_handle; int32_t num_task; };                          /* sync_handle unused */

``launch`` chooses n = ``tasks`` if positive, else some chunks for each of the threads, calls ``body(k, &environment, data)`` once for every
k in 0 .. n-1 with ``num_task`` = n, in any order and on any threads, returns when all are done: 0, or the first non-zero.
Kernels never launch inside a launch. ``compile_library(threads=1)`` makes libraries without parallel launches.

*Aliasing.* Inputs and output must not overlap, except where ``may_overwrite(fragment)`` names the placeholder.
Libraries need nothing but ``memcpy``/``memset`` of the C library (resolved in the process).
"""

from lower.targets.cpu.generator.library import KernelRequest, Library, compile_library, may_overwrite, supports, uncompiled

__all__ = ["KernelRequest", "Library", "compile_library", "may_overwrite", "supports", "uncompiled"]
