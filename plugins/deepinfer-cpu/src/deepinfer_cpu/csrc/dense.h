// Matrix products with the weight as checkpoints hold it, or packed at load.
//
// The weight is taken in panels of 16 rows, each turned so that a vector holds one number of every
// row (one pair of bf16): then sums need no adding up across a vector, each is one chain over K,
// and its bits depend on neither the other tokens nor the threads. A packed weight lies like that.
#pragma once

#include "squares.h"

#if defined(__AVX512F__)

namespace deepinfer {
namespace {

constexpr int kPanel = W;       // rows of the weight
constexpr int kTokenBlock = 16;  // as many chains as hide the latency of one

// How many numbers of x one 32-bit word of a panel meets.
template <class D>
constexpr int64_t words_of(int64_t width) {
    return Pairs<D>::is_native ? width / 2 : width;
}

template <class D>
DI_INLINE VF load_weights(const typename D::T* from, int64_t num_words) {
    constexpr int per_word = Pairs<D>::is_native ? 2 : 1;
    if (num_words >= W) return Pairs<D>::is_native ? load_raw<VF>(from) : D::load(from);
    typename D::T part[W * per_word] = {};
    std::memcpy(part, from, size_t(num_words * per_word) * sizeof(part[0]));
    return Pairs<D>::is_native ? load_raw<VF>(part) : D::load(part);
}

// Rows first to first + 16 of a weight become [words, 16]; rows past the end become zeros.
template <class D>
void turn_panel(const typename D::T* weight, int64_t stride, int64_t num_rows, int64_t width,
                float* panel) {
    constexpr int per_word = Pairs<D>::is_native ? 2 : 1;
    const int64_t num_words = words_of<D>(width);
    for (int64_t i = 0; i < num_words; i += W) {
        VF square[W];
        const int64_t left = num_words - i;
        if (left >= W && num_rows >= W) {
#pragma GCC unroll 16
            for (int r = 0; r < W; ++r)
                square[r] = load_weights<D>(weight + r * stride + i * per_word, W);
        } else {
            for (int r = 0; r < W; ++r)
                square[r] = r < num_rows ? load_weights<D>(weight + r * stride + i * per_word, left)
                                         : VF{};
        }
        transpose(square);
        if (left >= W) {
#pragma GCC unroll 16
            for (int r = 0; r < W; ++r) store_raw(panel + (i + r) * kPanel, square[r]);
        } else {
            for (int r = 0; r < left; ++r) store_raw(panel + (i + r) * kPanel, square[r]);
        }
    }
}

// One panel times some tokens. `ahead` is what memory should bring meanwhile, a line a word.
template <class D, int tokens>
DI_INLINE void multiply_panel(const DenseArgs& args, int64_t token, int64_t row,
                              const float* panel, const char* ahead) {
    typedef typename D::T T;
    constexpr bool is_paired = Pairs<D>::is_native;
    constexpr int per_word = is_paired ? 2 : 1;
    const T* x = static_cast<const T*>(args.x) + token * args.x_stride;
    const int64_t num_words = words_of<D>(args.in_features);
    VF sums[tokens];
#pragma GCC unroll 16
    for (int t = 0; t < tokens; ++t) sums[t] = VF{};
    for (int64_t i = 0; i < num_words; ++i) {
        const VF weights = load_raw<VF>(panel + i * kPanel);
        __builtin_prefetch(ahead + i * 64);
#pragma GCC unroll 16
        for (int t = 0; t < tokens; ++t) {
            float word;
            std::memcpy(&word, x + t * args.x_stride + i * per_word, sizeof word);
            sums[t] = multiply_add<is_paired>(splat(word), weights, sums[t]);
        }
    }
    const int64_t left = args.out_features - row, n = left < kPanel ? left : kPanel;
    const VF bias = args.bias ? load_part<D>(static_cast<const T*>(args.bias) + row, n) : VF{};
    T* y = static_cast<T*>(args.y) + token * args.out_features + row;
#pragma GCC unroll 16
    for (int t = 0; t < tokens; ++t)
        store_part<D>(y + t * args.out_features, args.bias ? sums[t] + bias : sums[t], n);
}

struct DensePlan {
    const DenseArgs* args;
    int64_t num_panels, per_unit;
};

template <class D>
void multiply_unit(void* context, int64_t index) {
    typedef typename D::T T;
    const DensePlan& plan = *static_cast<const DensePlan*>(context);
    const DenseArgs& args = *plan.args;
    const int64_t num_words = words_of<D>(args.in_features), panel_floats = num_words * kPanel;
    float* turned = args.is_packed ? nullptr
                                   : static_cast<float*>(scratch(
                                         kPanelSlot, size_t(panel_floats) * sizeof(float)));
    const int64_t begin = index * plan.per_unit, end = begin + plan.per_unit;
    for (int64_t p = begin; p < end && p < plan.num_panels; ++p) {
        const int64_t row = p * kPanel;
        const float* panel = static_cast<const float*>(args.weight) + p * panel_floats;
        const char* ahead = reinterpret_cast<const char*>(panel + panel_floats);
        if (!args.is_packed) {
            const T* weight = static_cast<const T*>(args.weight) + row * args.weight_stride;
            turn_panel<D>(weight, args.weight_stride, args.out_features - row, args.in_features,
                          turned);
            panel = turned;
            ahead = reinterpret_cast<const char*>(weight + kPanel * args.weight_stride);
        }
        int64_t t = 0;
        for (; t + kTokenBlock <= args.num_tokens; t += kTokenBlock)
            multiply_panel<D, kTokenBlock>(args, t, row, panel, ahead);
        for (; t + 4 <= args.num_tokens; t += 4) multiply_panel<D, 4>(args, t, row, panel, ahead);
        for (; t < args.num_tokens; ++t) multiply_panel<D, 1>(args, t, row, panel, ahead);
    }
}

// A plain weight may have any row length that its pairs allow; a packed one is whole panels.
void dense(const DenseArgs& args, int num_threads) {
    DensePlan plan = {&args, (args.out_features + kPanel - 1) / kPanel, 1};
    if (!args.num_tokens || !plan.num_panels) return;
    // Several panels for a thread at a time, so that it reads on where it was.
    plan.per_unit = plan.num_panels / (num_threads * 4);
    if (plan.per_unit < 1) plan.per_unit = 1;
    const int64_t count = (plan.num_panels + plan.per_unit - 1) / plan.per_unit;
    if (args.out_features * args.in_features < 65536) num_threads = 1;
    if (args.dtype == kBFloat16) run_parallel(count, num_threads, multiply_unit<BF16>, &plan);
    else run_parallel(count, num_threads, multiply_unit<F32>, &plan);
}

struct PackPlan {
    const void* weight;
    int64_t stride, width;
    void* packed;
};

template <class D>
void pack_panel(void* context, int64_t index) {
    const PackPlan& plan = *static_cast<const PackPlan*>(context);
    const int64_t floats = words_of<D>(plan.width) * kPanel;
    turn_panel<D>(static_cast<const typename D::T*>(plan.weight) + index * kPanel * plan.stride,
                  plan.stride, kPanel, plan.width, static_cast<float*>(plan.packed) + index * floats);
}

void pack(int dtype, const void* weight, int64_t stride, void* packed, int64_t num_rows,
          int64_t width, int num_threads) {
    PackPlan plan = {weight, stride, width, packed};
    const int64_t count = num_rows / kPanel;
    if (dtype == kBFloat16) run_parallel(count, num_threads, pack_panel<BF16>, &plan);
    else run_parallel(count, num_threads, pack_panel<F32>, &plan);
}

}  // namespace
}  // namespace deepinfer

#endif
