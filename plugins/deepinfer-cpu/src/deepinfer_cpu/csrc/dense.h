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
constexpr int kManyPanels = 3;   // at once for many tokens, so that a number of x serves them all

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

// Some panels times some tokens. `ahead` is what memory should bring meanwhile, a line a word.
template <class D, int panels, int tokens>
DI_INLINE void multiply_panels(const DenseArgs& args, int64_t token, int64_t row,
                               const float* panel, const char* ahead) {
    typedef typename D::T T;
    constexpr bool is_paired = Pairs<D>::is_native;
    constexpr int per_word = is_paired ? 2 : 1;
    const T* x = static_cast<const T*>(args.x) + token * args.x_stride;
    const int64_t num_words = words_of<D>(args.in_features), next = num_words * kPanel;
    VF sums[tokens][panels];
#pragma GCC unroll 16
    for (int t = 0; t < tokens; ++t)
#pragma GCC unroll 4
        for (int p = 0; p < panels; ++p) sums[t][p] = VF{};
    for (int64_t i = 0; i < num_words; ++i) {
        VF weights[panels];
#pragma GCC unroll 4
        for (int p = 0; p < panels; ++p) weights[p] = load_raw<VF>(panel + p * next + i * kPanel);
        if (ahead) __builtin_prefetch(ahead + i * 64);
#pragma GCC unroll 16
        for (int t = 0; t < tokens; ++t) {
            float word;
            std::memcpy(&word, x + t * args.x_stride + i * per_word, sizeof word);
            const VF factor = splat(word);
#pragma GCC unroll 4
            for (int p = 0; p < panels; ++p)
                sums[t][p] = multiply_add<is_paired>(factor, weights[p], sums[t][p]);
        }
    }
    T* y = static_cast<T*>(args.y) + token * args.out_features;
#pragma GCC unroll 4
    for (int p = 0; p < panels; ++p) {
        const int64_t at = row + p * kPanel, left = args.out_features - at;
        const int64_t n = left < kPanel ? left : kPanel;
        const VF bias = args.bias ? load_part<D>(static_cast<const T*>(args.bias) + at, n) : VF{};
#pragma GCC unroll 16
        for (int t = 0; t < tokens; ++t)
            store_part<D>(y + t * args.out_features + at,
                          args.bias ? sums[t][p] + bias : sums[t][p], n);
    }
}

struct DensePlan {
    const DenseArgs* args;
    int64_t num_panels, per_unit;
};

// All tokens times `panels` panels that lie one after the other.
template <class D, int panels>
DI_INLINE void multiply_tokens(const DenseArgs& args, int64_t row, const float* panel,
                               const char* ahead) {
    constexpr int block = panels == 1 ? kTokenBlock : kTokenBlock / 2;
    const int64_t bytes = words_of<D>(args.in_features) * 64;
    int64_t t = 0;
    for (; t + block <= args.num_tokens; t += block) {
        // What comes next is asked for once, and here a part for each block of tokens.
        const bool is_asked = t / block < panels;
        multiply_panels<D, panels, block>(args, t, row, panel,
                                          is_asked ? ahead + t / block * bytes : nullptr);
    }
    for (; t + 4 <= args.num_tokens; t += 4)
        multiply_panels<D, panels, 4>(args, t, row, panel, ahead);
    for (; t < args.num_tokens; ++t) multiply_panels<D, panels, 1>(args, t, row, panel, ahead);
}

template <class D>
void multiply_unit(void* context, int64_t index) {
    typedef typename D::T T;
    const DensePlan& plan = *static_cast<const DensePlan*>(context);
    const DenseArgs& args = *plan.args;
    const int64_t panel_floats = words_of<D>(args.in_features) * kPanel;
    float* turned = nullptr;
    if (!args.is_packed)
        turned = static_cast<float*>(
            scratch(kPanelSlot, size_t(kManyPanels * panel_floats) * sizeof(float)));
    const int64_t begin = index * plan.per_unit;
    const int64_t end = begin + plan.per_unit < plan.num_panels ? begin + plan.per_unit
                                                                : plan.num_panels;
    for (int64_t p = begin; p < end;) {
        const int64_t row = p * kPanel;
        const bool is_many = args.num_tokens > kTokenBlock && p + kManyPanels <= end;
        const int count = is_many ? kManyPanels : 1;
        const float* panel = static_cast<const float*>(args.weight) + p * panel_floats;
        const char* ahead = reinterpret_cast<const char*>(panel + count * panel_floats);
        if (!args.is_packed) {
            const T* weight = static_cast<const T*>(args.weight) + row * args.weight_stride;
            for (int i = 0; i < count; ++i)
                turn_panel<D>(weight + i * kPanel * args.weight_stride, args.weight_stride,
                              args.out_features - row - i * kPanel, args.in_features,
                              turned + i * panel_floats);
            panel = turned;
            ahead = reinterpret_cast<const char*>(weight + count * kPanel * args.weight_stride);
        }
        if (is_many) multiply_tokens<D, kManyPanels>(args, row, panel, ahead);
        else multiply_tokens<D, 1>(args, row, panel, ahead);
        p += count;
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
