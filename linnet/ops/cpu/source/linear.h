// Linear attention, o_t = sum_s (q_t . k_s) v_s, forward and backward, causal and not.
//
// With K = E + 1 rows if there is a normalizer (a last column of v that is 1), else K = E, the gradients are
//   dq_t = sum_e g_t[e] T[e,:]    T += v_s k_s^T over the keys that t sees
//   dk_s = sum_e v_s[e] U[e,:]    U += g_t q_t^T over the queries that see s
//   dv_s = sum_d k_s[d] U[:,d]
// Both states are K x D: each thread needs little memory, and the forward pass stores nothing.
#pragma once

#include "features.h"
#include "rows.h"

constexpr float EPS = 1e-6f;  // a normalizer is at least this

struct Linear {
    int64_t B, H, N, D, E, normalize, threads, group, spans;
    Masks masks;
    View q, k, v, o, g, dq, dk, dv;
    float *den;                    // (B, H, N)
    const float *S0, *z0;          // the incoming state (B, H, D, E) and (B, H, D), or null
    float *S1, *z1;                // the outgoing one
    const float *gS, *gz;          // its gradient, or null
    float *dS, *dz;                // the gradient of the incoming one
    const Feature* feature;        // the features to make of q and k, or null
};

struct Shape {  // sizes of states
    int64_t D, E, Dp, Ep, K;
    explicit Shape(const Linear& p)
        : D(p.D), E(p.E), Dp(padded(p.D)), Ep(padded(p.E)), K(p.E + p.normalize) {}
    int64_t widest() const { return std::max(D, E); }
    int64_t forward() const { return D * Ep + Dp; }  // S and z
    int64_t backward() const { return K * Dp; }
};

// The memory of one thread: a strip of each tensor.
struct Strip {
    Memory memory;
    float *q, *k, *v, *g, *o, *y, *gain;
    int64_t span = 0;  // of its row
    explicit Strip(const Shape& s) : memory(4 * STRIP * (padded(s.D + 1) + padded(s.E + 1)) + padded(STRIP)) {
        const int64_t D = STRIP * padded(s.D + 1), E = STRIP * padded(s.E + 1);
        q = memory.take(D), k = memory.take(D), v = memory.take(E), g = memory.take(E);
        o = memory.take(std::max(D, E)), y = memory.take(std::max(D, E)), gain = memory.take(STRIP);
        std::fill(gain, gain + STRIP, 1.0f);
    }
};

// One row: pointers of one head of one sequence.
struct Head {
    const int64_t i, b;
    const Linear& p;
    const Shape s;
    const Row q, k, v, o, g, dq, dk, dv;
    const uint8_t* real;
    const int64_t* run;
    float* den;
    Head(const Linear& p_, int64_t i_)
        : Head(p_, i_, i_ / p_.H, i_ % p_.H) {}
    Head(const Linear& p_, int64_t i_, int64_t b_, int64_t h)
        : i(i_), b(b_), p(p_), s(p_), q(row(p.q, b, h)), k(row(p.k, b, h)), v(row(p.v, b, h)), o(row(p.o, b, h)),
          g(row(p.g, b, h)), dq(row(p.dq, b, h)), dk(row(p.dk, b, h)), dv(row(p.dv, b, h)),
          real(real_row(p.masks, b, p.N)), run(p.masks.run ? p.masks.run + b * p.N : nullptr),
          den(p.normalize ? p.den + i * p.N : nullptr) {}

