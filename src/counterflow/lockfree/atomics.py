"""Atomic operations on words, and the few calls of the system that waiting needs.

`load` and `store` are plain: for words that one thread has to itself, and for data whose publication orders them.
What another thread may see is written with `store_release` (or a compare-and-swap) after the data it stands for,
and read with `load_acquire` before that data. `fence` and `store_fenced` are for the one thing that release and
acquire do not give: a store that must be visible before a later load of another word is done.

The system's functions are referred to by name and found when machine code is loaded, so numba's disk cache holds
no address of this process.
"""

from __future__ import annotations

import platform
import sys
from typing import Any

from llvmlite import ir
from numba import extending, types
from numba.core import cgutils

intrinsic: Any = extending.intrinsic  # its type does not know that callers leave out the typing context
I32, I64 = ir.IntType(32), ir.IntType(64)
WORD_BYTES = 8
ARM = platform.machine().lower() in ("aarch64", "arm64")
FUTEX_NUMBERS = {"x86_64": 202, "amd64": 202, "aarch64": 98}  # of the system call
FUTEX_NUMBER = FUTEX_NUMBERS.get(platform.machine().lower()) if sys.platform == "linux" else None
FUTEX_WAIT, FUTEX_WAKE = 128, 129  # among threads of one process (FUTEX_PRIVATE_FLAG)
MONOTONIC = 8 if sys.platform == "darwin" else 1  # the clock of time.monotonic_ns
NAP_US = 100  # where there is no futex


