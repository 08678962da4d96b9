// Causal linear attention. If there are fewer rows than threads, rows are cut into spans. The sums of each span are then
// computed first, so that every span knows the state it starts from.
#pragma once

#include "linear.h"

static void causal_strip(const Head& h, int64_t t, int64_t M, bool fresh, float* S, Strip& x) {
    const Shape& s = h.s;
    if (fresh) std::fill(S, S + s.forward(), 0.0f);
    const Rows q = h.queries(t, M, false, x), k = h.keys(t, M, false, x);
    if (h.p.normalize) h.normalizers(t, M, q, k, true, S + s.D * s.Ep, x.gain);
    const Out o = room(h.o, t, s.E, x.o);
    Ahead ahead = ahead_of(t + STRIP, 2, s.widest(), {h.q, h.k, h.v, h.o});
    write_read(M, s.D, s.Ep, q, k, h.values(t, M, true, 0, x), o, x.gain, S, &ahead);
    put(h.o, t, M, s.E, o, nullptr);
}

// dq from the state T of earlier keys.
static void causal_dq(const Head& h, int64_t t, int64_t M, bool fresh, float* T, Strip& x) {
    const Shape& s = h.s;
    if (fresh) std::fill(T, T + s.backward(), 0.0f);
    const Rows g = h.upstream(t, M, false, x), v = h.values(t, M, false, h.p.normalize, x);
    const Out dq = room(h.dq, t, s.D, x.o);
    Ahead ahead = ahead_of(t + STRIP, 2, s.widest(), {h.g, h.v, h.k, h.dq});
    write_read(M, s.K, s.Dp, g, v, h.keys(t, M, true, x), dq, x.gain, T, &ahead);
    h.put_slopes(h.q, h.dq, t, M, dq, nullptr, x);
}

// dk and dv from the state U of later queries and its transpose V (D x E).
static void causal_dkv(const Head& h, int64_t t, int64_t M, bool fresh, float* U, float* V, Strip& x) {
    const Shape& s = h.s;
    if (fresh) std::fill(U, U + s.backward(), 0.0f), std::fill(V, V + s.D * s.Ep, 0.0f);
    const Rows g = reversed(h.upstream(t, M, true, x), M), q = reversed(h.queries(t, M, true, x), M);
    const Rows v = reversed(h.values(t, M, false, h.p.normalize, x), M), k = reversed(h.keys(t, M, false, x), M);
    Out to = room(h.dk, t, s.D, x.o);
    Ahead ahead = ahead_of(t - STRIP, 1, s.widest(), {h.g, h.q, h.v, h.k, h.dk, h.dv});
    write_read(M, s.K, s.Dp, v, g, q, reversed(to, M), x.gain, U, &ahead);
    h.put_slopes(h.k, h.dk, t, M, to, h.real, x);
    to = room(h.dv, t, s.E, x.o);
    write_read(M, s.D, s.Ep, k, q, g, reversed(to, M), x.gain, V, &ahead);
    put(h.dv, t, M, s.E, to, h.real);
}

// The tokens of an item that share the run of its last (first) token: their state continues.
static inline Item last_run(const int64_t* run, Item item) {
    while (run && run[item.t0] != run[item.t1 - 1]) item.t0++;
    return item;
}
static inline Item first_run(const int64_t* run, Item item) {
    while (run && run[item.t1 - 1] != run[item.t0]) item.t1--;
    return item;
}

// Whether the state before (after) an item also belongs to the item's last (first) token.
static inline bool carries(const int64_t* run, const Item& item) {
    return !run || run[std::max<int64_t>(item.t0 - 1, 0)] == run[item.t1 - 1];
}
static inline bool carries_back(const int64_t* run, const Item& item, int64_t N) {
    return !run || run[std::min(item.t1, N - 1)] == run[item.t0];
}

extern "C" void linnet_causal(const Linear* problem) {
    const Linear& p = *problem;
    const Shape s(p);
    const Plan plan(p.B, p.H, p.N, p.group, p.spans);
    const int64_t n = p.spans, size = s.forward();
    Memory starts(n > 1 ? p.B * p.H * n * size : 0);  // one per head and span
    float* start = starts.take(0);
#pragma omp parallel num_threads(p.threads)
    {
        Strip x(s);
        Memory own(p.group * size);
        float* states = own.take(0);
        if (n > 1) {
#pragma omp for schedule(dynamic)
            for (int64_t j = 0; j < plan.items; j++)
                for (int64_t i = plan[j].first; i < plan[j].last; i++) {
                    const Head h(p, i);
                    float* S = start + (i * n + plan[j].span) * size;
                    if (plan[j].span == 0) load_state(h, i, S);
                    if (plan[j].span + 1 == n) continue;
                    std::fill(S + size, S + 2 * size, 0.0f);
                    each_strip(nullptr, last_run(h.run, plan[j]), [&](int64_t t, int64_t M, bool) {
                        write_keys(h, t, M, S + size, x);
                    });
                }
#pragma omp for schedule(dynamic)
            for (int64_t i = 0; i < p.B * p.H; i++)
                for (int64_t span = 0; span + 1 < n; span++)
                    if (carries(Head(p, i).run, plan[i / p.H * plan.groups * n + span]))
                        add(start + (i * n + span + 1) * size, start + (i * n + span) * size, size);
        }
#pragma omp for schedule(dynamic)
        for (int64_t j = 0; j < plan.items; j++) {
            const Item item = plan[j];
            for (int64_t i = item.first; i < item.last; i++) {
                float* S = states + (i - item.first) * size;
                if (n > 1)
                    std::copy_n(start + (i * n + item.span) * size, size, S);
                else
                    load_state(Head(p, i), i, S);
            }
            each_strip(Head(p, item.first).run, item, [&](int64_t t, int64_t M, bool fresh) {
                for (int64_t i = item.first; i < item.last; i++)
                    causal_strip(Head(p, i), t, M, fresh, states + (i - item.first) * size, x);
            });
            for (int64_t i = item.first; i < item.last && item.span + 1 == n; i++)
                save_state(Head(p, i), i, states + (i - item.first) * size);
        }
    }
}

