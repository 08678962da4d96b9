// One decoding step in a single call: the features of q and k, the next state, and what the query reads from it.
// A step is little work, so the number of calls and of passes over the state decides its time. The call also checks its
// tensors itself, through DLPack, which takes a tenth of the time that Python needs.
#pragma once

#include "dlpack.h"
#include "linear.h"

#include <cmath>
#include <vector>

struct Step {  // what does not change from token to token
    Python python;
    int64_t H, D;
    int64_t phi;        // features: 0 elu, 1 1+elu, 2 exponential
    int64_t parts;      // of the state: bit n for the n-th of S, z, (S, z, m), start, moments
    int64_t angles;     // how many of theta and u exist
    int64_t srms;       // whether the merged heads are normed
    int64_t threads, small;
    double c2, c1, c0;  // lln's curve; c2 = 0: a line
};

struct Strides {
    int64_t b, h;
};

struct State {
    float *S, *z;     // (B, H, D, E) and (B, H, D), or S also holds z and m of each head; null if absent
    int64_t* start;   // (B,): the token's position
    double* moments;  // (B, H, 6), of lln
};

struct Tensors {
    int64_t B, E;
    const float *q, *k, *v;
    Strides dq, dk, dv;      // of (B, H, 1, .)
    float* o;                // (B, H, 1, E)
    State old, next;
    const float *theta, *u;  // angles (D/2) and the reflection (D), or null
};

// The tensors of a step, checked in the order (q, k, v, state, angles, o, next state).
class Look {
  public:
    Look(const Step& s, void* tuple) : s_(s), tuple_(tuple) {}

    // Whether the kernel takes them.
    bool operator()(Tensors& t) {
        Tensor x, y;
        if (!token(x, t.q, t.dq) || x.shape[3] != s_.D) return false;
        t.B = x.shape[0];
        if (!token(y, t.k, t.dk) || y.shape[0] != t.B || y.shape[3] != s_.D) return false;
        if (!token(y, t.v, t.dv) || y.shape[0] != t.B) return false;
        t.E = y.shape[3];
        if (t.B < 1 || t.E < 8 || t.E > 256 || !state(t, t.old)) return false;
        t.theta = t.u = nullptr;
        if (s_.angles > 0 && !dense(t.theta, {s_.D / 2})) return false;
        if (s_.angles > 1 && !dense(t.u, {s_.D})) return false;
        return dense(t.o, {t.B, s_.H, 1, t.E}) && state(t, t.next);
    }

  private:
    const Step& s_;
    void* tuple_;
    int64_t at_ = 0;

    bool next(Tensor& x) { return look(s_.python, tuple_, at_++, x); }
    bool token(Tensor& x, const float*& data, Strides& steps) {
        if (!next(x) || !holds<float>(x) || x.ndim != 4 || x.shape[1] != s_.H || x.shape[2] != 1) return false;
        if (x.strides[3] != 1) return false;
        data = address<float>(x), steps = {x.strides[0], x.strides[1]};
        return true;
    }
    template <class T>
    bool dense(T*& data, std::initializer_list<int64_t> shape) {
        Tensor x;
        if (!next(x) || !holds<std::remove_const_t<T>>(x) || !has_shape(x, shape)) return false;
        data = address<std::remove_const_t<T>>(x);
        return true;
    }
    bool state(const Tensors& t, State& x) {
        const int64_t B = t.B, H = s_.H, D = s_.D;
        x = {};
        return (!(s_.parts & 1) || dense(x.S, {B, H, D, t.E})) && (!(s_.parts & 2) || dense(x.z, {B, H, D})) &&
               (!(s_.parts & 4) || dense(x.S, {B, H, D * (t.E + 2)})) && (!(s_.parts & 8) || dense(x.start, {B})) &&
               (!(s_.parts & 16) || dense(x.moments, {B, H, 6}));
    }
};

struct Token {  // one head of one sequence
    const Step& s;
    const Tensors& p;
    int64_t i;
    const float *q, *k, *v;
    float* o;
    Token(const Step& s_, const Tensors& p_, int64_t b, int64_t h)
        : s(s_), p(p_), i(b * s.H + h), q(p.q + b * p.dq.b + h * p.dq.h), k(p.k + b * p.dk.b + h * p.dk.h),
          v(p.v + b * p.dv.b + h * p.dv.h), o(p.o + i * p.E) {}
};

// R rows and V vectors of columns: S1[d,:] = keep[d] S[d,:] + b[d] v and y += sum_d a[d] S1[d,:]. All are read before
// any is written: the new state often begins a whole number of pages and a few bytes after the old one, and a processor
// delays a load whose address looks like that of a pending store.
template <int R, int V, bool KEEP>
SMALL void step_rows(
    int64_t E, const float* keep, const float* a, const float* b, const vec* x, const float* S, float* S1, vec* y) {
    vec s[R][V];
    for (int r = 0; r < R; r++)
        for (int j = 0; j < V; j++) s[r][j] = load(S + r * E + j * W);
    for (int r = 0; r < R; r++)
        for (int j = 0; j < V; j++) {
            if (KEEP) s[r][j] *= keep[r];
            s[r][j] += b[r] * x[j];
            store(S1 + r * E + j * W, s[r][j]);
            y[j] += a[r] * s[r][j];
        }
}

