// How uneven the scores of each query with a few sampled keys are: their largest minus their mean. M34 of docs/math.md.
//
// Key number j of query t is a hash of the seed, t and j, the same as in linnet/ops/hashing.py.
#pragma once

#include "hashing.h"
#include "rows.h"

struct Sample {
    int64_t B, H, N, D, threads, seed;
    View q, k;
    const uint8_t* real;             // (B, N), or null: all tokens are real
    const int64_t *length, *budget;  // (B,): tokens of a row, and keys that each of its queries samples
    float* M;                        // (B, H, N)
    double scale;
};

extern "C" void linnet_sample(const Sample* problem) {
    const Sample& p = *problem;
#pragma omp parallel for schedule(dynamic) num_threads(p.threads)
    for (int64_t i = 0; i < p.B * p.H; i++) {
        const int64_t b = i / p.H, n = p.length[b], u = p.budget[b];
        const Row q = row(p.q, b, i % p.H), k = row(p.k, b, i % p.H);
        const uint8_t* real = p.real ? p.real + b * p.N : nullptr;
        for (int64_t t = 0; t < p.N; t++) {
            const uint32_t own = hashed(mix(uint32_t(p.seed)), uint32_t(t));
            const float* x = q.p + t * q.ld;
            float top = FLOOR, sum = 0;
            int64_t held = 0;
            for (int64_t j = 0; j < u && (!real || real[t]); j++) {
                const int64_t s = int64_t(uint64_t(hashed(own, uint32_t(j))) * uint64_t(n) >> 32);
                if (real && !real[s]) continue;
                const float y = dot(x, k.p + s * k.ld, p.D);
                top = std::max(top, y), sum += y, held++;
            }
            p.M[i * p.N + t] = held ? float(p.scale) * (top - sum / float(held)) : FLOOR;
        }
    }
}
