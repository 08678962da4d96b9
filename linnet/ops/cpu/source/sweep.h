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
constexpr int TOKENS = 4;  // 32 registers
#else
constexpr int TOKENS = 2;
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

template <int T, int V, bool WRITE, bool READ>
static inline void tile(int64_t K, Rows a, Rows b, Rows w, Out o, const float* gain, float* S, int64_t ldS) {
    vec x[T][V], y[T][V];
    for (int t = 0; t < T; t++)
        for (int j = 0; j < V; j++) {
            if (WRITE) x[t][j] = load(w.p + t * w.ld + j * W);
            if (READ) y[t][j] = vec{};
        }
    for (int64_t d = 0; d < K; d++) {
        vec s[V];
        for (int j = 0; j < V; j++) s[j] = load(S + d * ldS + j * W);
        for (int t = 0; t < T; t++) {
            if (WRITE)
                for (int j = 0; j < V; j++) s[j] += b.p[t * b.ld + d] * x[t][j];
            if (READ)
                for (int j = 0; j < V; j++) y[t][j] += a.p[t * a.ld + d] * s[j];
        }
        if (WRITE)
            for (int j = 0; j < V; j++) store(S + d * ldS + j * W, s[j]);
    }
    if (READ)
        for (int t = 0; t < T; t++)
            for (int j = 0; j < V; j++) store(o.p + t * o.ld + j * W, y[t][j] * gain[t]);
}

template <int V, bool WRITE, bool READ>
static void panel(int64_t M, int64_t K, Rows a, Rows b, Rows w, Out o, const float* gain, float* S, int64_t ldS) {
    for (int64_t t = 0; t < M;) {
        const int64_t step = t + TOKENS <= M ? TOKENS : 1;
        (step == 1 ? tile<1, V, WRITE, READ> : tile<TOKENS, V, WRITE, READ>)(K, a, b, w, o, gain, S, ldS);
        a.p += step * a.ld, b.p += step * b.ld, t += step;
        if (WRITE) w.p += step * w.ld;
        if (READ) o.p += step * o.ld, gain += step;
    }
}

template <bool WRITE, bool READ>
static void sweep(int64_t M, int64_t K, int64_t columns, Rows a, Rows b, Rows w, Out o, const float* gain, float* S) {
    for (int64_t j = 0; j < columns;) {
        const Rows w_j = WRITE ? Rows{w.p + j, w.ld} : w;
        const Out o_j = READ ? Out{o.p + j, o.ld} : o;
        const bool two = j + 2 * W <= columns;
        (two ? panel<2, WRITE, READ> : panel<1, WRITE, READ>)(M, K, a, b, w_j, o_j, gain, S + j, columns);
        j += two ? 2 * W : W;
    }
}

// M tokens over S (K x columns, a multiple of W): both, or writing or reading only.
static inline void write_read(
    int64_t M, int64_t K, int64_t columns, Rows a, Rows b, Rows w, Out o, const float* gain, float* S) {
    sweep<true, true>(M, K, columns, a, b, w, o, gain, S);
}

static inline void write(int64_t M, int64_t K, int64_t columns, Rows b, Rows w, float* S) {
    sweep<true, false>(M, K, columns, b, b, w, {nullptr, 0}, nullptr, S);
}

static inline void read(int64_t M, int64_t K, int64_t columns, Rows a, const float* S, Out o, const float* gain) {
    sweep<false, true>(M, K, columns, a, a, a, o, gain, const_cast<float*>(S));
}