template <int V, bool KEEP>
static inline void step_columns(
    int64_t D, int64_t E, const float* keep, const float* a, const float* b, const float* v, const float* S, float* S1,
    float* o) {
    vec x[V], y[V];
    for (int j = 0; j < V; j++) x[j] = load(v + j * W), y[j] = vec{};
    int64_t d = 0;
    for (; d + 4 <= D; d += 4) step_rows<4, V, KEEP>(E, keep + d, a + d, b + d, x, S + d * E, S1 + d * E, y);
    for (; d < D; d++) step_rows<1, V, KEEP>(E, keep + d, a + d, b + d, x, S + d * E, S1 + d * E, y);
    for (int j = 0; j < V; j++) store(o + j * W, y[j]);
}

template <bool KEEP>
static void step_state(
    int64_t D, int64_t E, const float* keep, const float* a, const float* b, const float* v, const float* S, float* S1,
    float* o) {
    constexpr int V = W == 16 ? 4 : 2;  // enough to touch each cache line once, and few enough for the registers
    int64_t e = 0;
    for (; e + V * W <= E; e += V * W) step_columns<V, KEEP>(D, E, keep, a, b, v + e, S + e, S1 + e, o + e);
    for (; e + W <= E; e += W) step_columns<1, KEEP>(D, E, keep, a, b, v + e, S + e, S1 + e, o + e);
    for (; e < E; e++) {
        o[e] = 0;
        for (int64_t d = 0; d < D; d++) {
            S1[d * E + e] = (KEEP ? S[d * E + e] * keep[d] : S[d * E + e]) + b[d] * v[e];
            o[e] += a[d] * S1[d * E + e];
        }
    }
}

// cos and sin of t theta alternately, in double precision until rounded; theta has n entries.
static inline void turns(double t, const float* theta, int64_t n, float* turn) {
    const double magic = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to a whole number
    double farthest = 0;
    for (int64_t i = 0; i < n; i++) farthest = std::max(farthest, std::abs(t * theta[i]));
    if (!(farthest < 1 << 28)) {  // beyond that, the three parts of pi/2 below are not enough
        for (int64_t i = 0; i < n; i++) turn[2 * i] = std::cos(t * theta[i]), turn[2 * i + 1] = std::sin(t * theta[i]);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        const double angle = t * theta[i], whole = angle * 0.63661977236758134 + magic, quarters = whole - magic;
        double r = angle - quarters * 1.57079625129699707031;  // 24 bits each, so that their products are exact
        r -= quarters * 7.54978941586159635335e-8, r -= quarters * 5.39030252995776476554e-15;
        const double z = r * r;
        const double sin = r + r * z * (-1 / 6.0 + z * (1 / 120.0 + z * (-1 / 5040.0 + z * (1 / 362880.0 - z / 39916800.0))));
        const double cos = 1 + z * (-0.5 + z * (1 / 24.0 + z * (-1 / 720.0 + z * (1 / 40320.0 - z / 3628800.0))));
        int64_t quadrant;
        std::memcpy(&quadrant, &whole, 8);
        const double x = quadrant & 1 ? sin : cos, y = quadrant & 1 ? cos : sin;
        turn[2 * i] = static_cast<float>((quadrant + 1) & 2 ? -x : x);
        turn[2 * i + 1] = static_cast<float>(quadrant & 2 ? -y : y);
    }
}

static void linear_step(const Token& x, const float* turn, float* a, float* b) {
    const int64_t D = x.s.D, E = x.p.E, i = x.i;
    const Tensors& p = x.p;
    elu_features(x.q, D, x.s.phi, a), elu_features(x.k, D, x.s.phi, b);
    float less = 1;
    if (p.old.z) {  // of the features before they turn: M51
        float* z = p.next.z + i * D;
        for (int64_t d = 0; d < D; d++) z[d] = p.old.z[i * D + d] + b[d];
        less = 1 / std::max(dot(a, z, D), EPS);
    }
    if (p.u) reflect(p.u, D, a), reflect(p.u, D, b);
    if (p.theta) rotate(turn, D, 1, a), rotate(turn, D, 1, b);
    step_state<false>(D, E, a, a, b, x.v, p.old.S + i * D * E, p.next.S + i * D * E, x.o);
    if (!p.old.z) return;
    for (int64_t e = 0; e < E; e++) x.o[e] *= less;
}

// Count, sum and sum of squares of all entries so far.
static inline void count(const float* x, int64_t D, const double* past, double* now) {
    double sum = 0, square = 0;
#pragma omp simd reduction(+ : sum, square)
    for (int64_t d = 0; d < D; d++) sum += x[d], square += double(x[d]) * x[d];
    now[0] = past[0] + D, now[1] = past[1] + sum, now[2] = past[2] + square;
}

