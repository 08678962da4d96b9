// SRMS over all heads of a token: y = x / (rms(x) + eps), and its gradient from y, so that x is not kept.
#pragma once

#include "rows.h"

#include <cmath>

struct Norm {
    int64_t B, H, N, E, threads;
    View x, y, g, dx;
    float* rms;  // (B, N)
    double eps;
};

static inline float* token(const View& x, int64_t b, int64_t h, int64_t t) {
    return x.data + b * x.b + h * x.h + t * x.n;
}

extern "C" void linnet_srms(const Norm* problem) {
    const Norm& p = *problem;
#pragma omp parallel for num_threads(p.threads)
    for (int64_t i = 0; i < p.B * p.N; i++) {
        const int64_t b = i / p.N, t = i % p.N;
        double sum = 0;
        for (int64_t h = 0; h < p.H; h++) {
            const float* x = token(p.x, b, h, t);
            sum += dot(x, x, p.E);
        }
        p.rms[i] = float(std::sqrt(sum / double(p.H * p.E)));
        const float less = 1 / (p.rms[i] + float(p.eps));
        for (int64_t h = 0; h < p.H; h++) {
            const float* x = token(p.x, b, h, t);
            float* y = token(p.y, b, h, t);
            for (int64_t e = 0; e < p.E; e++) y[e] = x[e] * less;  // M2
        }
    }
}

// dx = g / (rms + eps) - y (y . g) / (n rms), without the second part where rms is 0.
extern "C" void linnet_srms_backward(const Norm* problem) {
    const Norm& p = *problem;
#pragma omp parallel for num_threads(p.threads)
    for (int64_t i = 0; i < p.B * p.N; i++) {
        const int64_t b = i / p.N, t = i % p.N;
        double sum = 0;
        for (int64_t h = 0; h < p.H; h++) sum += dot(token(p.y, b, h, t), token(p.g, b, h, t), p.E);
        const float rms = p.rms[i], less = 1 / (rms + float(p.eps));
        const float share = rms == 0 ? 0 : float(sum / (double(p.H * p.E) * rms));
        for (int64_t h = 0; h < p.H; h++) {
            const float *y = token(p.y, b, h, t), *g = token(p.g, b, h, t);
            float* dx = token(p.dx, b, h, t);
            for (int64_t e = 0; e < p.E; e++) dx[e] = g[e] * less - y[e] * share;
        }
    }
}
