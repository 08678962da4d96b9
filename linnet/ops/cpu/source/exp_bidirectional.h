// The bidirectional form of exponential.h: finds the largest exponents of a strip before its tokens add to the state.
#pragma once

#include "bidirectional.h"
#include "exponential.h"

// V vectors of columns of a strip's keys as they are, and the largest of each column.
template <int V>
PLAIN void scaled_keys(const ExpHead& h, int64_t t, int64_t M, int64_t c, float* b, int64_t ld, float* tops) {
    vec top[V];
    for (int j = 0; j < V; j++) top[j] = vec{} + NEVER;
    for (int64_t i = 0; i < M; i++) {
        const float by = h.scale(h.beta, t + i);
        for (int j = 0; j < V; j++) {
            const vec x = h.key(t + i, c + j * W, by);
            store(b + i * ld + j * W, x), top[j] = most(top[j], x);
        }
    }
    for (int j = 0; j < V; j++) store(tops + j * W, top[j]);
}

// Turns these into weights relative to m, with their sums.
template <int V>
PLAIN void weigh_keys(int64_t M, const float* m, float* b, int64_t ld, float* sums) {
    vec peak[V], sum[V];
    for (int j = 0; j < V; j++) peak[j] = load(m + j * W), sum[j] = vec{};
    for (int64_t i = 0; i < M; i++)
        for (int j = 0; j < V; j++) {
            const vec x = weight(load(b + i * ld + j * W) - peak[j]);
            store(b + i * ld + j * W, x), sum[j] += x;
        }
    for (int j = 0; j < V; j++) store(sums + j * W, sum[j]);
}

// Weights b of a strip's keys relative to m, which is raised to the largest of them, with their sums in x.q; f as in
// `raise`.
static inline bool raise_keys(const ExpHead& h, int64_t t, int64_t M, float* m, Strip& x, Weights& w) {
    const Shape& s = h.s;
    EACH_PANEL(WIDE, s.Dp, scaled_keys<V>(h, t, M, j, w.b + j, w.ld, x.q + j))
    const bool raised = raise(x.q, s.Dp, m, x.k, w.f);
    EACH_PANEL(WIDE, s.Dp, weigh_keys<V>(M, m + j, w.b + j, w.ld, x.q + j))
    return raised;
}

static void exp_write_keys(const ExpHead& h, int64_t t, int64_t M, float* S, float* m, Strip& x, Weights& w) {
    const Shape& s = h.s;
    float* z = S + s.D * s.Ep;
    if (raise_keys(h, t, M, m, x, w)) {
        shrink_rows(S, s.D, s.Ep, w.f);
        for (int64_t c = 0; c < s.Dp; c++) z[c] *= w.f[c];
    }
    add(z, x.q, s.Dp);
    Ahead ahead = ahead_of(t + STRIP, 2, s.widest(), {h.k, h.v});
    write(M, s.D, s.Ep, {w.b, w.ld}, h.values(t, M, true, 0, x), S, &ahead);
}

// The weights of a strip's queries in w.a, and the inverse of their sum with z in x.gain.
static inline void weigh_queries(
    const ExpHead& h, int64_t t, int64_t M, const float* m, const float* z, float none, Strip& x, Weights& w) {
    for (int64_t i = 0; i < M; i++) {
        float highest;
        const float y = h.weigh(t + i, m, z, w.a + i * w.ld, highest);
        x.gain[i] = y == 0 ? none : 1 / y;
    }
}

static void exp_read_keys(const ExpHead& h, int64_t t, int64_t M, float* S, const float* m, Strip& x, Weights& w) {
    const Shape& s = h.s;
    weigh_queries(h, t, M, m, S + s.D * s.Ep, 1, x, w);
    const Out o = room(h.o, t, s.E, x.o);
    Ahead ahead = ahead_of(t + STRIP, 4, s.widest(), {h.q, h.o});
    read(M, s.D, s.Ep, {w.a, w.ld}, S, o, x.gain, &ahead);
    put(h.o, t, M, s.E, o, nullptr);
}

