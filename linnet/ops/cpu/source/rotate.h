// Rotary positions: rotates the adjacent pairs of every token, or rotates them back, in one pass.
#pragma once

#include "features.h"
#include "rows.h"

struct Rotate {
    int64_t B, H, N, D, threads, back;
    View x, y;
    const float* turn;  // (B, N, D) or (N, D): cos and sin of t theta alternately
    int64_t turn_b;     // from sequence to sequence
};

extern "C" void linnet_rotate(const Rotate* problem) {
    const Rotate& p = *problem;
#pragma omp parallel for num_threads(p.threads)
    for (int64_t i = 0; i < p.B * p.N; i++) {
        const int64_t b = i / p.N, t = i % p.N;
        for (int64_t h = 0; h < p.H; h++) {
            float* y = row(p.y, b, h).p + t * p.y.n;
            std::memcpy(y, row(p.x, b, h).p + t * p.x.n, p.D * 4);
            rotate(p.turn + b * p.turn_b + t * p.D, p.D, p.back ? -1 : 1, y);
        }
    }
}
