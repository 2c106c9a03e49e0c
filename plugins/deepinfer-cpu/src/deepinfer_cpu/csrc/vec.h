// Vectors of floats of whatever width this level has, and loads and stores of the three dtypes.
// Included by one source that is compiled once for each level; everything here is internal to it.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernels.h"

namespace deepinfer {
namespace {

#define DI_INLINE inline __attribute__((always_inline))

#if defined(__AVX512F__)
constexpr int W = 16;
#elif defined(__AVX2__)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif

typedef float VF __attribute__((vector_size(4 * W)));
typedef int32_t VI __attribute__((vector_size(4 * W)));
typedef uint32_t VU __attribute__((vector_size(4 * W)));
typedef uint16_t VH __attribute__((vector_size(2 * W)));

template <class To, class From>
DI_INLINE To bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "same size");
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

template <class V, class T>
DI_INLINE V load_raw(const T* from) {
    V v;
    std::memcpy(&v, from, sizeof v);
    return v;
}

template <class V, class T>
DI_INLINE void store_raw(T* to, V v) {
    std::memcpy(to, &v, sizeof v);
}

DI_INLINE VF splat(float x) {
#if defined(__AVX512F__)
    return (VF)_mm512_set1_ps(x);
#elif defined(__AVX2__)
    return (VF)_mm256_set1_ps(x);
#else
    return VF{x, x, x, x};
#endif
}

// The one place where products and sums are fused: the compiler is told not to do it elsewhere, so
// that an element's bits depend on its own inputs only.
DI_INLINE VF fma(VF a, VF b, VF c) {
#if defined(__AVX512F__)
    return (VF)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
    return (VF)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

DI_INLINE VF select(VI mask, VF yes, VF no) { return mask ? yes : no; }
DI_INLINE VF max(VF a, VF b) {
#if defined(__AVX512F__)
    return (VF)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (VF)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return select(a > b, a, b);
#endif
}

DI_INLINE VI lanes() {
    VI v{};
    for (int i = 0; i < W; ++i) v[i] = i;
    return v;
}

// Halves the lanes that count, by a sum or a maximum, until one is left: a fixed tree.
template <class Combine>
DI_INLINE float reduce(VF v, Combine combine) {
#if defined(__AVX512F__)
    const __m512 all = (__m512)v;
    v = combine(v, (VF)_mm512_shuffle_f32x4(all, all, 0x4e));
    v = combine(v, (VF)_mm512_shuffle_f32x4((__m512)v, (__m512)v, 0xb1));
    v = combine(v, (VF)_mm512_shuffle_ps((__m512)v, (__m512)v, 0x4e));
    v = combine(v, (VF)_mm512_shuffle_ps((__m512)v, (__m512)v, 0xb1));
#elif defined(__AVX2__)
    v = combine(v, (VF)_mm256_permute2f128_ps((__m256)v, (__m256)v, 1));
    v = combine(v, (VF)_mm256_shuffle_ps((__m256)v, (__m256)v, 0x4e));
    v = combine(v, (VF)_mm256_shuffle_ps((__m256)v, (__m256)v, 0xb1));
#else
    v = combine(v, VF{v[2], v[3], v[0], v[1]});
    v = combine(v, VF{v[1], v[0], v[3], v[2]});
#endif
    return v[0];
}

DI_INLINE float sum_lanes(VF v) {
    return reduce(v, [](VF a, VF b) { return a + b; });
}
DI_INLINE float max_lanes(VF v) {
    return reduce(v, [](VF a, VF b) { return max(a, b); });
}

// e^x to about one unit in the last place, 0 below -87.3 and exactly 1 at 0; x <= 88. The
// polynomial is that of the Cephes library (S. Moshier), after range reduction by ln 2.
DI_INLINE VF exponential(VF x) {
    const VF lowest = splat(-87.33654f);
    const VI is_tiny = x < lowest;
    x = select(is_tiny, lowest, x);
    x = select(x > splat(88.3f), splat(88.3f), x);  // a nan stays one
    const VF magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
    const VF shifted = fma(x, splat(1.44269504f), magic);
    const VF n = shifted - magic;
    VF r = fma(n, splat(-0.693359375f), x);
    r = fma(n, splat(2.12194440e-4f), r);
    VF p = splat(1.9875691500e-4f);
    p = fma(p, r, splat(1.3981999507e-3f));
    p = fma(p, r, splat(8.3334519073e-3f));
    p = fma(p, r, splat(4.1665795894e-2f));
    p = fma(p, r, splat(1.6666665459e-1f));
    p = fma(p, r, splat(5.0000001201e-1f));
    p = fma(p, r * r, r) + splat(1.0f);
    const VI exponent = (bits<VI>(shifted) - bits<VI>(magic) + 127) << 23;
    return select(is_tiny, VF{}, p * bits<VF>(exponent));
}

struct F32 {
    typedef float T;
    static DI_INLINE VF load(const T* from) { return load_raw<VF>(from); }
    static DI_INLINE void store(T* to, VF v) { store_raw(to, v); }
};

struct BF16 {
    typedef uint16_t T;
    static DI_INLINE VF load(const T* from) {
#if defined(__AVX512F__)
        const __m512i wide = _mm512_cvtepu16_epi32(load_raw<__m256i>(from));
        return bits<VF>(_mm512_slli_epi32(wide, 16));
#elif defined(__AVX2__)
        const __m256i wide = _mm256_cvtepu16_epi32(load_raw<__m128i>(from));
        return bits<VF>(_mm256_slli_epi32(wide, 16));
#else
        return bits<VF>(__builtin_convertvector(load_raw<VH>(from), VU) << 16);
#endif
    }
    static DI_INLINE void store(T* to, VF v) {
        const VU u = bits<VU>(v);
        VU rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
        const VU is_nan = bits<VU>((VI)(v != v));
        rounded = (is_nan & 0x7fc0) | (~is_nan & rounded);
#if defined(__AVX512F__)
        store_raw(to, _mm512_cvtepi32_epi16(bits<__m512i>(rounded)));
#else
        store_raw(to, __builtin_convertvector(rounded, VH));
#endif
    }
};

inline float half_to_float(uint16_t h) {
    const uint32_t sign = uint32_t(h & 0x8000) << 16, magnitude = h & 0x7fff;
    if (magnitude >= 0x7c00) return bits<float>(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
    // 2^112 turns the exponent of a half into that of a float, and denormals into numbers.
    const float value = bits<float>(magnitude << 13) * 5.192296858534828e33f;
    return bits<float>(bits<uint32_t>(value) | sign);
}

inline uint16_t float_to_half(float x) {
    const uint32_t u = bits<uint32_t>(x), sign = (u >> 16) & 0x8000, magnitude = u & 0x7fffffff;
    if (magnitude > 0x7f800000) return uint16_t(sign | 0x7e00);
    if (magnitude >= 0x477ff000) return uint16_t(sign | 0x7c00);  // rounds to 65536 or more
    if (magnitude < 0x38800000) {                                 // denormal: 0.5 aligns the bits
        const float shifted = bits<float>(magnitude) + 0.5f;
        return uint16_t(sign | (bits<uint32_t>(shifted) - 0x3f000000));
    }
    const uint32_t rounded = magnitude - 0x38000000 + 0xfff + ((magnitude >> 13) & 1);
    return uint16_t(sign | rounded >> 13);
}

struct F16 {
    typedef uint16_t T;
    static DI_INLINE VF load(const T* from) {
#if defined(__AVX512F__)
        return (VF)_mm512_cvtph_ps(load_raw<__m256i>(from));
#elif defined(__F16C__)
        return (VF)_mm256_cvtph_ps(load_raw<__m128i>(from));
#else
        VF v{};
        for (int i = 0; i < W; ++i) v[i] = half_to_float(from[i]);
        return v;
#endif
    }
    static DI_INLINE void store(T* to, VF v) {
#if defined(__AVX512F__)
        store_raw(to, _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
        store_raw(to, _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT));
#else
        for (int i = 0; i < W; ++i) to[i] = float_to_half(v[i]);
#endif
    }
};

// The first n < W elements; zeros in the other lanes.
template <class D>
DI_INLINE VF load_some(const typename D::T* from, int64_t n) {
    typename D::T padded[W] = {};
    std::memcpy(padded, from, size_t(n) * sizeof(padded[0]));
    return D::load(padded);
}

template <class D>
DI_INLINE void store_some(typename D::T* to, VF v, int64_t n) {
    typename D::T padded[W];
    D::store(padded, v);
    std::memcpy(to, padded, size_t(n) * sizeof(padded[0]));
}

// Rounds to the dtype and back.
template <class D>
DI_INLINE VF rounded(VF v) {
    typename D::T stored[W];
    D::store(stored, v);
    return D::load(stored);
}
template <>
DI_INLINE VF rounded<F32>(VF v) { return v; }
template <>
DI_INLINE VF rounded<BF16>(VF v) {
    const VU u = bits<VU>(v);
    const VU up = (u + 0x7fff + ((u >> 16) & 1)) & 0xffff0000u;
    return select((VI)(v != v), v, bits<VF>(up));
}

// body(i, n) for every stretch of up to W elements of a row.
template <class Body>
DI_INLINE void each_vector(int64_t width, Body body) {
    int64_t i = 0;
    for (; i + W <= width; i += W) body(i, int64_t(W));
    if (i < width) body(i, width - i);
}

template <class D>
DI_INLINE VF load_part(const typename D::T* from, int64_t n) {
    return n == W ? D::load(from) : load_some<D>(from, n);
}
template <class D>
DI_INLINE void store_part(typename D::T* to, VF v, int64_t n) {
    if (n == W) D::store(to, v);
    else store_some<D>(to, v, n);
}

// Calls f with the dtype's type.
template <class F>
DI_INLINE void with_dtype(int dtype, F f) {
    if (dtype == kFloat32) f(F32());
    else if (dtype == kBFloat16) f(BF16());
    else f(F16());
}

}  // namespace
}  // namespace deepinfer
