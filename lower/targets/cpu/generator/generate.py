"""From a request to a TIR function and on to an object file. Imports TVM: runs in the compiling process only."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import tvm
from tvm import tirx
from tvm.tirx import transform

from egraph.errors import LowerError
from lower.eoperator.request import KernelRequest, kernel_of, may_overwrite, supports
from lower.roofline import work
from lower.targets.cpu.generator.blocks import sequence
from lower.targets.cpu.generator.emit import STORAGE, Emitter
from lower.targets.cpu.generator.nest import Planner
from lower.targets.cpu.generator.streaming import finish, streams, with_functions

REPEATED = 64
"""A kernel is refused where a reduction has more terms than so many times the arithmetic of all: it would compute the same sums again."""
QUICK_TERMS = 1e9
"""With fewer terms, which take less than a second, none is refused."""


def generate(request: KernelRequest, *, threads: int) -> Any:
    """Return the request as a TIR function named by its symbol."""
    reason = supports(request.fragment)
    if reason is not None:
        raise LowerError(f"no kernel can be generated: {reason}", where=request.symbol)
    kernel = kernel_of(request)
    last = max((int(name) for name in kernel.sizes), default=-1)
    buffers = {}
    for position in range(last + 1):
        name = str(position)
        dtype = kernel.lies_in.get(name) or kernel.dtypes.get(name, "float32")
        buffers[name] = _buffer(f"in{name}", kernel.sizes.get(name, 1), dtype)
    output = _buffer("out", kernel.output_size, kernel.lies_in.get("out", kernel.output_dtype))
    emitter = Emitter(buffers, kernel.dtypes, kernel.lies_in, "int32")
    stored = kernel.lies_in.get("out") or STORAGE.get(kernel.output_dtype, kernel.output_dtype)
    most_terms = max(QUICK_TERMS, REPEATED * work(request.fragment).flops)
    Planner(kernel.table, emitter, output, stored, threads, most_terms).kernel(kernel.iterators, kernel.root, kernel.offset)
    if emitter.is_streamed:
        emitter.append(finish())
    body = sequence(emitter.blocks[0].statements)
    if any(streams(int(buffer.shape[0]) * 4) for buffer in (output, *buffers.values())):
        body = with_functions(body)
    function = tirx.PrimFunc([*buffers.values(), output], body)
    function = function.with_attr("global_symbol", request.symbol)
    return function if may_overwrite(request.fragment) else function.with_attr("tirx.noalias", True)


def _buffer(name: str, size: int, dtype: str) -> Any:
    stored = STORAGE.get(dtype, dtype)
    return tirx.decl_buffer((size,), stored, name=name, data_alignment=max(1, tvm.DataType(stored).bits // 8))


UNUSED_FEATURES = ("avx512dq", "avx512bw", "sse4a")
"""Instructions that are not generated. Two of AVX-512, signs to a mask and the mask to a scalar, LLVM 22 replaces by one that cannot name
the upper sixteen vector registers (llvm-project issue 191304): under register pressure other values' signs are read. Those of SSE4a, with
which LLVM moves bytes within vectors on AMD processors, have no form for AVX: beside AVX each takes 107 ns on an EPYC, alone 1 ns."""


@lru_cache
def target_of(processor: str) -> Any:
    """Return TVM's target for a processor, by LLVM's name for it, with fused multiply-add."""
    plain = {"kind": "llvm", "mcpu": processor, "fast-math-contract": True}
    without = [f"-{feature}" for feature in UNUSED_FEATURES if tvm.target.codegen.target_has_features(feature, tvm.target.Target(plain))]
    target = tvm.target.Target({**plain, "mattr": without} if without else plain)
    return target.with_host(target)


def compile_object(function: Any, path: Path) -> None:
    """Compile a TIR function to an object file for the processor that this runs on."""
    compiled(function, target_of(tvm.target.codegen.llvm_get_system_cpu())).write_to_file(str(path), "o")


def compiled(function: Any, target: Any) -> Any:
    """Return a TIR function as a module of a target's code."""
    module = tvm.IRModule({function.attrs["global_symbol"]: function})
    passes = [
        transform.BindTarget(target), transform.VerifyMemory(),
        transform.SplitHostDevice(), transform.MakePackedAPI(), transform.SkipAssert(), transform.LowerTVMBuiltin(),
    ]  # fmt: skip
    with tvm.transform.PassContext(opt_level=3, config={"tirx.disable_assert": True}):
        module = tvm.ir.transform.Sequential(passes)(module)
        return tvm.target.codegen.build_module(module, target)
