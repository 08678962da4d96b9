// Dropout of activations in one pass: y = R x, where R is a hash of a seed and the place; backward hashes again.
#pragma once

#include "hashing.h"
#include "glu.h"

struct Dropout {
    int64_t n, threads;
    const float* x;
    float* y;
    double p;
    int64_t seed;
};

constexpr int64_t SHEET = 1 << 16;  // numbers that are counted together, so that counts fit 32 bits

extern "C" void linnet_dropout(const Dropout* problem) {
    const Dropout p = *problem;
    const uvec least = uvec{} + threshold(p.p);
    const float gain = float(1 / (1 - p.p));
#pragma omp parallel for num_threads(p.threads)
    for (int64_t sheet = 0; sheet < p.n; sheet += SHEET) {
        const uint32_t h = hashed(mix(uint32_t(p.seed)), uint32_t(sheet / SHEET));
        const float* x = p.x + sheet;
        float* y = p.y + sheet;
        const int64_t n = std::min(SHEET, p.n - sheet);
        for (int64_t i = 0; i < n; i += W) {
            const int64_t some = std::min<int64_t>(W, n - i);
            store_some(y + i, mix(mixed(i) ^ h) >= least ? load_some(x + i, some) * gain : vec{}, some);  // M50
        }
    }
}
