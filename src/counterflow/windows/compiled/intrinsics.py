"""Functions that numba does not have."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array


@intrinsic
def prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    """Start to load the cache line of array[index]."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array_type, index_type = signature.args
        number = context.cast(builder, arguments[1], index_type, types.intp)
        view = context.make_array(array_type)(context, builder, arguments[0])
        pointer = cgutils.get_item_pointer(context, builder, array_type, view, [number], boundscheck=False)
        i32 = ir.IntType(32)
        address = builder.bitcast(pointer, ir.IntType(8).as_pointer())
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), [address.type, i32, i32, i32]), "llvm.prefetch.p0"
        )
        builder.call(function, [address, i32(0), i32(3), i32(1)])  # read, keep in all caches, data
        return context.get_dummy_value()

    return types.void(array, index), generate


@intrinsic
def _call_entry(typing_context: Any, entry: Any, block: Any, a: Any, b: Any, c: Any) -> Any:
    """Call the compiled function at an address, `store`, `probe` or `scan`: with four integers, returning one."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(64)
        target = builder.inttoptr(arguments[0], ir.FunctionType(word, [word] * 4).as_pointer())
        return builder.call(target, arguments[1:])

    return types.int64(types.int64, types.int64, types.int64, types.int64, types.int64), generate


call_entry: Any = _call_entry


def viewer(dtype: Any, dimensions: int = 1) -> Any:
    """Return a function for compiled code that makes an array of the memory at an address, whoever owns it."""
    array_type = types.Array(dtype, dimensions, "C")

    def build(context: Any, builder: Any, address: Any, lengths: list[Any]) -> Any:
        array = context.make_array(array_type)(context, builder)
        size = context.get_constant(types.intp, context.get_abi_sizeof(context.get_data_type(dtype)))
        strides = [size]
        for length in reversed(lengths[1:]):
            strides.insert(0, builder.mul(strides[0], length))
        populate_array(
            array,
            data=builder.inttoptr(address, array.data.type),
            shape=lengths,
            strides=strides,
            itemsize=size,
            meminfo=None,
        )
        return array._getvalue()

    if dimensions == 2:

        @intrinsic
        def view(typing_context: Any, address: Any, rows: Any, columns: Any) -> Any:
            def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
                return build(context, builder, arguments[0], list(arguments[1:]))

            return array_type(types.int64, types.int64, types.int64), generate

        return view

    @intrinsic
    def view_1d(typing_context: Any, address: Any, length: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return build(context, builder, arguments[0], [arguments[1]])

        return array_type(types.int64, types.int64), generate

    return view_1d
