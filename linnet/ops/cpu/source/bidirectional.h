// Bidirectional linear attention: all keys of a run are summed, then its queries read the sum. A row without runs may be
// cut into spans, whose sums are added before any query reads.
#pragma once

#include "linear.h"

static void read_keys(const Head& h, int64_t t, int64_t M, float* S, Strip& x) {
    const Shape& s = h.s;
    const Rows q = h.queries(t, M, false, x);
    if (h.p.normalize) h.normalizers(t, M, q, q, false, S + s.D * s.Ep, x.gain);
    const Out o = room(h.o, t, s.E, x.o);
    read(M, s.D, s.Ep, q, S, o, x.gain);
    put(h.o, t, M, s.E, o, nullptr);
}

// dq from T; the same queries add to U.
static void read_T(const Head& h, int64_t t, int64_t M, const float* T, float* U, Strip& x) {
    const Shape& s = h.s;
    const Rows g = h.upstream(t, M, false, x);
    const Out dq = room(h.dq, t, s.D, x.o);
    read(M, s.K, s.Dp, g, T, dq, x.gain);
    h.put_slopes(h.q, h.dq, t, M, dq, nullptr, x);
    write(M, s.K, s.Dp, g, h.queries(t, M, true, x), U);
}

// dk and dv from U and its transpose V (D x E).
static void read_U(const Head& h, int64_t t, int64_t M, const float* U, const float* V, Strip& x) {
    const Shape& s = h.s;
    Out to = room(h.dk, t, s.D, x.o);
    read(M, s.K, s.Dp, h.values(t, M, false, h.p.normalize, x), U, to, x.gain);
    h.put_slopes(h.k, h.dk, t, M, to, h.real, x);
    to = room(h.dv, t, s.E, x.o);
    read(M, s.D, s.Ep, h.keys(t, M, false, x), V, to, x.gain);
    put(h.dv, t, M, s.E, to, h.real);
}

// The part of an item that starts at t and is one run.
static inline Item run_from(const int64_t* run, Item item, int64_t t) {
    item.t0 = t;
    while (run && t < item.t1 && run[t] == run[item.t0]) t++;
    item.t1 = run ? t : item.t1;
    return item;
}

// f(head, its state, t, M) for each strip, and each head of the item.
template <class F>
static inline void each(const Linear& p, const Item& item, float* states, int64_t size, F f) {
    each_strip(nullptr, item, [&](int64_t t, int64_t M, bool) {
        for (int64_t i = item.first; i < item.last; i++) f(Head(p, i), states + (i - item.first) * size, t, M);
    });
}

// With runs there is one span, and the first loop does everything.
extern "C" void linnet_bidirectional(const Linear* problem) {
    const Linear& p = *problem;
    const Shape s(p);
    const Plan plan(p.B, p.H, p.N, p.group, p.spans);
    const int64_t n = p.spans, size = s.forward();
    Memory sums(p.B * p.H * n * size);  // one per head, for each span
    float* sum = sums.take(0);
    const auto place = [&](const Item& item) { return sum + (item.span * p.B * p.H + item.first) * size; };
#pragma omp parallel num_threads(p.threads)
    {
        Strip x(s);
#pragma omp for schedule(dynamic)
        for (int64_t j = 0; j < plan.items; j++) {
            float* states = place(plan[j]);
            for (int64_t t = plan[j].t0, e; t < plan[j].t1; t = e) {
                const Item item = run_from(Head(p, plan[j].first).run, plan[j], t);
                e = item.t1;
                std::fill(states, states + (item.last - item.first) * size, 0.0f);
                for (int64_t i = item.first; t == 0 && i < item.last; i++)
                    load_state(Head(p, i), i, states + (i - item.first) * size);
                each(p, item, states, size,
                     [&](const Head& h, float* S, int64_t t_, int64_t M) { write_keys(h, t_, M, S, x); });
                if (n > 1) continue;
                each(p, item, states, size,
                     [&](const Head& h, float* S, int64_t t_, int64_t M) { read_keys(h, t_, M, S, x); });
            }
        }
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < p.B * p.H; i++) {
            for (int64_t span = 1; span < n; span++)
                add(sum + i * size, sum + (span * p.B * p.H + i) * size, size);
            save_state(Head(p, i), i, sum + i * size);
        }
        if (n > 1) {
#pragma omp for schedule(dynamic)
            for (int64_t j = 0; j < plan.items; j++)
                each(p, plan[j], sum + plan[j].first * size, size,
                     [&](const Head& h, float* S, int64_t t, int64_t M) { read_keys(h, t, M, S, x); });
        }
    }
}

extern "C" void linnet_bidirectional_backward(const Linear* problem) {
    const Linear& p = *problem;
    const Shape s(p);
    const Plan plan(p.B, p.H, p.N, p.group, p.spans);
    const int64_t n = p.spans, size = s.backward(), turned = s.D * s.Ep;
    Memory sums(p.B * p.H * n * size);
    float* sum = sums.take(0);
    const auto place = [&](const Item& item) { return sum + (item.span * p.B * p.H + item.first) * size; };
#pragma omp parallel num_threads(p.threads)
    {
        Strip x(s);
        Memory own(p.group * (size + turned));
        float *states = own.take(p.group * size), *turns = own.take(0);
        std::fill(turns, turns + p.group * turned, 0.0f);
        const auto keys = [&](const Item& item, float* U) {
            for (int64_t i = 0; i < item.last - item.first; i++)
                transpose(U + i * size, s.E, s.D, s.Dp, turns + i * turned, s.Ep);
            each(p, item, U, size, [&](const Head& h, float* U_, int64_t t, int64_t M) {
                read_U(h, t, M, U_, turns + (U_ - U) / size * turned, x);
            });
        };
#pragma omp for schedule(dynamic)
        for (int64_t j = 0; j < plan.items; j++) {
            float* U = place(plan[j]);
            x.span = plan[j].span;
            for (int64_t t = plan[j].t0, e; t < plan[j].t1; t = e) {
                const int64_t* run = Head(p, plan[j].first).run;
                const Item item = run_from(run, plan[j], t);
                e = item.t1;
                std::fill(U, U + (item.last - item.first) * size, 0.0f);
                for (int64_t i = item.first; i < item.last; i++) {
                    if (t == 0) turn_state(Head(p, i), i, p.gS, p.gz, U + (i - item.first) * size);
                    turn_state(Head(p, i), i, run ? nullptr : p.S1, run ? nullptr : p.z1, states + (i - item.first) * size);
                }
                if (run)
                    each(p, item, states, size,
                         [&](const Head& h, float* T, int64_t t_, int64_t M) { write_T(h, t_, M, T, x); });
                each(p, item, states, size, [&](const Head& h, float* T, int64_t t_, int64_t M) {
                    read_T(h, t_, M, T, U + (T - states), x);
                });
                if (n == 1) keys(item, U);
            }
        }
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < p.B * p.H; i++) {
            for (int64_t span = 1; span < n; span++)
                add(sum + i * size, sum + (span * p.B * p.H + i) * size, size);
            save_gradient(Head(p, i), i, sum + i * size);
        }
        if (n > 1) {
#pragma omp for schedule(dynamic)
            for (int64_t j = 0; j < plan.items; j++) {
                x.span = plan[j].span;
                keys(plan[j], sum + plan[j].first * size);
            }
        }
    }
}