SMALL double deviation(const double* x) {
    const double variance = (x[2] - x[1] * x[1] / std::max(x[0], 1.0)) / std::max(x[0] - 1, 1.0);
    return std::max(std::sqrt(std::max(variance, 0.0)), 1e-4);
}

// alpha and beta of the heads of sequence b, alternately. All heads together: single roots and quotients would stall.
static void scales(const Step& s, const Tensors& p, int64_t b, float* to) {
    for (int64_t h = 0; h < s.H; h++) {
        const Token x(s, p, b, h);
        for (const int64_t j : {0, 3})
            count(j ? x.k : x.q, s.D, p.old.moments + x.i * 6 + j, p.next.moments + x.i * 6 + j);
    }
    const double* moments = p.next.moments + b * s.H * 6;
    for (int64_t h = 0; h < s.H; h++) {
        const double sigma_q = deviation(moments + h * 6), sigma_k = deviation(moments + h * 6 + 3);
        const double target = sigma_q * sigma_q * sigma_k * sigma_k;
        const double twice = s.c2 == 0 ? (target - s.c0) / s.c1  // M13, M14
                                       : (std::sqrt(s.c1 * s.c1 - 4 * s.c2 * (s.c0 - target)) - s.c1) / (2 * s.c2);
        const double matched = std::sqrt(twice / 2);
        to[2 * h] = float(matched / sigma_q), to[2 * h + 1] = float(matched / sigma_k);
    }
}

static void exp_step(const Token& x, float alpha, float beta, float* a, float* b, float* keep) {
    const int64_t D = x.s.D, E = x.p.E, i = x.i;
    const float *S = x.p.old.S + i * D * (E + 2), *z = S + D * E, *m = z + D;
    float *S1 = x.p.next.S + i * D * (E + 2), *z1 = S1 + D * E, *m1 = z1 + D;
    alignas(64) float top[256];
    padded_copy(x.q, D, a), padded_copy(x.k, D, b), padded_copy(m, D, keep);
    for (int64_t d = 0; d < D; d += W) {
        const vec before = load(keep + d), key = load(b + d) * beta, now = most(most(before, key), vec{} + FLOOR);
        store(keep + d, exp(before - now)), store(b + d, exp(key - now)), store(a + d, load(a + d) * alpha + now);
        store(top + d, now);
    }
    std::memcpy(m1, top, D * 4);
    std::fill(a + D, a + padded(D), FLOOR);
    vec highest = vec{} + FLOOR;
    for (int64_t d = 0; d < D; d += W) highest = most(highest, load(a + d));
    const float peak = largest(highest);
    for (int64_t d = 0; d < D; d += W) store(a + d, exp(load(a + d) - peak));
    for (int64_t d = 0; d < D; d++) z1[d] = z[d] * keep[d] + b[d];  // M12
    step_state<true>(D, E, keep, a, b, x.v, S, S1, x.o);
    const float den = dot(a, z1, D), less = den == 0 ? 1 : 1 / den;
    for (int64_t e = 0; e < E; e++) x.o[e] *= less;  // M11
}

static inline void srms(float* x, int64_t n) {
    const float less = 1 / (std::sqrt(dot(x, x, n) / n) + 1e-8f);  // M2
    for (int64_t i = 0; i < n; i++) x[i] *= less;
}

// All heads of sequence b.
static void step(const Step& s, const Tensors& p, int64_t b) {
    alignas(64) float turn[256], A[256], B[256], keep[256];
    std::vector<float> scale(p.old.moments ? 2 * s.H : 0);
    if (p.theta) turns(double(p.old.start[b]), p.theta, s.D / 2, turn);
    if (p.old.moments) scales(s, p, b, scale.data());
    for (int64_t h = 0; h < s.H; h++) {
        const Token x(s, p, b, h);
        if (s.phi == 2)
            exp_step(x, scale[2 * h], scale[2 * h + 1], A, B, keep);
        else
            linear_step(x, turn, A, B);
    }
    if (p.next.start) p.next.start[b] = p.old.start[b] + 1;
    if (s.srms) srms(p.o + b * s.H * p.E, s.H * p.E);
}

// 1 if the step is done, 0 if the kernel does not take these tensors or the environment asks for another backend.
extern "C" int linnet_step(const Step* how, void* tuple) {
    const Step& s = *how;
    const char* backend = std::getenv("LINNET_BACKEND");
    Tensors p;
    if ((backend && *backend && std::strcmp(backend, "cpu")) || !Look(s, tuple)(p)) return 0;
    if (p.B * s.H * s.D * p.E < s.small) {
        for (int64_t b = 0; b < p.B; b++) step(s, p, b);
        return 1;
    }
    void* const thread = s.python.leave();  // so that a long step does not block other Python threads
#pragma omp parallel for num_threads(std::min(s.threads, p.B))
    for (int64_t b = 0; b < p.B; b++) step(s, p, b);
    s.python.come_back(thread);
    return 1;
}
