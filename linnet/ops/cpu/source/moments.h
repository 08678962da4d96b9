// Sums and sums of squares of each token's entries, in double precision: what the deviations of lln are made of.
#pragma once

#include "rows.h"

struct Moments {
    int64_t B, H, N, D, threads;
    const uint8_t* real;   // (B, N), or null; a masked token gives 0
    View x;
    double *sum, *square;  // (B, H, N)
};

extern "C" void linnet_moments(const Moments* problem) {
    const Moments& p = *problem;
#pragma omp parallel for num_threads(p.threads)
    for (int64_t i = 0; i < p.B * p.H; i++) {
        const Row x = row(p.x, i / p.H, i % p.H);
        for (int64_t t = 0; t < p.N; t++) {
            double sum = 0, square = 0;
            const float* y = x.p + t * x.ld;
            if (!p.real || p.real[i / p.H * p.N + t]) {
#pragma omp simd reduction(+ : sum, square)
                for (int64_t d = 0; d < p.D; d++) sum += y[d], square += double(y[d]) * y[d];
            }
            p.sum[i * p.N + t] = sum, p.square[i * p.N + t] = square;
        }
    }
}
