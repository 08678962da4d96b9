// Attention whose features are given as logarithms: o_t = sum_s sum_c e^(q_tc + k_sc) v_s, divided by the same without v.
//
// The state is relative to the largest key m_c of each channel, a query to r_t = max_c(q_tc + m_c), so every weight is
// e^x with x <= 0. A token with a larger key first shrinks the state; between two such tokens the inner loop is that of
// linear attention. So nothing ever depends on a later key, not even by rounding. Backward, with
// x_tc = q_tc - r_t - ln den_t, h_t = g_t . o_t and one more column, -h of g and 1 of v:
//   dq_tc = e^(x_tc + m_c) sum_e g_t[e] T[e,c]    T += v_s e^(k_s - m)
//   dk_sc = e^(k_sc + p_c) sum_e v_s[e] U[e,c]    U += g_t e^(x_t - p), p_c the largest x_tc of the queries that see s
//   dv_s  = sum_c e^(k_sc + p_c) V[c,:]           V = U transposed
// Where all queries see all keys, p = -m is enough.
// M11 and M12 of docs/math.md.
#pragma once

#include "linear.h"

#include <cmath>
#include <limits>

constexpr float NEVER = -std::numeric_limits<float>::infinity();
constexpr float FAINT = -40.0f;  // e^-40 is negligible beside 1; smaller weights become 0, since denormal numbers are slow

struct Exponential {
    Linear l;            // with normalize = 1; den holds ln den
    float *r;                    // (B, H, N)
    const float *m0;             // of the incoming state, (B, H, D), or null
    float *m1;                   // of the outgoing one
    const float *alpha, *beta;   // factors of q and k, (B, H, N) or with `scales` = 1 (B, H, 1); or null
    int64_t scales;
};

// The weights of a strip: of queries and keys, or of keys and queries.
struct Weights {
    Memory memory;
    float *a, *b, *f, *ones;
    int64_t ld;
    explicit Weights(const Shape& s) : memory(2 * (STRIP + 1) * s.Dp + STRIP), ld(s.Dp) {
        a = memory.take(STRIP * ld), b = memory.take(STRIP * ld), f = memory.take(ld), ones = memory.take(STRIP);
        std::fill(ones, ones + STRIP, 1.0f);
    }
};

SMALL vec weight(vec x) {
    vec rest;
    const vec scale = power(most(x, vec{} + FAINT), rest);
    return x < FAINT ? vec{} : scale * rest + scale;
}

// Numbers at .. at + W of a row of n, -inf past its end.
SMALL vec part(const float* row, int64_t at, int64_t n) {
    if (n - at >= W) return load(row + at);
    float x[W];
    for (int i = 0; i < W; i++) x[i] = at + i < n ? row[at + i] : NEVER;
    return load(x);
}

// Raises `peak` to x where x is larger: b = e^(x - peak), f = e^(old - new) where anything was raised.
SMALL bool raise(const float* x, int64_t Dp, float* peak, float* b, float* f) {
    ivec change = {};
    for (int64_t c = 0; c < Dp; c += W) {
        const vec old = load(peak + c), y = load(x + c), now = most(old, y);
        change |= now > old;
        store(peak + c, now), store(f + c, old - now), store(b + c, weight(y - now));
    }
    if (!any(change)) return false;
    for (int64_t c = 0; c < Dp; c += W) store(f + c, weight(load(f + c)));
    return true;
}

// Shrinks the rows (or columns) of a state that are relative to what was raised.
static inline void shrink_rows(float* S, int64_t rows, int64_t columns, const float* f) {
    for (int64_t d = 0; d < rows; d++)
        for (int64_t e = 0; f[d] != 1.0f && e < columns; e += W) store(S + d * columns + e, load(S + d * columns + e) * f[d]);
}

static inline void shrink_columns(float* T, int64_t rows, int64_t columns, const float* f) {
    for (int64_t c = 0; c < columns; c += W) {
        const vec y = load(f + c);
        if (!any(y != 1.0f)) continue;
        for (int64_t e = 0; e < rows; e++) store(T + e * columns + c, load(T + e * columns + c) * y);
    }
}

struct ExpHead : Head {
    const Exponential& e;
    float* r;
    const float *alpha, *beta;
    ExpHead(const Exponential& e_, int64_t i)
        : Head(e_.l, i), e(e_), r(e_.r + i * p.N), alpha(e.alpha ? e.alpha + i * (e.scales ? 1 : p.N) : nullptr),
          beta(e.beta ? e.beta + i * (e.scales ? 1 : p.N) : nullptr) {}