static void exp_write_T(const ExpHead& h, int64_t t, int64_t M, float* T, float* m, Strip& x, Weights& w) {
    if (raise_keys(h, t, M, m, x, w)) shrink_columns(T, h.s.K, h.s.Dp, w.f);
    write(M, h.s.K, h.s.Dp, h.values(t, M, false, 1, x), {w.b, w.ld}, T);
}

// dq from T. The same queries add to U, relative to the largest keys, so that each weight is at most 1 here too.
static void exp_read_T(
    const ExpHead& h, int64_t t, int64_t M, const float* T, const float* m, float* U, Strip& x, Weights& w) {
    const Shape& s = h.s;
    weigh_queries(h, t, M, m, T + s.E * s.Dp, 0, x, w);  // the last row of T is z
    const Rows g = h.gradients(t, M, x.gain, x);
    Ahead ahead = ahead_of(t + STRIP, 2, s.widest(), {h.q, h.g, h.o, h.dq});
    read(M, s.K, s.Dp, g, T, {x.o, s.Dp}, w.ones, &ahead);
    h.put_weighted(h.dq, t, M, x.o, w, h.alpha);
    write(M, s.K, s.Dp, g, {w.a, w.ld}, U, &ahead);
}

// dk and dv from U and its transpose V; `less` is -m.
static void exp_read_U(
    const ExpHead& h, int64_t t, int64_t M, const float* U, const float* V, const float* less, Strip& x, Weights& w) {
    const Shape& s = h.s;
    for (int64_t i = 0; i < M; i++) h.key_weights(t + i, less, w.a + i * w.ld);
    Ahead ahead = ahead_of(t + STRIP, 2, s.widest(), {h.k, h.v, h.dk, h.dv});
    read(M, s.K, s.Dp, h.values(t, M, false, 1, x), U, {x.o, s.Dp}, w.ones, &ahead);
    h.put_weighted(h.dk, t, M, x.o, w, h.beta);
    const Out dv = room(h.dv, t, s.E, x.y);
    read(M, s.D, s.Ep, {w.a, w.ld}, V, dv, w.ones, &ahead);
    put(h.dv, t, M, s.E, dv, h.real);
}

// Each run of an item, and whether it is the row's first (last).
template <class F>
static inline void each_run(const Exponential& e, const Item& item, F f) {
    for (int64_t t = item.t0, end; t < item.t1; t = end) {
        const Item run = run_from(Head(e.l, item.first).run, item, t);
        end = run.t1;
        f(run, t == 0, end == e.l.N);
    }
}

extern "C" void linnet_exp_bidirectional(const Exponential* problem) {
    const Exponential& e = *problem;
    const Shape s(e.l);
    const Plan plan(e.l.B, e.l.H, e.l.N, e.l.group, 1);
#pragma omp parallel num_threads(e.l.threads)
    {
        Strip x(s);
        Weights w(s);
        Memory own(e.l.group * (s.forward() + s.Dp));
        float *states = own.take(e.l.group * s.forward()), *tops = own.take(0);
#pragma omp for schedule(dynamic)
        for (int64_t j = 0; j < plan.items; j++)
            each_run(e, plan[j], [&](const Item& item, bool first, bool last) {
                const auto top = [&](const float* S) { return tops + (S - states) / s.forward() * s.Dp; };
                for (int64_t i = item.first; i < item.last; i++) {
                    float* S = states + (i - item.first) * s.forward();
                    std::fill(S, S + s.forward(), 0.0f);
                    if (first) load_state(Head(e.l, i), i, S);
                    load_tops(first ? e.m0 : nullptr, i, s, 1, top(S));
                }
                for (const bool writes : {true, false})
                    each_strip(nullptr, item, [&](int64_t t, int64_t M, bool) {
                        for (int64_t i = item.first; i < item.last; i++) {
                            float* S = states + (i - item.first) * s.forward();
                            (writes ? exp_write_keys(ExpHead(e, i), t, M, S, top(S), x, w)
                                    : exp_read_keys(ExpHead(e, i), t, M, S, top(S), x, w));
                        }
                    });
                for (int64_t i = item.first; last && i < item.last; i++) {
                    const float* S = states + (i - item.first) * s.forward();
                    save_state(Head(e.l, i), i, S), std::copy_n(top(S), s.D, e.m1 + i * s.D);
                }
            });
    }
}

