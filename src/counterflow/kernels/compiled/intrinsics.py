"""What numba has no function for."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


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
