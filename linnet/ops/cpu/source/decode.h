// One token more: the features of q and k, the state after them and what the query reads there, in a single call.
// A decoding step is little work, so that what counts is the number of calls and of passes over the state.
#pragma once

#include "linear.h"

#include <cmath>

struct Strides {
    int64_t b, h, n;
};

struct Step {  // what does not change from token to token
    int64_t B, H, D, E, threads;
    Strides q, k, v;    // of (B, H, 1, .)
    int64_t phi;        // features: 0 elu, 1 1+elu, 2 exponential
    int64_t srms;       // whether the merged heads are normed
    double c2, c1, c0;  // lln's curve; c2 = 0: a line
};

struct Pointers {
    const float *q, *k, *v;
    float* o;                // (B, H, 1, E)
    const float *S, *z, *m;  // the state: of these five, null is what the mechanism has not
    const int64_t* start;    // (B,): the token's position
    const double* moments;   // (B, H, 6), of lln
    float *S1, *z1, *m1;     // the next state
    int64_t* next;
    double* moments1;
    const float *theta, *u;  // angles (D/2) and the reflection (D), or null
};

struct Token {  // one head of one sequence
    const Step& s;
    const Pointers& p;
    int64_t i;
    const float *q, *k, *v;
    float* o;
    Token(const Step& s_, const Pointers& p_, int64_t b, int64_t h)
        : s(s_), p(p_), i(b * s.H + h), q(p.q + b * s.q.b + h * s.q.h), k(p.k + b * s.k.b + h * s.k.h),
          v(p.v + b * s.v.b + h * s.v.h), o(p.o + i * s.E) {}
};

// V vectors of columns: S1[d,:] = keep[d] S[d,:] + b[d] v and o = sum_d a[d] S1[d,:].
template <int V>
static inline void step_columns(
    int64_t D, int64_t E, const float* keep, const float* a, const float* b, const float* v, const float* S, float* S1,
    float* o) {
    vec x[V], y[V];
    for (int j = 0; j < V; j++) x[j] = load(v + j * W), y[j] = vec{};
    for (int64_t d = 0; d < D; d++)
        for (int j = 0; j < V; j++) {
            const vec s = load(S + d * E + j * W) * (keep ? keep[d] : 1.0f) + b[d] * x[j];
            store(S1 + d * E + j * W, s);
            y[j] += a[d] * s;
        }
    for (int j = 0; j < V; j++) store(o + j * W, y[j]);
}

static inline void step_state(
    int64_t D, int64_t E, const float* keep, const float* a, const float* b, const float* v, const float* S, float* S1,
    float* o) {
    int64_t e = 0;
    for (; e + 4 * W <= E; e += 4 * W) step_columns<4>(D, E, keep, a, b, v + e, S + e, S1 + e, o + e);
    for (; e + W <= E; e += W) step_columns<1>(D, E, keep, a, b, v + e, S + e, S1 + e, o + e);
    for (; e < E; e++) {
        o[e] = 0;
        for (int64_t d = 0; d < D; d++) {
            S1[d * E + e] = S[d * E + e] * (keep ? keep[d] : 1.0f) + b[d] * v[e];
            o[e] += a[d] * S1[d * E + e];
        }
    }
}

static void linear_step(const Token& x, const float* turn, float* a, float* b) {
    const int64_t D = x.s.D, E = x.s.E, i = x.i;
    const Pointers& p = x.p;
    elu_features(x.q, D, x.s.phi, a), elu_features(x.k, D, x.s.phi, b);
    if (p.u) reflect(p.u, D, a), reflect(p.u, D, b);
    if (p.theta) rotate(turn, D, 1, a), rotate(turn, D, 1, b);
    step_state(D, E, nullptr, a, b, x.v, p.S + i * D * E, p.S1 + i * D * E, x.o);
    if (!p.z) return;
    for (int64_t d = 0; d < D; d++) p.z1[i * D + d] = p.z[i * D + d] + b[d];
    const float less = 1 / std::max(dot(a, p.z1 + i * D, D), EPS);
    for (int64_t e = 0; e < E; e++) x.o[e] *= less;
}

