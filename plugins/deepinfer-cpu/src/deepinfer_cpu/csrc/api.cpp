// The C interface of the library: picks the level of instructions, splits rows over threads.
//
// Threads are those of the process's own OpenMP runtime, whose GOMP_parallel is handed in: a second
// runtime would bring a second pool, and both would spin on the same cores.
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "kernels.h"

#define DI_EXPORT extern "C" __attribute__((visibility("default")))

namespace deepinfer {
namespace {

typedef void (*ParallelRegion)(void (*body)(void*), void* context, unsigned threads,
                               unsigned flags);

ParallelRegion parallel_region = nullptr;
const Kernels* kernels = scalar_kernels();
int current_level = 0;

struct Region {
    std::atomic<int64_t> next;
    int64_t count;
    void (*task)(void*, int64_t);
    void* context;
};

void work_off(void* region) {
    Region& shared = *static_cast<Region*>(region);
    for (int64_t i; (i = shared.next.fetch_add(1, std::memory_order_relaxed)) < shared.count;)
        shared.task(shared.context, i);
}

struct Buffer {
    void* memory = nullptr;
    size_t size = 0;
    ~Buffer() { std::free(memory); }
};

thread_local Buffer buffers[kNumSlots];

int best_level() {
#ifdef DEEPINFER_X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return __builtin_cpu_supports("avx512bf16") ? 3 : 2;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("f16c"))
        return 1;
#endif
    return 0;
}

// Rows [first, ...) of a batch in stretches, each about as much work as is worth a thread.
template <class Args>
struct RowStretches {
    const Args* args;
    void (*kernel)(const Args&, int64_t, int64_t);
    int64_t num_rows, per_stretch;
    static void run(void* context, int64_t index) {
        const RowStretches& all = *static_cast<const RowStretches*>(context);
        const int64_t begin = index * all.per_stretch, end = begin + all.per_stretch;
        all.kernel(*all.args, begin, end < all.num_rows ? end : all.num_rows);
    }
};

// Elements below which waking other threads takes longer than the work, for a light op.
constexpr int64_t kMinElements = 32768;

template <class Args>
void run_rows(const Args& args, void (*kernel)(const Args&, int64_t, int64_t), int64_t num_rows,
              int64_t width, int num_threads) {
    int64_t per_stretch = width > 0 ? (kMinElements + width - 1) / width : num_rows;
    const int64_t share = (num_rows + num_threads - 1) / num_threads;
    if (per_stretch < share) per_stretch = share;
    if (per_stretch >= num_rows) {
        kernel(args, 0, num_rows);
        return;
    }
    RowStretches<Args> stretches = {&args, kernel, num_rows, per_stretch};
    const int64_t count = (num_rows + per_stretch - 1) / per_stretch;
    run_parallel(count, num_threads, RowStretches<Args>::run, &stretches);
}

}  // namespace

void run_parallel(int64_t count, int num_threads, void (*task)(void*, int64_t), void* context) {
    if (num_threads > count) num_threads = int(count);
    if (num_threads <= 1 || !parallel_region) {
        for (int64_t i = 0; i < count; ++i) task(context, i);
        return;
    }
    Region region = {{0}, count, task, context};
    parallel_region(work_off, &region, unsigned(num_threads), 0);
}

void* scratch(ScratchSlot slot, size_t bytes) {
    Buffer& buffer = buffers[slot];
    if (buffer.size < bytes) {
        std::free(buffer.memory);
        buffer.size = (bytes + 4095) / 4096 * 4096;
        buffer.memory = std::aligned_alloc(64, buffer.size);
        if (!buffer.memory) std::abort();
    }
    return buffer.memory;
}

}  // namespace deepinfer

using namespace deepinfer;

// Which sources this was built from; the Python side knows which it needs.
DI_EXPORT const char* deepinfer_cpu_sources() { return DEEPINFER_SOURCES; }

// 0 scalar, 1 AVX2, 2 AVX-512, 3 AVX-512 with bfloat16 products.
DI_EXPORT int deepinfer_cpu_best_level() { return best_level(); }

DI_EXPORT int deepinfer_cpu_level() { return current_level; }

// Use the kernels of a level, which the CPU must have; returns whether there are any.
DI_EXPORT int deepinfer_cpu_use_level(int level) {
#ifdef DEEPINFER_X86
    const Kernels* (*levels[])() = {scalar_kernels, avx2_kernels, avx512_kernels,
                                    avx512_bf16_kernels};
#else
    const Kernels* (*levels[])() = {scalar_kernels};
#endif
    if (level < 0 || level > best_level()) return 0;
    kernels = levels[level]();
    current_level = level;
    return 1;
}