    Rows queries(int64_t t, int64_t M, bool vectors, Strip& x) const {
        return p.feature ? features(q, t, M, nullptr, x.q) : take(q, t, M, s.D, vectors, nullptr, 0, x.q);
    }
    Rows keys(int64_t t, int64_t M, bool vectors, Strip& x) const {
        return p.feature ? features(k, t, M, real, x.k) : take(k, t, M, s.D, vectors, real, 0, x.k);
    }
    Rows values(int64_t t, int64_t M, bool vectors, float last, Strip& x) const {
        return take(v, t, M, s.E, vectors, real, last, x.v);
    }
    const float* turn(int64_t t) const {
        return p.feature->turn ? p.feature->turn + b * p.feature->turn_b + t * s.D : nullptr;
    }
    Rows features(const Row& x, int64_t t, int64_t M, const uint8_t* real_, float* to) const {
        const int64_t ld = padded(s.D + 1);
        for (int64_t j = 0; j < M; j++)
            if (real_ && !real_[t + j])
                std::fill(to + j * ld, to + (j + 1) * ld, 0.0f);
            else
                make_features(*p.feature, x.p + (t + j) * x.ld, turn(t + j), s.D, to + j * ld);
        return {to, ld};
    }
    // Moves gradients of a strip's queries or keys to their place, as gradients of the inputs of the features.
    void put_slopes(
        const Row& x, const Row& to, int64_t t, int64_t M, Out g, const uint8_t* real_, const Strip& strip) const {
        const Feature* f = p.feature;
        double* dtheta = f && f->dtheta ? f->dtheta + (i * p.spans + strip.span) * (s.D / 2) : nullptr;
        for (int64_t j = 0; f && j < M; j++)
            if (!real_ || real_[t + j]) {
                const double position = f->position ? double(f->position[b * f->position_b + t + j]) : 0;
                pull_back(*f, x.p + (t + j) * x.ld, turn(t + j), position, s.D, g.p + j * g.ld, dtheta);
            }
        put(to, t, M, s.D, g, real_);
    }
    // The gradient of the numerator, with that of the normalizer in column E.
    Rows upstream(int64_t t, int64_t M, bool vectors, Strip& x) const {
        if (!p.normalize) return take(g, t, M, s.E, vectors, nullptr, 0, x.g);
        const int64_t ld = padded(s.E + 1);
        for (int64_t i = 0; i < M; i++) {
            const float *from = g.p + (t + i) * g.ld, d = den[t + i], less = 1 / d;
            float* to = x.g + i * ld;
            for (int64_t e = 0; e < s.E; e++) to[e] = from[e] * less;
            std::fill(to + s.E, to + ld, 0.0f);
            if (d > EPS) to[s.E] = -dot(to, o.p + (t + i) * o.ld, s.E);
        }
        return {x.g, ld};
    }
    // The normalizers of a strip, and z after it; `own`: each token is added before it reads.
    void normalizers(int64_t t, int64_t M, Rows q_, Rows k_, bool own, float* z, float* gain) const {
        for (int64_t i = 0; i < M; i++) {
            if (own) add(z, k_.p + i * k_.ld, s.D);
            den[t + i] = std::max(dot(q_.p + i * q_.ld, z, s.D), EPS);
            gain[i] = 1 / den[t + i];
        }
    }
};

// A state (D x E) with the caller's rows, and the same with padded rows.
static inline void load_state(const Head& h, int64_t i, float* S) {
    const Shape& s = h.s;
    std::fill(S, S + s.forward(), 0.0f);
    if (h.p.S0)
        for (int64_t d = 0; d < s.D; d++) std::copy_n(h.p.S0 + (i * s.D + d) * s.E, s.E, S + d * s.Ep);
    if (h.p.z0) std::copy_n(h.p.z0 + i * s.D, s.D, S + s.D * s.Ep);
}

static inline void save_state(const Head& h, int64_t i, const float* S) {
    const Shape& s = h.s;
    for (int64_t d = 0; d < s.D; d++) std::copy_n(S + d * s.Ep, s.E, h.p.S1 + (i * s.D + d) * s.E);
    if (h.p.normalize) std::copy_n(S + s.D * s.Ep, s.D, h.p.z1 + i * s.D);
}

// T or U (K x D) of a state (D x E) and z; either may be absent.
static inline void turn_state(const Head& h, int64_t i, const float* S, const float* z, float* T) {
    const Shape& s = h.s;
    std::fill(T, T + s.backward(), 0.0f);
    if (S) transpose(S + i * s.D * s.E, s.D, s.E, s.E, T, s.Dp);
    if (z && h.p.normalize) std::copy_n(z + i * s.D, s.D, T + s.E * s.Dp);
}

static inline void save_gradient(const Head& h, int64_t i, const float* U) {
    const Shape& s = h.s;
    if (h.p.dS) transpose(U, s.E, s.D, s.Dp, h.p.dS + i * s.D * s.E, s.E);
    if (h.p.dz && h.p.normalize) std::copy_n(U + s.E * s.Dp, s.D, h.p.dz + i * s.D);
}

// What the keys of a strip add to S, z and T, and its queries to U.
static inline void write_keys(const Head& h, int64_t t, int64_t M, float* S, Strip& x) {
    const Rows k = h.keys(t, M, false, x);
    write(M, h.s.D, h.s.Ep, k, h.values(t, M, true, 0, x), S);
    for (int64_t i = 0; h.p.normalize && i < M; i++) add(S + h.s.D * h.s.Ep, k.p + i * k.ld, h.s.D);
}

static inline void write_T(const Head& h, int64_t t, int64_t M, float* T, Strip& x) {
    const Rows v = h.values(t, M, false, h.p.normalize, x);
    write(M, h.s.K, h.s.Dp, v, h.keys(t, M, true, x), T);
}

static inline void write_U(const Head& h, int64_t t, int64_t M, float* U, Strip& x) {
    write(M, h.s.K, h.s.Dp, h.upstream(t, M, false, x), h.queries(t, M, true, x), U);
}