extern "C" void linnet_causal_backward(const Linear* problem) {
    const Linear& p = *problem;
    const Shape s(p);
    const Plan plan(p.B, p.H, p.N, p.group, p.spans);
    const int64_t n = p.spans, size = s.backward(), turned = s.D * s.Ep;
    Memory starts(n > 1 ? 2 * p.B * p.H * n * size : 0);
    float *startT = starts.take(n > 1 ? p.B * p.H * n * size : 0), *startU = starts.take(0);
#pragma omp parallel num_threads(p.threads)
    {
        Strip x(s);
        Memory own(p.group * (size + turned));
        float *states = own.take(p.group * size), *turns = own.take(0);
        if (n > 1) {
#pragma omp for schedule(dynamic)
            for (int64_t j = 0; j < plan.items; j++)
                for (int64_t i = plan[j].first; i < plan[j].last; i++) {
                    const Head h(p, i);
                    const int64_t span = plan[j].span;
                    float *T = startT + (i * n + span) * size, *U = startU + (i * n + span) * size;
                    if (span == 0) turn_state(h, i, p.S0, p.z0, T);
                    if (span + 1 == n) turn_state(h, i, p.gS, p.gz, U);
                    if (span + 1 < n) {
                        std::fill(T + size, T + 2 * size, 0.0f);
                        each_strip(nullptr, last_run(h.run, plan[j]), [&](int64_t t, int64_t M, bool) {
                            write_T(h, t, M, T + size, x);
                        });
                    }
                    if (span > 0) {
                        std::fill(U - size, U, 0.0f);
                        each_strip(nullptr, first_run(h.run, plan[j]), [&](int64_t t, int64_t M, bool) {
                            write_U(h, t, M, U - size, x);
                        });
                    }
                }
#pragma omp for schedule(dynamic)
            for (int64_t i = 0; i < p.B * p.H; i++) {
                const int64_t *run = Head(p, i).run, first = i / p.H * plan.groups * n;
                for (int64_t span = 0; span + 1 < n; span++)
                    if (carries(run, plan[first + span]))
                        add(startT + (i * n + span + 1) * size, startT + (i * n + span) * size, size);
                for (int64_t span = n - 1; span > 0; span--)
                    if (carries_back(run, plan[first + span], p.N))
                        add(startU + (i * n + span - 1) * size, startU + (i * n + span) * size, size);
            }
        }
#pragma omp for schedule(dynamic)
        for (int64_t j = 0; j < plan.items; j++) {
            const Item item = plan[j];
            const int64_t* run = Head(p, item.first).run;
            x.span = item.span;
            for (int64_t i = item.first; i < item.last; i++) {
                float* T = states + (i - item.first) * size;
                if (n > 1)
                    std::copy_n(startT + (i * n + item.span) * size, size, T);
                else
                    turn_state(Head(p, i), i, p.S0, p.z0, T);
            }
            each_strip(run, item, [&](int64_t t, int64_t M, bool fresh) {
                for (int64_t i = item.first; i < item.last; i++)
                    causal_dq(Head(p, i), t, M, fresh, states + (i - item.first) * size, x);
            });
            for (int64_t i = item.first; i < item.last; i++) {
                float *U = states + (i - item.first) * size, *V = turns + (i - item.first) * turned;
                if (n > 1)
                    std::copy_n(startU + (i * n + item.span) * size, size, U);
                else
                    turn_state(Head(p, i), i, p.gS, p.gz, U);
                std::fill(V, V + turned, 0.0f);
                transpose(U, s.E, s.D, s.Dp, V, s.Ep);
            }
            each_strip_back(run, item, p.N, [&](int64_t t, int64_t M, bool fresh) {
                for (int64_t i = item.first; i < item.last; i++) {
                    float *U = states + (i - item.first) * size, *V = turns + (i - item.first) * turned;
                    causal_dkv(Head(p, i), t, M, fresh, U, V, x);
                }
            });
            for (int64_t i = item.first; i < item.last && item.span == 0; i++)
                save_gradient(Head(p, i), i, states + (i - item.first) * size);
        }
    }
}
