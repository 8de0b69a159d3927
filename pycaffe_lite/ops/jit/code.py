"""How does a kernel become machine code? LLVM modules written down, and compiled for this CPU.

A kernel is a function of integers only, addresses among them, called through ctypes: the
interpreter's lock is free meanwhile. Compiling takes tens of milliseconds, so nothing is kept on
disk.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

I64, I32, F32 = ir.IntType(64), ir.IntType(32), ir.FloatType()
_lock = threading.Lock()


@cache
def lanes() -> int:
    """float32 values in one of the CPU's vector registers; 0 for a CPU that is not known here."""
    features = llvm.get_host_cpu_features()
    if features.get("avx512f"):
        return 16
    if features.get("avx2") and features.get("fma"):
        return 8
    return 4 if features.get("neon") else 0


@cache
def registers() -> int:
    """Vector registers of the CPU."""
    return 16 if lanes() == 8 else 32


class Code(ir.IRBuilder):
    """A builder of one function's body, with loops and vectors."""

    @classmethod
    def begin(cls, module: ir.Module, name: str, arguments: int) -> Code:
        """An empty function of that many integers in the module; end it with `ret_void`."""
        kind = ir.FunctionType(ir.VoidType(), [I64] * arguments)
        function = ir.Function(module, kind, name)
        function.attributes.add("nounwind")
        return cls(function.append_basic_block("entry"))

    @property
    def vector(self) -> ir.VectorType:
        """The type of a full register of float32."""
        return ir.VectorType(F32, lanes())

    def field(self, base: Any, index: int) -> Any:
        """Integer `index` of an array of them at the address `base`."""
        return self.load(self.at(self.add(base, I64(8 * index)), I64))

    def at(self, address: Any, kind: ir.Type) -> Any:
        """The address as a pointer to that type."""
        return self.inttoptr(address, kind.as_pointer())

    def floats(self, address: Any) -> Any:
        """A register loaded from the address, aligned or not."""
        return self.load(self.at(address, self.vector), align=4)

    def put(self, value: Any, address: Any) -> None:
        """Store a register at the address, aligned or not."""
        self.store(value, self.at(address, self.vector), align=4)

    def repeat(self, scalar: Any) -> Any:
        """A register with the scalar in every lane."""
        empty = ir.Constant(self.vector, ir.Undefined)
        one = self.insert_element(empty, scalar, I32(0))
        return self.shuffle_vector(
            one, empty, ir.Constant(ir.VectorType(I32, lanes()), [0] * lanes())
        )

    def intrinsic(self, name: str, result: ir.Type, kinds: Sequence[ir.Type]) -> Any:
        """The LLVM intrinsic of that full name."""
        known = self.module.globals.get(name)
        return known or ir.Function(self.module, ir.FunctionType(result, list(kinds)), name)

    def fused(self, a: Any, b: Any, c: Any) -> Any:
        """a * b + c, rounded once."""
        name = f"llvm.fma.v{lanes()}f32"
        return self.call(self.intrinsic(name, self.vector, [self.vector] * 3), [a, b, c])

    def constant(self, value: float) -> Any:
        """A register with the number in every lane."""
        return ir.Constant(self.vector, [float(value)] * lanes())

    def low(self, bits: Any) -> Any:
        """A register with the float32 of these bits in every lane; see tile.low_bits."""
        return self.repeat(self.bitcast(self.trunc(bits, I32), F32))

    def at_least(self, value: Any, bound: Any) -> Any:
        """The larger of both, lane by lane; a NaN is not below the bound, so it stays."""
        return self.select(self.fcmp_ordered("<", value, bound), bound, value)

    def interleave(self, four: Sequence[Any], address: Any) -> None:
        """Store lane 0 of four registers, then lane 1, and so on."""
        n = lanes()
        pairs = ir.VectorType(I32, 2 * n)
        order = [k for i in range(n) for k in (i, n + i)]
        even = self.shuffle_vector(four[0], four[2], ir.Constant(pairs, order))
        odd = self.shuffle_vector(four[1], four[3], ir.Constant(pairs, order))
        for quarter in range(4):
            start = quarter * n // 2
            mask = [k for i in range(start, start + n // 2) for k in (i, 2 * n + i)]
            part = self.shuffle_vector(even, odd, ir.Constant(ir.VectorType(I32, n), mask))
            self.put(part, self.add(address, I64(4 * n * quarter)))

    @contextmanager
    def loop(self, start: Any, stop: Any, step: int = 1) -> Iterator[Any]:
        """The body runs with an integer from `start`, by `step`, while it is below `stop`."""
        before = self.block
        head = self.append_basic_block("head")
        body = self.append_basic_block("body")
        after = self.append_basic_block("after")
        self.branch(head)
        self.position_at_end(head)
        i = self.phi(I64)
        i.add_incoming(start, before)
        self.cbranch(self.icmp_signed("<", i, stop), body, after)
        self.position_at_end(body)
        yield i
        i.add_incoming(self.add(i, I64(step)), self.block)
        self.branch(head)
        self.position_at_end(after)


_keep: list[Any] = []  # the engines that own the machine code


def compiled(module: ir.Module, name: str, arguments: int) -> Callable[..., None]:
    """The function of the module as a callable of that many integers."""
    with _lock:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        parsed = llvm.parse_assembly(str(module))
        parsed.verify()
        machine = llvm.Target.from_default_triple().create_target_machine(
            cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3
        )
        engine = llvm.create_mcjit_compiler(parsed, machine)
        engine.finalize_object()
        _keep.append(engine)
        kind = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * arguments)
        return kind(engine.get_function_address(name))
