// Turns tensors into rows that the inner loop can read: strides, masks, runs, and the split between threads.
#pragma once

#include "sweep.h"

#include <initializer_list>

struct View {  // a tensor (B, H, N, width) by its strides; the last is 1
    float* data;
    int64_t b, h, n;
};

struct Masks {
    const uint8_t* real;  // (B, N), or null: all keys are real
    const int64_t* run;   // (B, N), 0, 1, ... along a row, or null: one run
};

struct Row {  // one head of one sequence
    float* p;
    int64_t ld;
};

static inline Row row(const View& x, int64_t b, int64_t h) { return {x.data + b * x.b + h * x.h, x.n}; }

static inline const uint8_t* real_row(const Masks& masks, int64_t b, int64_t N) {
    return masks.real ? masks.real + b * N : nullptr;
}

// Tokens t .. t + M of a row, in place where possible, else copied. Copies have zeros for masked tokens, and after the
// last column `last` (1 for real tokens) and zeros: rows of vectors must be padded, rows of scalars need not be.
static inline Rows take(
    const Row& x, int64_t t, int64_t M, int64_t width, bool vectors, const uint8_t* real, float last, float* copy) {
    const bool masked = real && std::memchr(real + t, 0, M);
    if (!masked && last == 0 && !(vectors && width % W)) return {x.p + t * x.ld, x.ld};
    const int64_t ld = padded(width + 1);
    for (int64_t i = 0; i < M; i++) {
        const bool hidden = masked && !real[t + i];
        float* to = copy + i * ld;
        if (!hidden) std::memcpy(to, x.p + (t + i) * x.ld, width * 4);
        std::fill(hidden ? to : to + width, to + ld, 0.0f);
        if (!hidden) to[width] = last;
    }
    return {copy, ld};
}

// Where a strip writes its results: in place if vectors end where rows do, else to a copy that `put` moves there.
static inline Out room(const Row& x, int64_t t, int64_t width, float* copy) {
    if (width % W) return {copy, padded(width)};
    return {x.p + t * x.ld, x.ld};
}

static inline void put(const Row& x, int64_t t, int64_t M, int64_t width, Out o, const uint8_t* real) {
    for (int64_t i = 0; i < M; i++) {
        float* to = x.p + (t + i) * x.ld;
        if (real && !real[t + i])
            std::fill(to, to + width, 0.0f);
        else if (width % W)
            std::memcpy(to, o.p + i * o.ld, width * 4);
    }
}

// The rows from t on, all as wide as the widest tensor.
static inline Ahead ahead_of(int64_t t, int64_t with_each_tile, int64_t width, std::initializer_list<Row> rows) {
    Ahead ahead(with_each_tile);
    for (const Row& x : rows) ahead.want(x.p + t * x.ld, x.ld, width);
    return ahead;
}

static inline Rows reversed(Rows x, int64_t M) { return {x.p + (M - 1) * x.ld, -x.ld}; }
static inline Out reversed(Out x, int64_t M) { return {x.p + (M - 1) * x.ld, -x.ld}; }

// The work of a call as items for threads: a few heads of one sequence and a span of its tokens. Heads that are
// interleaved in memory are processed together, strip by strip: alone, each would touch every page of the tensor.
struct Item {
    int64_t first, last, span, t0, t1;  // heads first .. last of all B * H, tokens t0 .. t1
};

struct Plan {
    int64_t H, N, group, spans, groups, items;
    Plan(int64_t B, int64_t H_, int64_t N_, int64_t group_, int64_t spans_)
        : H(H_), N(N_), group(group_), spans(spans_), groups((H + group - 1) / group), items(B * groups * spans) {}
    int64_t cut(int64_t span) const { return std::min(N, (N + STRIP - 1) / STRIP * span / spans * STRIP); }
    Item operator[](int64_t j) const {
        const int64_t span = j % spans, b = j / spans / groups, h = j / spans % groups * group;
        return {b * H + h, b * H + std::min(h + group, H), span, cut(span), cut(span + 1)};
    }
};

// f(t, M, whether another run came before) for each strip of the item's tokens, in order or from the last.
template <class F>
static inline void each_strip(const int64_t* run, const Item& item, F f) {
    for (int64_t t = item.t0, e; t < item.t1; t = e) {
        e = std::min(t + STRIP, item.t1);
        for (int64_t i = t + 1; run && i < e; i++)
            if (run[i] != run[i - 1]) e = i;
        f(t, e - t, run && t > 0 && run[t] != run[t - 1]);
    }
}

template <class F>
static inline void each_strip_back(const int64_t* run, const Item& item, int64_t N, F f) {
    for (int64_t e = item.t1, t; e > item.t0; e = t) {
        t = std::max(e - STRIP, item.t0);
        for (int64_t i = e - 1; run && i > t; i--)
            if (run[i] != run[i - 1]) t = i;
        f(t, e - t, run && e < N && run[e] != run[e - 1]);
    }
}

static inline void add(float* to, const float* x, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] += x[i];
}