def _address(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Return where words[i] lies; the first two arguments are words and i."""
    array_type, index_type = signature.args[:2]
    index = context.cast(builder, arguments[1], index_type, types.intp)
    view = context.make_array(array_type)(context, builder, arguments[0])
    return cgutils.get_item_pointer(context, builder, array_type, view, [index])


def _word(context: Any, builder: Any, signature: Any, arguments: Any, k: int) -> Any:
    """Return argument k as an int64."""
    return context.cast(builder, arguments[k], signature.args[k], types.int64)


def _system(builder: Any, name: str, result: Any, arguments: list[Any], variadic: bool = False) -> Any:
    """Call a function of the C library by its name; a variadic one has one fixed argument."""
    fixed = arguments[:1] if variadic else arguments
    kind = ir.FunctionType(result, [argument.type for argument in fixed], var_arg=variadic)
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


# --- words


@intrinsic
def load(typing_context: Any, words: Any, i: Any) -> Any:
    """Return words[i], without numba's question whether i is negative."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(_address(context, builder, signature, arguments))

    return types.int64(words, i), generate


@intrinsic
def store(typing_context: Any, words: Any, i: Any, value: Any) -> Any:
    """Store words[i] = value, without numba's question whether i is negative."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = _word(context, builder, signature, arguments, 2)
        builder.store(value, _address(context, builder, signature, arguments))
        return context.get_dummy_value()

    return types.void(words, i, value), generate


@intrinsic
def load_acquire(typing_context: Any, words: Any, i: Any) -> Any:
    """Return words[i]; later loads and stores of this thread come after it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(_address(context, builder, signature, arguments), "acquire", WORD_BYTES)

    return types.int64(words, i), generate


@intrinsic
def store_release(typing_context: Any, words: Any, i: Any, value: Any) -> Any:
    """Store words[i] = value; earlier loads and stores of this thread come before it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = _word(context, builder, signature, arguments, 2)
        builder.store_atomic(value, _address(context, builder, signature, arguments), "release", WORD_BYTES)
        return context.get_dummy_value()

    return types.void(words, i, value), generate


@intrinsic
def store_fenced(typing_context: Any, words: Any, i: Any, value: Any) -> Any:
    """Store words[i] = value, then fence; on x86 one exchange is both, and faster than the two."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = _word(context, builder, signature, arguments, 2)
        builder.atomic_rmw("xchg", _address(context, builder, signature, arguments), value, "seq_cst")
        if ARM:
            builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(words, i, value), generate


@intrinsic
def fetch_add(typing_context: Any, words: Any, i: Any, value: Any) -> Any:
    """Add to words[i] in one step (sequentially consistent) and return what was there before."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = _word(context, builder, signature, arguments, 2)
        return builder.atomic_rmw("add", _address(context, builder, signature, arguments), value, "seq_cst")

    return types.int64(words, i, value), generate


@intrinsic
def compare_and_swap(typing_context: Any, words: Any, i: Any, old: Any, new: Any) -> Any:
    """If words[i] is old, make it new, in one step (sequentially consistent). Returns whether it did."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        old, new = (_word(context, builder, signature, arguments, k) for k in (2, 3))
        address = _address(context, builder, signature, arguments)
        return builder.extract_value(builder.cmpxchg(address, old, new, "seq_cst", "seq_cst"), 1)

    return types.boolean(words, i, old, new), generate


@intrinsic
def fence(typing_context: Any) -> Any:
    """Let what this thread stored before be visible to all before what it loads afterwards is read."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


# --- the processor and the system


@intrinsic
def prefetch_to_write(typing_context: Any, words: Any, i: Any) -> Any:
    """Start to get the cache line of words[i] for this core alone; i may be anything."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = builder.bitcast(_address(context, builder, signature, arguments), ir.IntType(8).as_pointer())
        _system(builder, "llvm.prefetch.p0", ir.VoidType(), [address, I32(1), I32(3), I32(1)])
        return context.get_dummy_value()

    return types.void(words, i), generate


@intrinsic
def prefetch_to_read(typing_context: Any, words: Any, i: Any) -> Any:
    """Start to get the cache line of words[i]; i may be anything."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = builder.bitcast(_address(context, builder, signature, arguments), ir.IntType(8).as_pointer())
        _system(builder, "llvm.prefetch.p0", ir.VoidType(), [address, I32(0), I32(3), I32(1)])
        return context.get_dummy_value()

    return types.void(words, i), generate


@intrinsic
def pause(typing_context: Any) -> Any:
    """Tell the processor that this is a waiting loop: some 50 ns on recent Intel, less elsewhere."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if ARM:
            _system(builder, "llvm.aarch64.hint", ir.VoidType(), [I32(1)])
        else:
            _system(builder, "llvm.x86.sse2.pause", ir.VoidType(), [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def yield_thread(typing_context: Any) -> Any:
    """Let another thread have the core, if one wants it (sched_yield)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _system(builder, "sched_yield", I32, [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def clock_ns(typing_context: Any) -> Any:
    """Return the time of `time.monotonic_ns`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        now = cgutils.alloca_once(builder, ir.ArrayType(I64, 2))
        _system(builder, "clock_gettime", I32, [I32(MONOTONIC), builder.bitcast(now, I64.as_pointer())])
        seconds, ns = (builder.load(cgutils.gep(builder, now, 0, k)) for k in (0, 1))
        return builder.add(builder.mul(seconds, I64(1_000_000_000)), ns)

    return types.int64(), generate


@intrinsic
def futex_wait(typing_context: Any, words: Any, i: Any, expected: Any, timeout_ns: Any) -> Any:
    """Sleep while the low half of words[i] is `expected`, until a wake-up or the end of the time.

    It may return earlier, so callers look again. Where there is no futex it is a short sleep.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if FUTEX_NUMBER is None:
            _system(builder, "usleep", I32, [I32(NAP_US)])
            return context.get_dummy_value()
        expected, timeout = (_word(context, builder, signature, arguments, k) for k in (2, 3))
        duration = cgutils.alloca_once(builder, ir.ArrayType(I64, 2))
        second = I64(1_000_000_000)
        builder.store(builder.sdiv(timeout, second), cgutils.gep(builder, duration, 0, 0))
        builder.store(builder.srem(timeout, second), cgutils.gep(builder, duration, 0, 1))
        address = builder.ptrtoint(_address(context, builder, signature, arguments), I64)
        call = [I64(FUTEX_NUMBER), address, I64(FUTEX_WAIT), expected, builder.ptrtoint(duration, I64)]
        _system(builder, "syscall", I64, call, variadic=True)
        return context.get_dummy_value()

    return types.void(words, i, expected, timeout_ns), generate


@intrinsic
def futex_wake(typing_context: Any, words: Any, i: Any, count: Any) -> Any:
    """Wake up to `count` threads that sleep on words[i]."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if FUTEX_NUMBER is not None:
            address = builder.ptrtoint(_address(context, builder, signature, arguments), I64)
            count = _word(context, builder, signature, arguments, 2)
            _system(builder, "syscall", I64, [I64(FUTEX_NUMBER), address, I64(FUTEX_WAKE), count], variadic=True)
        return context.get_dummy_value()

    return types.void(words, i, count), generate
