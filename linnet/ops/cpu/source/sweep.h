// The one inner loop of linear attention: tokens pass over a state S (K x columns) in order, T at a time.
//
//   write: S[d,:] += b_t[d] w_t[:]        read: o_t[:] = gain_t sum_d a_t[d] S[d,:]
//
// A token writes before it reads. With (a, b, w) = (q, k, v) this is causal attention; its gradients use the same loop
// with other roles. It costs 4 K E per token, nothing for the pairs of a chunk, and runs at the speed of a matrix
// product: T tokens share each load and store of S, and a few of its columns stay in the first-level cache.
#pragma once

#include "vector.h"

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int TOKENS = 4, MANY = 8, WIDE = 4;  // 32 registers
#else
constexpr int TOKENS = 2, MANY = 4, WIDE = 2;  // 16
#endif
constexpr int STRIP = 32;  // tokens that pass over one panel of columns before the next panel

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

// Prefetches the rows of the next strip, of each tensor that it reads or writes, a few with every tile: all at once would
// block other loads. A processor does not predict them by itself, and with tensors larger than the cache it spent a third
// of the time waiting. The rows need not exist.
class Ahead {
  public:
    explicit Ahead(int64_t with_each_tile) : step_(with_each_tile) {}
    void want(const float* first, int64_t ld, int64_t width) { wanted_[n_++] = {first, ld, width}; }
    void some() {
        if (done_ >= STRIP) return;
        for (int i = 0; i < n_; i++)
            for (int64_t t = done_; t < done_ + step_; t++)
                for (int64_t c = 0; c < wanted_[i].width; c += 16)  // 16 numbers fill a cache line
                    __builtin_prefetch(wanted_[i].p + t * wanted_[i].ld + c, 0, 2);
        done_ += step_;
    }

  private:
    struct Wanted {
        const float* p;
        int64_t ld, width;
    };
    Wanted wanted_[8];
    int n_ = 0;
    int64_t done_ = 0, step_;
};

static inline void bring_some(Ahead* ahead) {
    if (ahead) ahead->some();
}

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
PLAIN void write_read_panel(
    int64_t M, int64_t K, Rows a, Rows b, Rows w, Out o, const float* gain, float* S, int64_t ldS, Ahead* ahead) {
    int64_t t = 0;
    for (; t + TOKENS <= M; t += TOKENS) {
        bring_some(ahead);
        tile<TOKENS, V>(K, from(a, t), from(b, t), from(w, t), from(o, t), gain + t, S, ldS);
    }
    for (; t < M; t++) tile<1, V>(K, from(a, t), from(b, t), from(w, t), from(o, t), gain + t, S, ldS);
}

template <int V>
PLAIN void read_panel(
    int64_t M, int64_t K, Rows a, const float* S, int64_t ldS, Out o, const float* gain, Ahead* ahead = nullptr) {
    int64_t t = 0;
    for (; t + MANY <= M; t += MANY) {
        bring_some(ahead);
        read_tile<MANY, V>(K, from(a, t), S, ldS, from(o, t), gain + t);
    }
    for (; t + TOKENS <= M; t += TOKENS) read_tile<TOKENS, V>(K, from(a, t), S, ldS, from(o, t), gain + t);
    for (; t < M; t++) read_tile<1, V>(K, from(a, t), S, ldS, from(o, t), gain + t);
}

template <int V>
PLAIN void write_panel(int64_t M, int64_t K, Rows b, Rows w, float* S, int64_t ldS, Ahead* ahead) {
    int64_t d = 0;
    // A single last row would wait for its own results, so it joins the rows before it.
    for (; d + MANY <= K && d + MANY + 1 != K; d += MANY) {
        bring_some(ahead);
        write_tile<MANY, V>(M, {b.p + d, b.ld}, w, S + d * ldS, ldS);
    }
    if (d + MANY + 1 == K) {
        write_tile<MANY + 1, V>(M, {b.p + d, b.ld}, w, S + d * ldS, ldS);
        return;
    }
    for (; d + TOKENS <= K; d += TOKENS) write_tile<TOKENS, V>(M, {b.p + d, b.ld}, w, S + d * ldS, ldS);
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

// M tokens over S (K x columns, a multiple of W): write and read, or only one of them. A single token shares its loads
// with no other, so more columns at once keep the processor busy. Otherwise many rows and two vectors of columns do: a
// number that goes to all lanes is cheaper to load than a vector.
static inline int wide(int64_t rows) { return rows < TOKENS ? WIDE : 2; }

static inline void write_read(
    int64_t M, int64_t K, int64_t columns, Rows a, Rows b, Rows w, Out o, const float* gain, float* S,
    Ahead* ahead = nullptr) {
    EACH_PANEL(wide(M), columns,
               write_read_panel<V>(M, K, a, b, {w.p + j, w.ld}, {o.p + j, o.ld}, gain, S + j, columns, ahead))
}

static inline void write(int64_t M, int64_t K, int64_t columns, Rows b, Rows w, float* S, Ahead* ahead = nullptr) {
    EACH_PANEL(wide(K), columns, write_panel<V>(M, K, b, {w.p + j, w.ld}, S + j, columns, ahead))
}

static inline void read(
    int64_t M, int64_t K, int64_t columns, Rows a, const float* S, Out o, const float* gain, Ahead* ahead = nullptr) {
    EACH_PANEL(wide(M), columns, read_panel<V>(M, K, a, S + j, columns, {o.p + j, o.ld}, gain, ahead))
}