// Count, sum and sum of squares, and the deviation of all entries so far.
static inline double deviation(const float* x, int64_t D, const double* past, double* now) {
    double sum = 0, square = 0;
    for (int64_t d = 0; d < D; d++) sum += x[d], square += double(x[d]) * x[d];
    now[0] = past[0] + D, now[1] = past[1] + sum, now[2] = past[2] + square;
    const double variance = (now[2] - now[1] * now[1] / std::max(now[0], 1.0)) / std::max(now[0] - 1, 1.0);
    return std::max(std::sqrt(std::max(variance, 0.0)), 1e-4);
}

static void exp_step(const Token& x, float* a, float* b, float* keep) {
    const int64_t D = x.s.D, E = x.s.E, i = x.i;
    const Step& s = x.s;
    const Pointers& p = x.p;
    const double sigma_q = deviation(x.q, D, p.moments + i * 6, p.moments1 + i * 6);
    const double sigma_k = deviation(x.k, D, p.moments + i * 6 + 3, p.moments1 + i * 6 + 3);
    const double target = sigma_q * sigma_q * sigma_k * sigma_k;
    const double twice = s.c2 == 0 ? (target - s.c0) / s.c1  // M13, M14
                                   : (std::sqrt(s.c1 * s.c1 - 4 * s.c2 * (s.c0 - target)) - s.c1) / (2 * s.c2);
    const double matched = std::sqrt(twice / 2);
    const float alpha = float(matched / sigma_q), beta = float(matched / sigma_k);
    float most = FLOOR;
    for (int64_t d = 0; d < D; d++) {
        const float old = p.m[i * D + d], key = beta * x.k[d], top = std::max(std::max(old, key), FLOOR);
        keep[d] = old - top, b[d] = key - top, a[d] = alpha * x.q[d] + top, p.m1[i * D + d] = top;
        most = std::max(most, a[d]);
    }
    for (int64_t d = 0; d < D; d += W)
        store(a + d, exp(load(a + d) - most)), store(b + d, exp(load(b + d))), store(keep + d, exp(load(keep + d)));
    for (int64_t d = 0; d < D; d++) p.z1[i * D + d] = p.z[i * D + d] * keep[d] + b[d];  // M12
    step_state(D, E, keep, a, b, x.v, p.S + i * D * E, p.S1 + i * D * E, x.o);
    const float den = dot(a, p.z1 + i * D, D), less = den == 0 ? 1 : 1 / den;
    for (int64_t e = 0; e < E; e++) x.o[e] *= less;  // M11
}

static inline void srms(float* x, int64_t n) {
    const float less = 1 / (std::sqrt(dot(x, x, n) / n) + 1e-8f);  // M2
    for (int64_t i = 0; i < n; i++) x[i] *= less;
}

extern "C" void linnet_step(const Step* sizes, const Pointers* pointers) {
    const Step& s = *sizes;
    const Pointers& p = *pointers;
#pragma omp parallel for num_threads(s.threads) if (s.threads > 1)
    for (int64_t b = 0; b < s.B; b++) {
        alignas(64) float turn[256], A[256] = {}, B[256] = {}, keep[256] = {};
        for (int64_t d = 0; p.theta && d < s.D; d += 2) {
            const double angle = double(p.start[b]) * p.theta[d / 2];
            turn[d] = float(std::cos(angle)), turn[d + 1] = float(std::sin(angle));
        }
        for (int64_t h = 0; h < s.H; h++) {
            const Token x(s, p, b, h);
            if (s.phi == 2)
                exp_step(x, A, B, keep);
            else
                linear_step(x, turn, A, B);
        }
        if (p.next) p.next[b] = p.start[b] + 1;
        if (s.srms) srms(p.o + b * s.H * s.E, s.H * s.E);
    }
}
