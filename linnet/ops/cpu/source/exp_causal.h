// The causal form of exponential.h.
#pragma once

#include "exponential.h"

static void exp_causal_strip(
    const ExpHead& h, int64_t t, int64_t M, bool fresh, float* S, float* m, Strip& x, Weights& w) {
    const Shape& s = h.s;
    float* z = S + s.D * s.Ep;
    if (fresh) std::fill(S, S + s.forward(), 0.0f), std::fill(m, m + s.Dp, FLOOR);
    const Rows v = h.values(t, M, true, 0, x), a = {w.a, w.ld}, b = {w.b, w.ld};
    const Out o = room(h.o, t, s.E, x.o);
    int64_t done = 0;
    const auto flush = [&](int64_t i) {
        write_read(i - done, s.D, s.Ep, from(a, done), from(b, done), from(v, done), from(o, done), x.gain + done, S);
        done = i;
    };
    for (int64_t i = 0; i < M; i++) {
        h.key_exponents(t + i, x.q);
        if (raise(x.q, s.Dp, m, w.b + i * w.ld, w.f)) {
            flush(i);
            shrink_rows(S, s.D, s.Ep, w.f);
            for (int64_t c = 0; c < s.Dp; c++) z[c] *= w.f[c];
        }
        add(z, w.b + i * w.ld, s.Dp);
        x.gain[i] = h.look(t + i, m, z, w.a + i * w.ld);
    }
    flush(M);
    put(h.o, t, M, s.E, o, nullptr);
}

static void exp_causal_dq(
    const ExpHead& h, int64_t t, int64_t M, bool fresh, float* T, float* m, Strip& x, Weights& w) {
    const Shape& s = h.s;
    if (fresh) std::fill(T, T + s.backward(), 0.0f), std::fill(m, m + s.Dp, FLOOR);
    const Rows g = h.gradients(t, M, w.ones, x), v = h.values(t, M, false, 1, x), b = {w.b, w.ld};
    const Out y = {x.o, s.Dp};
    int64_t done = 0;
    const auto flush = [&](int64_t i) {
        write_read(i - done, s.K, s.Dp, from(g, done), from(v, done), from(b, done), from(y, done), w.ones, T);
        done = i;
    };
    for (int64_t i = 0; i < M; i++) {
        h.key_exponents(t + i, x.q);
        if (raise(x.q, s.Dp, m, w.b + i * w.ld, w.f)) flush(i), shrink_columns(T, s.K, s.Dp, w.f);
        h.query_weights(t + i, m, w.a + i * w.ld);
    }
    flush(M);
    h.put_weighted(h.dq, t, M, x.o, w, h.alpha);
}

static void exp_causal_dkv(
    const ExpHead& h, int64_t t, int64_t M, bool fresh, float* U, float* V, float* peak, Strip& x, Weights& w) {
    const Shape& s = h.s;
    if (fresh) {
        std::fill(U, U + s.backward(), 0.0f), std::fill(V, V + s.D * s.Ep, 0.0f);
        std::fill(peak, peak + s.Dp, FLOOR);
    }
    const Rows g = h.gradients(t, M, w.ones, x), v = h.values(t, M, false, 1, x), a = {w.a, w.ld}, b = {w.b, w.ld};
    const Out dk = {x.o, s.Dp}, dv = room(h.dv, t, s.E, x.y);
    int64_t done = M;  // tokens done .. M are
    const auto flush = [&](int64_t i) {
        const int64_t n = done - i;
        const Rows g_ = reversed(from(g, i), n), b_ = reversed(from(b, i), n);
        if (n > 0) {
            write_read(n, s.K, s.Dp, reversed(from(v, i), n), g_, b_, reversed(from(dk, i), n), w.ones, U);
            write_read(n, s.D, s.Ep, reversed(from(a, i), n), b_, g_, reversed(from(dv, i), n), w.ones, V);
        }
        done = i;
    };
    for (int64_t i = M - 1; i >= 0; i--) {
        h.seen(t + i, x.q);
        if (raise(x.q, s.Dp, peak, w.b + i * w.ld, w.f)) {
            flush(i + 1);
            shrink_columns(U, s.K, s.Dp, w.f), shrink_rows(V, s.D, s.Ep, w.f);
        }
        h.key_weights(t + i, peak, w.a + i * w.ld);
    }
    flush(0);
    h.put_weighted(h.dk, t, M, x.o, w, h.beta);
    put(h.dv, t, M, s.E, dv, h.real);
}

extern "C" void linnet_exp_causal(const Exponential* problem) {
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
        for (int64_t j = 0; j < plan.items; j++) {
            const Item item = plan[j];
            const auto S = [&](int64_t i) { return states + (i - item.first) * s.forward(); };
            const auto m = [&](int64_t i) { return tops + (i - item.first) * s.Dp; };
            for (int64_t i = item.first; i < item.last; i++)
                load_state(Head(e.l, i), i, S(i)), load_tops(e.m0, i, s, 1, m(i));
            each_strip(Head(e.l, item.first).run, item, [&](int64_t t, int64_t M, bool fresh) {
                for (int64_t i = item.first; i < item.last; i++)
                    exp_causal_strip(ExpHead(e, i), t, M, fresh, S(i), m(i), x, w);
            });
            for (int64_t i = item.first; i < item.last; i++)
                save_state(Head(e.l, i), i, S(i)), std::copy_n(m(i), s.D, e.m1 + i * s.D);
        }
    }
}

extern "C" void linnet_exp_causal_backward(const Exponential* problem) {
    const Exponential& e = *problem;
    const Shape s(e.l);
    const Plan plan(e.l.B, e.l.H, e.l.N, e.l.group, 1);
    const int64_t turned = s.D * s.Ep, n = e.l.group;
#pragma omp parallel num_threads(e.l.threads)
    {
        Strip x(s);
        Weights w(s);
        Memory own(n * (s.backward() + turned + s.Dp));
        float *states = own.take(n * s.backward()), *turns = own.take(n * turned), *tops = own.take(0);
#pragma omp for schedule(dynamic)
        for (int64_t j = 0; j < plan.items; j++) {
            const Item item = plan[j];
            const int64_t* run = Head(e.l, item.first).run;
            const auto U = [&](int64_t i) { return states + (i - item.first) * s.backward(); };
            const auto V = [&](int64_t i) { return turns + (i - item.first) * turned; };
            const auto m = [&](int64_t i) { return tops + (i - item.first) * s.Dp; };
            for (int64_t i = item.first; i < item.last; i++)
                turn_state(Head(e.l, i), i, e.l.S0, e.l.z0, U(i)), load_tops(e.m0, i, s, 1, m(i));
            each_strip(run, item, [&](int64_t t, int64_t M, bool fresh) {
                for (int64_t i = item.first; i < item.last; i++)
                    exp_causal_dq(ExpHead(e, i), t, M, fresh, U(i), m(i), x, w);
            });
            for (int64_t i = item.first; i < item.last; i++) {
                load_gradient(e, i, s, U(i), m(i));
                std::fill(V(i), V(i) + turned, 0.0f);
                transpose(U(i), s.E, s.D, s.Dp, V(i), s.Ep);
            }
            each_strip_back(run, item, e.l.N, [&](int64_t t, int64_t M, bool fresh) {
                for (int64_t i = item.first; i < item.last; i++)
                    exp_causal_dkv(ExpHead(e, i), t, M, fresh, U(i), V(i), m(i), x, w);
            });
            for (int64_t i = item.first; i < item.last; i++) save_exp_gradient(e, i, s, U(i), m(i));
        }
    }
}