extern "C" void linnet_exp_bidirectional_backward(const Exponential* problem) {
    const Exponential& e = *problem;
    const Shape s(e.l);
    const Plan plan(e.l.B, e.l.H, e.l.N, e.l.group, 1);
    const int64_t turned = s.D * s.Ep, n = e.l.group;
#pragma omp parallel num_threads(e.l.threads)
    {
        Strip x(s);
        Weights w(s);
        Memory own(n * (2 * s.backward() + turned + 2 * s.Dp));
        float *Ts = own.take(n * s.backward()), *Us = own.take(n * s.backward()), *Vs = own.take(n * turned);
        float *tops = own.take(n * s.Dp), *negated = own.take(0);
        std::fill(Vs, Vs + n * turned, 0.0f);
#pragma omp for schedule(dynamic)
        for (int64_t j = 0; j < plan.items; j++)
            each_run(e, plan[j], [&](const Item& item, bool first, bool last) {
                const bool whole = !Head(e.l, item.first).run;  // then all queries read the outgoing state
                const auto each_head = [&](auto f) {
                    for (int64_t i = item.first, k = 0; i < item.last; i++, k++)
                        f(i, Ts + k * s.backward(), Us + k * s.backward(), Vs + k * turned, tops + k * s.Dp,
                          negated + k * s.Dp);
                };
                const auto strips = [&](auto f) {
                    each_strip(nullptr, item, [&](int64_t t, int64_t M, bool) {
                        each_head([&](int64_t i, float* T, float* U, float* V, float* m, float* less) {
                            f(ExpHead(e, i), t, M, T, U, V, m, less);
                        });
                    });
                };
                each_head([&](int64_t i, float* T, float* U, float*, float* m, float*) {
                    const Head h(e.l, i);
                    const float* S = whole ? e.l.S1 : first ? e.l.S0 : nullptr;
                    const float* z = whole ? e.l.z1 : first ? e.l.z0 : nullptr;
                    turn_state(h, i, S, z, T), turn_state(h, i, last ? e.l.gS : nullptr, last ? e.l.gz : nullptr, U);
                    load_tops(whole ? e.m1 : first ? e.m0 : nullptr, i, s, 1, m);
                });
                if (!whole)
                    strips([&](const ExpHead& h, int64_t t, int64_t M, float* T, float*, float*, float* m, float*) {
                        exp_write_T(h, t, M, T, m, x, w);
                    });
                strips([&](const ExpHead& h, int64_t t, int64_t M, float* T, float* U, float*, float* m, float*) {
                    exp_read_T(h, t, M, T, m, U, x, w);
                });
                each_head([&](int64_t, float*, float* U, float* V, float* m, float* less) {
                    transpose(U, s.E, s.D, s.Dp, V, s.Ep);
                    for (int64_t c = 0; c < s.Dp; c++) less[c] = -m[c];
                });
                strips([&](const ExpHead& h, int64_t t, int64_t M, float*, float* U, float* V, float*, float* less) {
                    exp_read_U(h, t, M, U, V, less, x, w);
                });
                if (first)
                    each_head([&](int64_t i, float*, float* U, float*, float*, float* less) {
                        save_exp_gradient(e, i, s, U, less);
                    });
            });
    }
}
