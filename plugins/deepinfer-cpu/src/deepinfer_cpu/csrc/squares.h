// What attention and matrix products share: turning squares of numbers, and products of pairs.
#pragma once

#include "vec.h"

namespace deepinfer {
namespace {

// W vectors as rows of a square become its columns.
DI_INLINE void transpose(VF (&r)[W]) {
#if defined(__AVX512F__)
    __m512 t[16], u[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps((__m512)r[i], (__m512)r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps((__m512)r[i], (__m512)r[i + 1]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i += 4)
#pragma GCC unroll 2
        for (int j = 0; j < 2; ++j) {
            const __m512d a = _mm512_castps_pd(t[i + j]), b = _mm512_castps_pd(t[i + j + 2]);
            u[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
            u[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
        }
    // u[4 g + c] holds in its quarter l column 4 l + c of rows 4 g to 4 g + 3.
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
        const __m512 a = _mm512_shuffle_f32x4(u[c], u[4 + c], 0x88);
        const __m512 b = _mm512_shuffle_f32x4(u[8 + c], u[12 + c], 0x88);
        const __m512 d = _mm512_shuffle_f32x4(u[c], u[4 + c], 0xdd);
        const __m512 e = _mm512_shuffle_f32x4(u[8 + c], u[12 + c], 0xdd);
        r[c] = (VF)_mm512_shuffle_f32x4(a, b, 0x88);
        r[8 + c] = (VF)_mm512_shuffle_f32x4(a, b, 0xdd);
        r[4 + c] = (VF)_mm512_shuffle_f32x4(d, e, 0x88);
        r[12 + c] = (VF)_mm512_shuffle_f32x4(d, e, 0xdd);
    }
#elif defined(__AVX2__)
    __m256 t[8], u[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps((__m256)r[i], (__m256)r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps((__m256)r[i], (__m256)r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; ++j) {
            const __m256d a = _mm256_castps_pd(t[i + j]), b = _mm256_castps_pd(t[i + j + 2]);
            u[i + 2 * j] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, b));
            u[i + 2 * j + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, b));
        }
    for (int c = 0; c < 4; ++c) {
        r[c] = (VF)_mm256_permute2f128_ps(u[c], u[4 + c], 0x20);
        r[4 + c] = (VF)_mm256_permute2f128_ps(u[c], u[4 + c], 0x31);
    }
#else
    VF t[W] = {};
    for (int i = 0; i < W; ++i)
        for (int j = 0; j < W; ++j) t[j][i] = r[i][j];
    for (int i = 0; i < W; ++i) r[i] = t[i];
#endif
}

// How queries and keys of a dtype are multiplied: as floats, or as pairs where the CPU can.
template <class D>
struct Pairs {
    static constexpr bool is_native = false;
};
#if defined(__AVX512BF16__)
template <>
struct Pairs<BF16> {
    static constexpr bool is_native = true;
};
#endif

template <bool is_paired>
DI_INLINE VF multiply_add(VF a, VF b, VF c) {
#if defined(__AVX512BF16__)
    if (is_paired)
        return (VF)_mm512_dpbf16_ps((__m512)c, bits<__m512bh>(a), bits<__m512bh>(b));
#endif
    return fma(a, b, c);
}

}  // namespace
}  // namespace deepinfer
