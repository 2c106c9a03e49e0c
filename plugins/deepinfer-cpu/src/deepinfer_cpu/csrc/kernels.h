// What every level of instructions offers, and what it may use. Plain C types only: no header of
// torch or Python, so that one build serves any version of either.
//
// Shapes are as in the specs of the ops. Strides count elements. Rows are contiguous inside.
#pragma once

#include <cstddef>
#include <cstdint>

namespace deepinfer {

enum DType : int { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2 };

struct RmsArgs {
    int dtype;
    const void* x;
    int64_t x_stride;
    const void* weight;    // [C] or null
    const void* residual;  // rows of x's shape, or null
    int64_t residual_stride;
    void* y;      // [T, C] contiguous
    void* total;  // [T, C] contiguous, x + residual; null without a residual
    int64_t num_tokens, width;
    float eps;
};

struct SiluMulArgs {
    int dtype;
    const void* x;
    int64_t x_stride;
    void* y;  // [T, F] contiguous
    int64_t num_tokens, width;
    float limit;  // infinity: none
};

struct RopeArgs {
    int dtype;
    const void* x;
    int64_t token_stride, head_stride;
    void* y;  // [T, H, D] contiguous
    const int64_t* positions;
    const float* cos_sin;
    int64_t cos_sin_stride;
    int64_t num_tokens, num_heads, head_dim, rotary_dim;
    bool is_interleaved, is_inverse;
};

struct PagedArgs {
    int dtype;
    const void* q;
    int64_t q_stride;
    const void *k_cache, *v_cache;
    int64_t k_stride, v_stride;  // of the block axis
    const int32_t *cu_seqlens_q, *seq_lens, *block_tables;
    int64_t table_stride, num_reqs, block_size;
    int64_t num_q_heads, num_kv_heads, head_dim;
    float scale;
    int64_t window;  // 0: none
    const float* sinks;
    float softcap;  // 0: none
    void* o;        // [T, H, D] contiguous
    float* lse;     // [T, H] or null
};

struct DenseArgs {
    int dtype;
    const void* x;
    int64_t x_stride;
    const void* weight;  // [N, K], or as `pack` leaves it
    int64_t weight_stride;
    bool is_packed;
    const void* bias;  // [N] or null
    void* y;           // [T, N] contiguous
    int64_t num_tokens, in_features, out_features;
};

// Rows [begin, end) of a batch; items of attention; all of a product. Null: not at this level.
struct Kernels {
    void (*rms)(const RmsArgs&, int64_t begin, int64_t end);
    void (*silu_mul)(const SiluMulArgs&, int64_t begin, int64_t end);
    void (*rope)(const RopeArgs&, int64_t begin, int64_t end);
    void (*paged)(const PagedArgs&, int num_threads);
    void (*dense)(const DenseArgs&, int num_threads);
    // [N, K] to panels of 16 rows, [N / 16, K / words, 16, words], N a multiple of 16.
    void (*pack)(int dtype, const void* weight, int64_t stride, void* packed, int64_t num_rows,
                 int64_t width, int num_threads);
};

const Kernels* scalar_kernels();
#ifdef DEEPINFER_X86
const Kernels* avx2_kernels();
const Kernels* avx512_kernels();
const Kernels* avx512_bf16_kernels();
#endif

// Runs task(context, i) once for every i in [0, count), on up to num_threads threads of the
// process's own OpenMP pool. Which thread runs which i is not fixed; results must not depend on it.
void run_parallel(int64_t count, int num_threads, void (*task)(void*, int64_t), void* context);

// Memory of the calling thread, aligned to 64 bytes, contents undefined; valid until its next call
// with the same slot.
enum ScratchSlot : int { kPlanSlot = 0, kPartialSlot = 1, kWorkSlot = 2, kPanelSlot = 3, kNumSlots = 4 };
void* scratch(ScratchSlot slot, size_t bytes);

}  // namespace deepinfer
