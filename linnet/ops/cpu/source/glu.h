// A gated linear unit, y = act(a) * b of the rows of a and b, and its gradients da and db, in one pass each.
#pragma once

#include "vector.h"

struct Glu {
    int64_t rows, width, act, threads;  // act: 0 silu, 1 relu
    float *a, *b;                       // (rows, width), lda and ldb apart
    int64_t lda, ldb;
    float* y;  // (rows, width) without gaps; null in the backward pass
    float* g;  // (rows, width), ldg apart
    int64_t ldg;
    float *da, *db;  // (rows, width), ldd apart
    int64_t ldd;
};

// act(a) and its slope, which the forward pass ignores. NaN and infinities propagate as in torch.
SMALL vec activate(vec a, int64_t act, vec& slope) {
    if (act == 1) {
        slope = a <= 0.0f ? vec{} : vec{} + 1.0f;
        return most(a, vec{});
    }
    const vec e = exp(a < 0.0f ? a : -a);  // at most 1, so that neither side of the sigmoid loses digits
    const vec t = 1.0f / (1.0f + e);
    const vec sigmoid = a < 0.0f ? e * t : t, rest = a < 0.0f ? t : e * t;
    slope = sigmoid * (1.0f + a * rest);
    return a * sigmoid;
}

// n numbers of a row that is shorter than a vector, or a whole vector.
SMALL vec load_some(const float* p, int64_t n) {
    if (n == W) return load(p);
    vec x = {};
    std::memcpy(&x, p, n * 4);
    return x;
}

SMALL void store_some(float* p, vec x, int64_t n) {
    if (n == W)
        store(p, x);
    else
        std::memcpy(p, &x, n * 4);
}

// f(start, count) for the vectors of a row: the last one ends where the row ends and overlaps the one before.
template <class F>
SMALL void each_vector(int64_t width, F f) {
    const int64_t n = std::min<int64_t>(width, W);
    for (int64_t i = 0; i < width; i += W) f(std::min(i, width - n), n);
}

extern "C" void linnet_glu(const Glu* problem) {
    const Glu p = *problem;
#pragma omp parallel for num_threads(p.threads)
    for (int64_t r = 0; r < p.rows; r++) {
        const float *a = p.a + r * p.lda, *b = p.b + r * p.ldb;
        float* y = p.y + r * p.width;
        each_vector(p.width, [&](int64_t i, int64_t n) {
            vec slope;
            store_some(y + i, activate(load_some(a + i, n), p.act, slope) * load_some(b + i, n), n);  // M49
        });
    }
}

extern "C" void linnet_glu_backward(const Glu* problem) {
    const Glu p = *problem;
#pragma omp parallel for num_threads(p.threads)
    for (int64_t r = 0; r < p.rows; r++) {
        const float *a = p.a + r * p.lda, *b = p.b + r * p.ldb, *g = p.g + r * p.ldg;
        float *da = p.da + r * p.ldd, *db = p.db + r * p.ldd;
        each_vector(p.width, [&](int64_t i, int64_t n) {
            const vec v = load_some(g + i, n), h = v * load_some(b + i, n);
            vec slope;
            store_some(db + i, v * activate(load_some(a + i, n), p.act, slope), n);
            const vec kept = p.act == 1 ? (slope == 0.0f ? vec{} : h) : h * slope;  // relu stops even a NaN, as in torch
            store_some(da + i, kept, n);
        });
    }
}