// Null: everything runs on the calling thread.
DI_EXPORT void deepinfer_cpu_use_threads_of(void* gomp_parallel) {
    parallel_region = reinterpret_cast<ParallelRegion>(gomp_parallel);
}

DI_EXPORT void deepinfer_cpu_rms(int dtype, const void* x, int64_t x_stride, const void* weight,
                                 float eps, const void* residual, int64_t residual_stride, void* y,
                                 void* total, int64_t num_tokens, int64_t width, int num_threads) {
    const RmsArgs args = {dtype, x, x_stride, weight, residual, residual_stride,
                          y, total, num_tokens, width, eps};
    run_rows(args, kernels->rms, num_tokens, width, num_threads);
}

DI_EXPORT void deepinfer_cpu_silu_mul(int dtype, const void* x, int64_t x_stride, void* y,
                                      int64_t num_tokens, int64_t width, float limit,
                                      int num_threads) {
    const SiluMulArgs args = {dtype, x, x_stride, y, num_tokens, width, limit};
    // An exponential weighs as much as four plain elements.
    run_rows(args, kernels->silu_mul, num_tokens, 6 * width, num_threads);
}

DI_EXPORT void deepinfer_cpu_rope(int dtype, const void* x, int64_t token_stride,
                                  int64_t head_stride, void* y, const int64_t* positions,
                                  const float* cos_sin, int64_t cos_sin_stride, int64_t num_tokens,
                                  int64_t num_heads, int64_t head_dim, int64_t rotary_dim,
                                  int is_interleaved, int is_inverse, int num_threads) {
    const RopeArgs args = {dtype, x, token_stride, head_stride, y, positions, cos_sin,
                           cos_sin_stride, num_tokens, num_heads, head_dim, rotary_dim,
                           is_interleaved != 0, is_inverse != 0};
    run_rows(args, kernels->rope, num_tokens, num_heads * head_dim, num_threads);
}

// Copies bytes only, so all dtypes and levels share it. One thread: memory is what it waits for.
// Without v, one row serves as key and value.
DI_EXPORT void deepinfer_cpu_store(const char* k, int64_t k_stride, const char* v, int64_t v_stride,
                                   char* k_cache, int64_t k_block, char* v_cache, int64_t v_block,
                                   const int32_t* slot_mapping, int64_t num_tokens,
                                   int64_t block_size, int64_t row_bytes) {
    for (int64_t token = 0; token < num_tokens; ++token) {
        const int64_t slot = slot_mapping[token];
        if (slot < 0) continue;
        const int64_t block = slot / block_size, offset = slot % block_size * row_bytes;
        std::memcpy(k_cache + block * k_block + offset, k + token * k_stride, size_t(row_bytes));
        if (v)
            std::memcpy(v_cache + block * v_block + offset, v + token * v_stride, size_t(row_bytes));
    }
}

DI_EXPORT void deepinfer_cpu_paged(
    int dtype, const void* q, int64_t q_stride, const void* k_cache, int64_t k_stride,
    const void* v_cache, int64_t v_stride, const int32_t* cu_seqlens_q, const int32_t* seq_lens,
    const int32_t* block_tables, int64_t table_stride, int64_t num_reqs, int64_t block_size,
    int64_t num_q_heads, int64_t num_kv_heads, int64_t head_dim, float scale, int64_t window,
    const float* sinks, float softcap, void* o, float* lse, int num_threads) {
    const PagedArgs args = {dtype, q, q_stride, k_cache, v_cache, k_stride, v_stride,
                            cu_seqlens_q, seq_lens, block_tables, table_stride, num_reqs,
                            block_size, num_q_heads, num_kv_heads, head_dim, scale, window,
                            sinks, softcap, o, lse};
    kernels->paged(args, num_threads);
}

DI_EXPORT void deepinfer_cpu_dense(int dtype, const void* x, int64_t x_stride, const void* weight,
                                   int64_t weight_stride, int is_packed, const void* bias, void* y,
                                   int64_t num_tokens, int64_t in_features, int64_t out_features,
                                   int num_threads) {
    const DenseArgs args = {dtype, x, x_stride, weight, weight_stride, is_packed != 0, bias,
                            y, num_tokens, in_features, out_features};
    kernels->dense(args, num_threads);
}

DI_EXPORT void deepinfer_cpu_pack(int dtype, const void* weight, int64_t stride, void* packed,
                                  int64_t num_rows, int64_t width, int num_threads) {
    kernels->pack(dtype, weight, stride, packed, num_rows, width, num_threads);
}
