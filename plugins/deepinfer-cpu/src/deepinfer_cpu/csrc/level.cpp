// The kernels of one level of instructions. Compiled once for each, with the compiler's options for
// that level and DEEPINFER_LEVEL naming the function that hands them out.
//
// Only C functions and code internal to this file may be used here: a shared inline function of a
// C++ library could be kept in the version of the highest level, and then run on any CPU.
#include "attention.h"
#include "dense.h"
#include "rows.h"

namespace deepinfer {

const Kernels* DEEPINFER_LEVEL() {
#if defined(__AVX512F__)
    static const Kernels kernels = {rms, silu_mul, rope, paged, dense, pack};
#else
    static const Kernels kernels = {rms, silu_mul, rope, paged, nullptr, nullptr};
#endif
    return &kernels;
}

}  // namespace deepinfer