    float scale(const float* x, int64_t t) const { return !x ? 1.0f : e.scales ? x[0] : x[t]; }
    vec query(int64_t t, int64_t c) const { return part(q.p + t * q.ld, c, s.D) * scale(alpha, t); }
    vec key(int64_t t, int64_t c) const { return key(t, c, scale(beta, t)); }
    vec key(int64_t t, int64_t c, float by) const {
        return real && !real[t] ? vec{} + NEVER : part(k.p + t * k.ld, c, s.D) * by;
    }
    void key_exponents(int64_t t, float* x) const {
        for (int64_t c = 0; c < s.Dp; c += W) store(x + c, key(t, c));
    }

    // The weights a of query t for keys whose maxima are m, relative to the largest exponent, `highest`; returns their
    // sum with z.
    float weigh(int64_t t, const float* m, const float* z, float* a, float& highest) const {
        const float by = scale(alpha, t), *row = q.p + t * q.ld;
        vec top = vec{} + FLOOR, sum = vec{};
        for (int64_t c = 0; c < s.Dp; c += W) {
            const vec x = part(row, c, s.D) * by + load(m + c);
            store(a + c, x), top = most(top, x);
        }
        const float most_of_all = highest = largest(top);
        for (int64_t c = 0; c < s.Dp; c += W) {
            const vec x = weight(load(a + c) - most_of_all);
            store(a + c, x), sum += x * load(z + c);
        }
        return total(sum);
    }
    // The same, but keeps r and ln den; returns the factor of the result.
    float look(int64_t t, const float* m, const float* z, float* a) const {
        const float y = weigh(t, m, z, a, r[t]);
        den[t] = y == 0 ? std::numeric_limits<float>::infinity() : std::log(y);
        return y == 0 ? 1 : 1 / y;
    }
    // x_t, the form in which keys see a query.
    void seen(int64_t t, float* x) const {
        for (int64_t c = 0; c < s.Dp; c += W)
            store(x + c, (query(t, c) - r[t]) - den[t]);
    }
    // The weights with which query t reads T, and key t reads U.
    void query_weights(int64_t t, const float* m, float* a) const {
        for (int64_t c = 0; c < s.Dp; c += W) {
            const vec x = ((query(t, c) + load(m + c)) - r[t]) - den[t];
            store(a + c, weight(least(x, vec{} + 80.0f)));
        }
    }
    void key_weights(int64_t t, const float* peak, float* a) const {
        const float by = scale(beta, t);
        for (int64_t c = 0; c < s.Dp; c += W)
            store(a + c, weight(least(key(t, c, by) + load(peak + c), vec{} + 80.0f)));
    }
    // (g, -h), each times its gain.
    Rows gradients(int64_t t, int64_t M, const float* gain, Strip& x) const {
        const int64_t ld = padded(s.E + 1);
        for (int64_t i = 0; i < M; i++) {
            const float *from = g.p + (t + i) * g.ld, by = gain[i];
            float* to = x.g + i * ld;
            int64_t e = 0;
            for (; e + W <= s.E; e += W) store(to + e, load(from + e) * by);
            for (; e < s.E; e++) to[e] = from[e] * by;
            std::fill(to + s.E, to + ld, 0.0f);
            to[s.E] = -dot(to, o.p + (t + i) * o.ld, s.E);
        }
        return {x.g, ld};
    }
    // Moves results that are relative to a strip's weights to their place.
    void put_weighted(const Row& to, int64_t t, int64_t M, const float* y, const Weights& w, const float* scales) const {
        for (int64_t i = 0; i < M; i++) {
            const float by = scale(scales, t + i), *from = y + i * s.Dp, *a = w.a + i * w.ld;
            float* there = to.p + (t + i) * to.ld;
            int64_t c = 0;
            for (; c + W <= s.D; c += W) store(there + c, load(from + c) * load(a + c) * by);
            for (; c < s.D; c++) there[c] = from[c] * a[c] * by;
        }
    }
};

// The largest keys of a state, or with sign = -1 their counterpart among queries.
static inline void load_tops(const float* m, int64_t i, const Shape& s, float sign, float* to) {
    std::fill(to, to + s.Dp, FLOOR);
    for (int64_t d = 0; m && d < s.D; d++) to[d] = sign * std::max(m[i * s.D + d], FLOOR);
}

// Loads the gradient of the outgoing state, relative to m1, into U; and saves that of the incoming state from U.
static inline void load_gradient(const Exponential& e, int64_t i, const Shape& s, float* U, float* peak) {
    turn_state(Head(e.l, i), i, e.l.gS, e.l.gz, U);
    load_tops(e.l.gS || e.l.gz ? e.m1 : nullptr, i, s, -1, peak);
}

static inline void save_exp_gradient(const Exponential& e, int64_t i, const Shape& s, float* U, const float* peak) {
    if (!e.m0) return;
    for (int64_t d = 0; d < s.D; d++) {
        const vec x = vec{} + std::min(std::max(e.m0[i * s.D + d], FLOOR) + peak[d], 80.0f);
        for (int64_t k = 0; k < s.K; k++) U[k * s.Dp + d] *= weight(x)[0];
    }
    save_gradient(Head(e.l, i), i, U);
}
