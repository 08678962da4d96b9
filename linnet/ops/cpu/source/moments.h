// Sums and sums of squares of the entries of each token, or of all tokens, in double precision, from which lln computes
// its deviations.
#pragma once

#include "rows.h"

#include <vector>

struct Moments {
    int64_t B, H, N, D, threads, group, whole;
    const uint8_t* real;   // (B, N), or null; a masked token gives 0
    View x;
    double *sum, *square;  // (B, H, N), or with `whole` (B, H)
};

typedef double wide_vec __attribute__((vector_size(W * 4)));
typedef float half_vec __attribute__((vector_size(W * 2), aligned(4), may_alias));

// Sums of many rows, kept in separate lanes until the end.
struct Sums {
    wide_vec sum[2] = {}, square[2] = {};
    double rest[2] = {};
    void add(const float* x, int64_t D) {
        int64_t d = 0;
        for (; d + W <= D; d += W)
            for (int j = 0; j < 2; j++) {
                const half_vec half = *reinterpret_cast<const half_vec*>(x + d + j * W / 2);
                const wide_vec y = __builtin_convertvector(half, wide_vec);
                sum[j] += y, square[j] += y * y;
            }
        for (; d < D; d++) rest[0] += x[d], rest[1] += double(x[d]) * x[d];
    }
    void store(double* total, double* squares) const {
        *total = rest[0], *squares = rest[1];
        for (int i = 0; i < W / 2; i++) *total += sum[0][i] + sum[1][i], *squares += square[0][i] + square[1][i];
    }
};

// The sums of each token of one row.
static void token_moments(const Moments& p, int64_t i, const uint8_t* real) {
    const Row x = row(p.x, i / p.H, i % p.H);
    for (int64_t t = 0; t < p.N; t++) {
        double sum = 0, square = 0;
        const float* y = x.p + t * x.ld;
        if (!real || real[t]) {
#pragma omp simd reduction(+ : sum, square)
            for (int64_t d = 0; d < p.D; d++) sum += y[d], square += double(y[d]) * y[d];
        }
        p.sum[i * p.N + t] = sum, p.square[i * p.N + t] = square;
    }
}

extern "C" void linnet_moments(const Moments* problem) {
    const Moments& p = *problem;
    const Plan plan(p.B, p.H, p.N, p.group, 1);
#pragma omp parallel for num_threads(p.threads)
    for (int64_t j = 0; j < plan.items; j++) {
        const Item item = plan[j];
        const int64_t b = item.first / p.H;
        const uint8_t* real = p.real ? p.real + b * p.N : nullptr;
        if (!p.whole) {
            for (int64_t i = item.first; i < item.last; i++) token_moments(p, i, real);
            continue;
        }
        std::vector<Sums> sums(item.last - item.first);
        for (int64_t t = 0; t < p.N; t++)
            for (int64_t i = item.first; i < item.last && (!real || real[t]); i++)
                sums[i - item.first].add(row(p.x, b, i % p.H).p + t * p.x.n, p.D);
        for (int64_t i = item.first; i < item.last; i++) sums[i - item.first].store(p.sum + i, p.square + i);
    }
}
