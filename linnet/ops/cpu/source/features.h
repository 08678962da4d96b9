// Features of a query or key, R_t H phi(x) with phi = elu or 1 + elu, and their gradients, computed where they are used.
#pragma once

#include "vector.h"

struct Feature {
    int64_t phi;              // 0: elu, 1: 1 + elu
    const float* turn;        // (B, N, D) or (N, D): cos and sin of t theta alternately; or null: no rotation
    int64_t turn_b;           // from sequence to sequence
    const float* u;           // (D,) of the reflection, or null
    const int64_t* position;  // t, (B, N) or (N,)
    int64_t position_b;
    double* dtheta;           // (B, H, spans, D/2), the share of each in the gradient of theta; or null
};

// n numbers at x, then zeros up to a whole vector.
static inline void padded_copy(const float* x, int64_t n, float* y) {
    std::memcpy(y, x, n * 4);
    std::fill(y + n, y + padded(n), 0.0f);
}

static inline void elu_features(const float* x, int64_t D, bool plus_one, float* y) {
    int64_t d = 0;
    for (; d + W <= D; d += W) store(y + d, elu(load(x + d), plus_one));
    if (d == D) return;
    padded_copy(x + d, D - d, y + d);
    store(y + d, elu(load(y + d), plus_one));
    std::fill(y + D, y + padded(D), 0.0f);
}

static inline void reflect(const float* u, int64_t D, float* x) {
    const float twice = 2 * dot(x, u, D);
    for (int64_t d = 0; d < D; d++) x[d] -= twice * u[d];  // M4
}

// x rotated, or with sign = -1 rotated back. A shift of 64-bit numbers swaps the halves of pairs.
SMALL vec turned(vec x, vec turn, float sign) {
    typedef uint64_t pairs __attribute__((vector_size(W * 4)));
    const auto swap = [](vec y) { const pairs p = reinterpret_cast<pairs>(y); return p << 32 | p >> 32; };
    const pairs p = reinterpret_cast<pairs>(turn), swapped = swap(turn), low = pairs{} + 0xffffffffu;
    const vec cos = reinterpret_cast<vec>((p & low) | (swapped & ~low));
    const vec sin = reinterpret_cast<vec>(((p & ~low) | (swapped & low)) ^ 0x80000000u);  // -sin, sin
    return x * cos + reinterpret_cast<vec>(swap(x)) * (sin * sign);                       // M3
}

static inline void rotate(const float* turn, int64_t D, float sign, float* x) {
    int64_t d = 0;
    for (; d + W <= D; d += W) store(x + d, turned(load(x + d), load(turn + d), sign));
    for (; d < D; d += 2) {
        const float a = x[d], b = x[d + 1], sin = turn[d + 1] * sign;
        x[d] = a * turn[d] - b * sin, x[d + 1] = b * turn[d] + a * sin;
    }
}

static inline void make_features(const Feature& f, const float* x, const float* turn, int64_t D, float* y) {
    elu_features(x, D, f.phi, y);
    if (f.u) reflect(f.u, D, y);
    if (turn) rotate(turn, D, 1, y);
}

// Turns the gradient g of features into that of x, and adds the gradient of theta to dtheta.
static inline void pull_back(
    const Feature& f, const float* x, const float* turn, double position, int64_t D, float* g, double* dtheta) {
    alignas(64) float y[256];
    if (turn) rotate(turn, D, -1, g);
    elu_features(x, D, f.phi, y);
    if (dtheta) {
        alignas(64) float r[256];
        std::copy_n(y, padded(D), r);
        if (f.u) reflect(f.u, D, r);
        for (int64_t i = 0; i < D / 2; i++) dtheta[i] += position * (r[2 * i] * g[2 * i + 1] - r[2 * i + 1] * g[2 * i]);
    }
    if (f.u) reflect(f.u, D, g);
    const float less = f.phi ? 0 : 1;
    for (int64_t d = 0; d < D; d++) g[d] *= x[d] > 0 ? 1 : y[d] + less;  // d phi: 1, or e^x
}
