// The widest vectors that the compiler may use, and small pieces of memory: one source for every processor.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#if defined(__AVX512F__)
constexpr int W = 16;  // floats in a vector
#elif defined(__AVX__)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif

constexpr float FLOOR = -1e30f;  // stands for the maximum of no exponents

typedef float vec __attribute__((vector_size(W * 4)));
typedef int32_t ivec __attribute__((vector_size(W * 4)));
typedef uint32_t uvec __attribute__((vector_size(W * 4)));
typedef float loose __attribute__((vector_size(W * 4), aligned(4), may_alias));  // at any address

#define SMALL __attribute__((always_inline)) static inline
#define PLAIN __attribute__((noinline)) static

SMALL vec load(const float* p) { return *reinterpret_cast<const loose*>(p); }
SMALL void store(float* p, vec x) { *reinterpret_cast<loose*>(p) = x; }

SMALL vec most(vec a, vec b) { return b > a ? b : a; }  // a NaN in a stays
SMALL vec least(vec a, vec b) { return b < a ? b : a; }

// e^x = 2^n e^r with n whole and |r| <= ln(2)/2, as 2^n + 2^n (e^r - 1): `rest` is e^r - 1. x is at least -87.
SMALL vec power(vec x, vec& rest) {
    const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number, which is in the lowest bits
    const vec whole = x * 1.44269504089f + magic, n = whole - magic;
    const vec r = (x - n * 0.693359375f) + n * 2.12194440055e-4f;  // ln 2 in two parts, n times the first is exact
    vec p = r * 1.3814598e-3f + 8.3687166e-3f;  // (e^r - 1 - r) / r^2, with an error of at most 4e-9 of e^r
    p = p * r + 0.041668389f;
    p = p * r + 0.16666521f;
    p = p * r + 0.49999994f;
    rest = p * (r * r) + r;
    return reinterpret_cast<vec>((reinterpret_cast<ivec>(whole) << 23) + (127 << 23));
}

// e^x for x <= 88; 0 below e^-87, where numbers would be denormal and slow. NaN stays NaN.
SMALL vec exp(vec x) {
    vec rest;
    const vec scale = power(most(least(x, vec{} + 88.0f), vec{} - 87.0f), rest);
    const vec y = scale * rest + scale;
    return x < -87.0f ? vec{} : y;
}

// 1 + elu(x), or elu(x), without loss of precision for small x.
SMALL vec elu(vec x, bool plus_one) {
    vec rest;
    const vec scale = power(most(least(x, vec{}), vec{} - 87.0f), rest);
    const vec y = plus_one ? scale * rest + scale : scale * rest + (scale - 1.0f);
    return x > 0.0f ? (plus_one ? x + 1.0f : x) : y;
}

// The next multiple of W, to which rows of vectors are padded.
static inline int64_t padded(int64_t width) { return (width + W - 1) / W * W; }

// Floats aligned to a cache line, freed at the end of the scope.
class Memory {
  public:
    explicit Memory(int64_t floats) : data_(nullptr) {
        const size_t bytes = (static_cast<size_t>(std::max<int64_t>(floats, 1)) * 4 + 63) / 64 * 64;
        if (posix_memalign(reinterpret_cast<void**>(&data_), 64, bytes) != 0) std::abort();
    }
    ~Memory() { std::free(data_); }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    float* take(int64_t floats) {  // the next piece, aligned to vectors
        float* piece = data_ + used_;
        used_ += padded(floats);
        return piece;
    }

  private:
    float* data_;
    int64_t used_ = 0;
};

// Reduces the N numbers of a vector with f, half with half.
template <class E, int N>
struct Lanes {
    typedef E type __attribute__((vector_size(N * sizeof(E))));
};

template <class E, int N, class F>
SMALL E fold(typename Lanes<E, N>::type x, F f) {
    if constexpr (N == 2) {
        return f(E(x[0]), E(x[1]));
    } else {
        typename Lanes<E, N / 2>::type halves[2];
        std::memcpy(halves, &x, sizeof(x));
        return fold<E, N / 2>(f(halves[0], halves[1]), f);
    }
}

SMALL float largest(vec x) {
    return fold<float, W>(x, [](auto a, auto b) { return a > b ? a : b; });
}

SMALL float total(vec x) {
    return fold<float, W>(x, [](auto a, auto b) { return a + b; });
}

SMALL bool any(ivec x) {
    return fold<int32_t, W>(x, [](auto a, auto b) { return a | b; }) != 0;
}

typedef float quad __attribute__((vector_size(16), aligned(4), may_alias));
#if defined(__clang__)
#define MIX(x, y, a, b, c, d) __builtin_shufflevector(x, y, a, b, c, d)
#else
#define MIX(x, y, a, b, c, d) __builtin_shuffle(x, y, (int32_t __attribute__((vector_size(16)))){a, b, c, d})
#endif

// X (rows x columns, rows ldx apart) to Y (columns x rows), four by four.
static inline void transpose(const float* X, int64_t rows, int64_t columns, int64_t ldx, float* Y, int64_t ldy) {
    const int64_t R = rows / 4 * 4, C = columns / 4 * 4;
    for (int64_t i = 0; i < R; i += 4)
        for (int64_t j = 0; j < C; j += 4) {
            const float* x = X + i * ldx + j;
            const auto row = [&](int n) { return *reinterpret_cast<const quad*>(x + n * ldx); };
            const auto put = [&](int n, quad y) { *reinterpret_cast<quad*>(Y + (j + n) * ldy + i) = y; };
            const quad a = MIX(row(0), row(1), 0, 4, 1, 5), b = MIX(row(0), row(1), 2, 6, 3, 7);
            const quad c = MIX(row(2), row(3), 0, 4, 1, 5), d = MIX(row(2), row(3), 2, 6, 3, 7);
            put(0, MIX(a, c, 0, 1, 4, 5)), put(1, MIX(a, c, 2, 3, 6, 7));
            put(2, MIX(b, d, 0, 1, 4, 5)), put(3, MIX(b, d, 2, 3, 6, 7));
        }
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = i < R ? C : 0; j < columns; j++) Y[j * ldy + i] = X[i * ldx + j];
}

static inline float dot(const float* a, const float* b, int64_t n) {
    vec sum = {};
    int64_t i = 0;
    for (; i + W <= n; i += W) sum += load(a + i) * load(b + i);
    float y = total(sum);
    for (; i < n; i++) y += a[i] * b[i];
    return y;
}
