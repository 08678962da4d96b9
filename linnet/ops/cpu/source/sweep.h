// The one inner loop of linear attention: tokens pass over a state S (K x columns) in order, T at a time.
//
//   write: S[d,:] += b_t[d] w_t[:]        read: o_t[:] = gain_t sum_d a_t[d] S[d,:]
//
// A token writes before it reads. With (a, b, w) = (q, k, v) this is causal attention; its gradients are the same loop
// with other roles. It costs 4 K E a token and nothing for the pairs of a chunk, and runs at the speed of a matrix
// product, since T tokens share each load and store of S, a few columns of which stay in the first-level cache.
#pragma once

#include "vector.h"

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int TOKENS = 4, WIDE = 4;  // 32 registers
#else
constexpr int TOKENS = 2, WIDE = 2;  // 16
#endif
constexpr int STRIP = 32;  // tokens that pass over one panel of columns before the next panel's turn

struct Rows {  // row t is at p + t * ld; ld < 0 where time runs backward
    const float* p;
    int64_t ld;
};

struct Out {
    float* p;
    int64_t ld;
};

static inline Rows from(Rows x, int64_t i) { return {x.p + i * x.ld, x.ld}; }
static inline Out from(Out x, int64_t i) { return {x.p + i * x.ld, x.ld}; }

// T tokens, V vectors of columns: each writes, then reads.
template <int T, int V>
SMALL void tile(int64_t K, Rows a, Rows b, Rows w, Out o, const float* gain, float* S, int64_t ldS) {
    vec x[T][V], y[T][V];
    for (int t = 0; t < T; t++)
        for (int j = 0; j < V; j++) x[t][j] = load(w.p + t * w.ld + j * W), y[t][j] = vec{};
    for (int64_t d = 0; d < K; d++) {
        vec s[V];
        for (int j = 0; j < V; j++) s[j] = load(S + d * ldS + j * W);
        for (int t = 0; t < T; t++) {
            for (int j = 0; j < V; j++) s[j] += b.p[t * b.ld + d] * x[t][j];
            for (int j = 0; j < V; j++) y[t][j] += a.p[t * a.ld + d] * s[j];
        }
        for (int j = 0; j < V; j++) store(S + d * ldS + j * W, s[j]);
    }
    for (int t = 0; t < T; t++)
        for (int j = 0; j < V; j++) store(o.p + t * o.ld + j * W, y[t][j] * gain[t]);
}

// T tokens read V vectors of columns.
template <int T, int V>
SMALL void read_tile(int64_t K, Rows a, const float* S, int64_t ldS, Out o, const float* gain) {
    vec y[T][V] = {};
    for (int64_t d = 0; d < K; d++)
        for (int j = 0; j < V; j++) {
            const vec s = load(S + d * ldS + j * W);
            for (int t = 0; t < T; t++) y[t][j] += a.p[t * a.ld + d] * s;
        }
    for (int t = 0; t < T; t++)
        for (int j = 0; j < V; j++) store(o.p + t * o.ld + j * W, y[t][j] * gain[t]);
}

// All M tokens write to R rows and V vectors of columns of S.
template <int R, int V>
SMALL void write_tile(int64_t M, Rows b, Rows w, float* S, int64_t ldS) {
    vec s[R][V];
    for (int d = 0; d < R; d++)
        for (int j = 0; j < V; j++) s[d][j] = load(S + d * ldS + j * W);
    for (int64_t t = 0; t < M; t++)
        for (int j = 0; j < V; j++) {
            const vec x = load(w.p + t * w.ld + j * W);
            for (int d = 0; d < R; d++) s[d][j] += b.p[t * b.ld + d] * x;
        }
    for (int d = 0; d < R; d++)
        for (int j = 0; j < V; j++) store(S + d * ldS + j * W, s[d][j]);
}

// One panel of V vectors of columns.
template <int V>
PLAIN void write_read_panel(int64_t M, int64_t K, Rows a, Rows b, Rows w, Out o, const float* gain, float* S, int64_t ldS) {
    int64_t t = 0;
    for (; t + TOKENS <= M; t += TOKENS) tile<TOKENS, V>(K, from(a, t), from(b, t), from(w, t), from(o, t), gain + t, S, ldS);
    for (; t < M; t++) tile<1, V>(K, from(a, t), from(b, t), from(w, t), from(o, t), gain + t, S, ldS);
}

// As many tokens, or rows of S, as keep the processor busy with V vectors each.
template <int V>
constexpr int together = V * TOKENS <= 8 ? 2 * TOKENS : TOKENS;

template <int V>
PLAIN void read_panel(int64_t M, int64_t K, Rows a, const float* S, int64_t ldS, Out o, const float* gain) {
    constexpr int T = together<V>;
    int64_t t = 0;
    for (; t + T <= M; t += T) read_tile<T, V>(K, from(a, t), S, ldS, from(o, t), gain + t);
    for (; t < M; t++) read_tile<1, V>(K, from(a, t), S, ldS, from(o, t), gain + t);
}

template <int V>
PLAIN void write_panel(int64_t M, int64_t K, Rows b, Rows w, float* S, int64_t ldS) {
    constexpr int R = together<V>;
    int64_t d = 0;
    for (; d + R <= K; d += R) write_tile<R, V>(M, {b.p + d, b.ld}, w, S + d * ldS, ldS);
    for (; d < K; d++) write_tile<1, V>(M, {b.p + d, b.ld}, w, S + d * ldS, ldS);
}

// f.template operator()<V>(j) for panels of at most `most` vectors that cover the columns, a multiple of W.
#define EACH_PANEL(most, columns, call)                                   \
    for (int64_t j = 0, left = (columns) / W; left > 0;) {                \
        if ((most) >= 4 && left >= 4) {                                   \
            constexpr int V = 4; call; j += V * W, left -= V;             \
        } else if (left >= 2) {                                           \
            constexpr int V = 2; call; j += V * W, left -= V;             \
        } else {                                                          \
            constexpr int V = 1; call; j += V * W, left -= V;             \
        }                                                                 \
    }

// M tokens over S (K x columns, a multiple of W): both, or writing or reading only.
static inline void write_read(
    int64_t M, int64_t K, int64_t columns, Rows a, Rows b, Rows w, Out o, const float* gain, float* S) {
    // A token alone has no others to share its loads with: then more columns at once keep the processor busy.
    const int wide = M < TOKENS ? WIDE : 2;
    EACH_PANEL(wide, columns, write_read_panel<V>(M, K, a, b, {w.p + j, w.ld}, {o.p + j, o.ld}, gain, S + j, columns))
}

static inline void write(int64_t M, int64_t K, int64_t columns, Rows b, Rows w, float* S) {
    EACH_PANEL(2, columns, write_panel<V>(M, K, b, {w.p + j, w.ld}, S + j, columns))
}

static inline void read(int64_t M, int64_t K, int64_t columns, Rows a, const float* S, Out o, const float* gain) {
    EACH_PANEL(2, columns, read_panel<V>(M, K, a, S + j, columns, {o.p + j, o.ld}, gain))
}
