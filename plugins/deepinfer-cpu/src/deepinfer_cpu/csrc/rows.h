// Ops that treat each token alone: norm, activation, rotation.
#pragma once

#include "vec.h"

namespace deepinfer {
namespace {

template <class D>
void rms_row(const RmsArgs& args, int64_t row) {
    typedef typename D::T T;
    const int64_t width = args.width;
    const T* x = static_cast<const T*>(args.x) + row * args.x_stride;
    const T* weight = static_cast<const T*>(args.weight);
    T* y = static_cast<T*>(args.y) + row * width;
    if (args.residual) {
        const T* residual = static_cast<const T*>(args.residual) + row * args.residual_stride;
        T* total = static_cast<T*>(args.total) + row * width;
        each_vector(width, [&](int64_t i, int64_t n) {
            store_part<D>(total + i, load_part<D>(x + i, n) + load_part<D>(residual + i, n), n);
        });
        x = total;
    }
    // Four sums, so that one need not wait for the other; which element goes where is fixed.
    VF sums[4] = {};
    int64_t i = 0;
    for (; i + 4 * W <= width; i += 4 * W)
        for (int s = 0; s < 4; ++s) {
            const VF v = D::load(x + i + s * W);
            sums[s] = fma(v, v, sums[s]);
        }
    for (; i < width; i += W) {
        const VF v = load_part<D>(x + i, width - i < W ? width - i : W);
        sums[0] = fma(v, v, sums[0]);
    }
    const float squares = sum_lanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
    const VF factor = splat(1.0f / std::sqrt(squares / float(width) + args.eps));
    each_vector(width, [&](int64_t at, int64_t n) {
        VF v = load_part<D>(x + at, n) * factor;
        // Rounded before the weight, as the models were trained.
        if (weight) v = rounded<D>(v) * load_part<D>(weight + at, n);
        store_part<D>(y + at, v, n);
    });
}

void rms(const RmsArgs& args, int64_t begin, int64_t end) {
    with_dtype(args.dtype, [&](auto d) {
        for (int64_t row = begin; row < end; ++row) rms_row<decltype(d)>(args, row);
    });
}

template <class D>
void silu_mul_row(const SiluMulArgs& args, int64_t row) {
    typedef typename D::T T;
    const T* gates = static_cast<const T*>(args.x) + row * args.x_stride;
    const T* ups = gates + args.width;
    T* y = static_cast<T*>(args.y) + row * args.width;
    const VF limit = splat(args.limit);
    const bool is_limited = args.limit < INFINITY;
    each_vector(args.width, [&](int64_t i, int64_t n) {
        VF gate = load_part<D>(gates + i, n), up = load_part<D>(ups + i, n);
        if (is_limited) {
            gate = select(gate > limit, limit, gate);  // a nan stays one
            up = select(up > limit, limit, up);
            up = select(up < -limit, -limit, up);
        }
        // e^-88 is no normal number, so the divisor of very negative gates stays finite.
        const VF silu = gate / (exponential(-gate) + splat(1.0f));
        store_part<D>(y + i, rounded<D>(silu) * up, n);
    });
}

void silu_mul(const SiluMulArgs& args, int64_t begin, int64_t end) {
    with_dtype(args.dtype, [&](auto d) {
        for (int64_t row = begin; row < end; ++row) silu_mul_row<decltype(d)>(args, row);
    });
}

template <class D>
void rope_row(const RopeArgs& args, int64_t token) {
    typedef typename D::T T;
    const int64_t half = args.rotary_dim / 2;
    const float* cosines = args.cos_sin + args.positions[token] * args.cos_sin_stride;
    const float* sines = cosines + half;
    const float sign = args.is_inverse ? -1.0f : 1.0f;
    for (int64_t head = 0; head < args.num_heads; ++head) {
        const T* x = static_cast<const T*>(args.x) + token * args.token_stride +
                     head * args.head_stride;
        T* y = static_cast<T*>(args.y) + (token * args.num_heads + head) * args.head_dim;
        if (args.is_interleaved) {
            each_vector(half, [&](int64_t i, int64_t n) {
                T first[W] = {}, second[W] = {};
                for (int64_t j = 0; j < n; ++j) {
                    first[j] = x[2 * (i + j)];
                    second[j] = x[2 * (i + j) + 1];
                }
                const VF a = D::load(first), b = D::load(second);
                const VF c = load_part<F32>(cosines + i, n);
                const VF s = load_part<F32>(sines + i, n) * sign;
                D::store(first, a * c - b * s);
                D::store(second, b * c + a * s);
                for (int64_t j = 0; j < n; ++j) {
                    y[2 * (i + j)] = first[j];
                    y[2 * (i + j) + 1] = second[j];
                }
            });
        } else {
            each_vector(half, [&](int64_t i, int64_t n) {
                const VF a = load_part<D>(x + i, n), b = load_part<D>(x + half + i, n);
                const VF c = load_part<F32>(cosines + i, n);
                const VF s = load_part<F32>(sines + i, n) * sign;
                store_part<D>(y + i, a * c - b * s, n);
                store_part<D>(y + half + i, b * c + a * s, n);
            });
        }
        const int64_t rest = args.head_dim - 2 * half;
        if (rest) std::memcpy(y + 2 * half, x + 2 * half, size_t(rest) * sizeof(T));
    }
}

void rope(const RopeArgs& args, int64_t begin, int64_t end) {
    with_dtype(args.dtype, [&](auto d) {
        for (int64_t token = begin; token < end; ++token) rope_row<decltype(d)>(args, token);
    });
}

}  // namespace
}  // namespace deepinfer
