// Attention inside blocks of w tokens, softmax or ReLA, from the scores of a strip of queries with all keys of its block.
//
//   forward:   A = weights of scale q k^T,  o = (R A) v
//   backward:  dA = R (g v^T),  dX = A (dA - sum_s A dA), for ReLA dA where A > 0,  dq = dX k,  dk = dX^T q,  dv = (R A)^T g
// The forward pass stores nothing. The backward pass rebuilds the scores and R, which is 1, or with dropout 0 or
// 1 / (1 - p), a hash of a seed and a pair of tokens. M5 and M6 of docs/math.md.
#pragma once

#include "hashing.h"
#include "exponential.h"

#include <vector>

struct Block {
    Linear l;  // masks.run holds the number of each token's block; null: blocks of w tokens from the first
    int64_t w, rela, causal;
    double scale;
    int64_t join;  // results are averaged: forward with l.g, backward with the gradients that are already there
    double dropout;
    int64_t seed;
};

struct Part {  // one block: tokens t .. t + n of row b; `from` .. `to` also has the padding beside them
    int64_t b, from, to, t, n;
};

// The blocks of all rows in order, without padding that would make a block longer than w, and without tokens after the
// last real one of a row or segment, where no result is promised.
static std::vector<Part> parts_of(const Block& p) {
    std::vector<Part> parts;
    const int64_t N = p.l.N;
    for (int64_t b = 0; b < p.l.B; b++) {
        const int64_t* id = p.l.masks.run ? p.l.masks.run + b * N : nullptr;
        const uint8_t* real = real_row(p.l.masks, b, N);
        for (int64_t t = 0, e; t < N; t = e) {
            for (e = t + 1; e < N && (id ? id[e] == id[t] : e < t + p.w); e++) {}
            const bool ends = e == N || (id && id[e] >> 32 != id[t] >> 32);
            int64_t first = t, last = e;
            while (last - first > p.w && real && !real[first]) first++;
            while (last > first && (ends || last - first > p.w) && real && !real[last - 1]) last--;
            parts.push_back({b, t, e, first, last - first});
        }
    }
    return parts;
}

// The memory of one thread: a block of keys and values, also transposed, a strip of scores, and hashes of the keys.
struct Room {
    Strip x;
    Memory memory;
    float *k, *v, *kT, *vT, *dk, *dv, *A, *X;
    std::vector<uvec> keys;
    Room(const Shape& s, int64_t w)
        : x(s), memory(3 * padded(w) * (s.Dp + s.Ep) + 2 * STRIP * padded(w)), keys(padded(w) / W) {
        const int64_t wp = padded(w);
        k = memory.take(wp * s.Dp), kT = memory.take(wp * s.Dp), dk = memory.take(wp * s.Dp);
        v = memory.take(wp * s.Ep), vT = memory.take(wp * s.Ep), dv = memory.take(wp * s.Ep);
        A = memory.take(STRIP * wp), X = memory.take(STRIP * wp);
    }
};

// Tokens t .. t + n without gaps, 0 where masked; the rows and their number are padded.
static void pack(const Row& x, int64_t t, int64_t n, int64_t width, const uint8_t* real, float* to) {
    const int64_t ld = padded(width);
    for (int64_t i = 0; i < padded(n); i++, to += ld) {
        const bool there = i < n && (!real || real[t + i]);
        if (there) std::memcpy(to, x.p + (t + i) * x.ld, width * 4);
        std::fill(there ? to + width : to, to + ld, 0.0f);
    }
}

// `read` for the first columns of S, whose rows are ld apart.
static inline void read_some(
    int64_t M, int64_t K, int64_t columns, int64_t ld, Rows a, const float* S, Out o, const float* gain, Ahead* ahead) {
    EACH_PANEL(wide(M), columns, read_panel<V>(M, K, a, S + j, ld, {o.p + j, o.ld}, gain, ahead))
}

struct BlockHead : Head {
    const Block& p;
    const Part& part;
    int64_t wp;
    BlockHead(const Block& p_, const Part& part_, int64_t h)
        : Head(p_.l, part_.b * p_.l.H + h), p(p_), part(part_), wp(padded(p_.w)) {}

    void load_keys(Room& r) const {
        pack(k, part.t, part.n, s.D, real, r.k), pack(v, part.t, part.n, s.E, real, r.v);
        transpose(r.k, padded(part.n), s.D, s.Dp, r.kT, wp);
        for (int64_t c = 0; p.dropout != 0 && c < part.n; c += W) r.keys[c / W] = mixed(part.t + c);
    }
    // The rows from query i on of the next block: that of the next head, or after the last head the next in the row.
    Ahead next_block(int64_t i, int64_t with_each_tile, std::initializer_list<View> tensors) const {
        const int64_t h = Head::i % p.l.H + 1, t = part.t + i + (h == p.l.H ? part.n : 0);
        Ahead ahead(with_each_tile);
        for (const View& x : tensors) {
            const Row y = row(x, part.b, h % p.l.H);
            if (x.data) ahead.want(y.p + t * y.ld, y.ld, s.widest());
        }
        return ahead;
    }
    // The padded number of keys that a strip beginning with query i of the block needs.
    int64_t columns(int64_t i, int64_t M) const { return padded(p.causal ? i + M : part.n); }

    // Turns the scores of query i into weights, in place, up to a factor, which it returns; unseen keys get 0.
    float weigh(int64_t i, int64_t columns, float* a) const {
        const int64_t n = p.causal ? i + 1 : part.n;
        const float blank = p.rela ? 0.0f : NEVER;
        std::fill(a + n, a + columns, blank);
        for (int64_t j = 0; real && j < n; j++)
            if (!real[part.t + j]) a[j] = blank;
        vec top = vec{} + FLOOR, sum = {};
        for (int64_t c = 0; c < columns; c += W) {
            if (p.rela) store(a + c, most(load(a + c), vec{}));  // M6
            top = most(top, load(a + c));
        }
        if (p.rela) return 1;
        const float highest = largest(top);
        for (int64_t c = 0; c < columns; c += W) {
            const vec y = exp(load(a + c) - highest);
            store(a + c, y), sum += y;
        }
        const float y = total(sum);
        return y == 0 ? 1 : 1 / y;  // M5
    }

    // Which weights of query i are kept, for the keys from c on.
    struct Kept {
        uint32_t row;
        uvec least;
        const uvec* keys;
        auto operator()(int64_t c) const { return mix(keys[c / W] ^ row) >= least; }
    };
    Kept kept(int64_t i, const Room& r) const {
        const uint32_t row = hashed(hashed(mix(uint32_t(p.seed)), uint32_t(Head::i)), uint32_t(part.t + i));
        return {row, uvec{} + threshold(p.dropout), r.keys.data()};
    }
    float stretch() const { return float(1 / (1 - p.dropout)); }  // of the weights that are kept
    void drop(int64_t i, int64_t M, Room& r) const {
        if (p.dropout == 0) return;
        for (int64_t j = 0; j < M; j++) {
            const Kept stays = kept(i + j, r);
            float* a = r.A + j * wp;
            for (int64_t c = 0; c < columns(i, M); c += W) store(a + c, stays(c) ? load(a + c) : vec{});
            r.x.gain[j] *= stretch();
        }
    }

    // A of the M queries from number i on, and the factors of its rows.
    void weights(int64_t i, int64_t M, const float* scale, Room& r, Ahead& ahead) const {
        const int64_t c = columns(i, M);
        const Rows x = take(q, part.t + i, M, s.D, false, nullptr, 0, r.x.q);
        read_some(M, s.D, c, wp, x, r.kT, {r.A, wp}, scale, &ahead);
        for (int64_t j = 0; j < M; j++) r.x.gain[j] = weigh(i + j, c, r.A + j * wp);
    }

    // dX of those queries from g v^T, both in X, and R A with its factor. Meanwhile a dropped weight has a minus sign.
    template <bool DROPS>
    void slopes(int64_t i, int64_t M, Room& r) const {
        const int64_t c = columns(i, M);
        const float gain = stretch(), scale = float(p.scale);
        for (int64_t j = 0; j < M; j++) {
            float *a = r.A + j * wp, *x = r.X + j * wp;
            const float factor = r.x.gain[j];
            const Kept stays = kept(i + j, r);
            vec sum = {};
            for (int64_t e = 0; e < c; e += W) {
                vec A = load(a + e) * factor, dA = load(x + e);
                if constexpr (DROPS) {
                    const auto here = stays(e);
                    dA = here ? dA * gain : vec{};
                    store(x + e, dA), sum += A * dA;
                    A = here ? A : -A;
                } else {
                    sum += A * dA;
                }
                store(a + e, A);
            }
            const float mean = total(sum);
            for (int64_t e = 0; e < c; e += W) {
                const vec signs = load(a + e), A = DROPS ? most(signs, -signs) : signs, dA = load(x + e);
                store(x + e, (p.rela ? (A > 0.0f ? dA : vec{}) : A * (dA - mean)) * scale);
                if constexpr (DROPS) store(a + e, signs > 0.0f ? signs * gain : vec{});
            }
        }
    }

    // Where a strip's results are written, and how they get from there to their place.
    Out space(const Row& to, int64_t t, int64_t width, float* copy) const {
        return p.join ? Out{copy, padded(width)} : room(to, t, width, copy);
    }
    void settle(const Row& to, const Row& there, int64_t t, int64_t M, int64_t width, Out o) const {
        for (int64_t i = 0; i < M; i++) {
            float* y = to.p + (t + i) * to.ld;
            const float *x = o.p + i * o.ld, *z = there.p + (t + i) * there.ld;
            if (p.join)
                for (int64_t e = 0; e < width; e++) y[e] = 0.5f * (x[e] + z[e]);  // M15
            else if (y != x)
                std::memcpy(y, x, width * 4);
        }
    }
    // The padding that was left out sees nothing, and nothing sees it.
    void clear(const Row& to, const Row& there, int64_t width) const {
        for (int64_t t = part.from; t < part.to; t++)
            for (int64_t e = 0; (t < part.t || t >= part.t + part.n) && e < width; e++)
                to.p[t * to.ld + e] = p.join ? 0.5f * there.p[t * there.ld + e] : 0.0f;
    }
};

// f(head of a block, memory of its thread) for all blocks; `scale` for each row of a strip.
template <class F>
static void each_block(const Block& p, F f) {
    const std::vector<Part> parts = parts_of(p);
    const int64_t items = int64_t(parts.size()) * p.l.H;
    const int at_once = p.w > 256 ? 1 : 8;  // a large block is enough work for a thread, and there may be few
#pragma omp parallel num_threads(p.l.threads)
    {
        Room r(Shape(p.l), p.w);
        float scale[STRIP];
        std::fill(scale, scale + STRIP, float(p.scale));
#pragma omp for schedule(dynamic, at_once)
        for (int64_t j = 0; j < items; j++) f(BlockHead(p, parts[j / p.l.H], j % p.l.H), scale, r);
    }
}

extern "C" void linnet_block(const Block* problem) {
    each_block(*problem, [](const BlockHead& h, const float* scale, Room& r) {
        const Shape& s = h.s;
        const int64_t t = h.part.t, n = h.part.n;
        h.load_keys(r);
        for (int64_t i = 0, M; i < n; i += M) {
            M = std::min<int64_t>(STRIP, n - i);
            Ahead ahead = h.next_block(i, 2, {h.p.l.q, h.p.l.k, h.p.l.v, h.p.l.o, h.p.l.g});
            h.weights(i, M, scale, r, ahead);
            h.drop(i, M, r);
            const Out o = h.space(h.o, t + i, s.E, r.x.o);
            read(M, std::min(h.columns(i, M), n), s.Ep, {r.A, h.wp}, r.v, o, r.x.gain, &ahead);
            h.settle(h.o, h.g, t + i, M, s.E, o);
        }
        h.clear(h.o, h.g, s.E);
    });
}

extern "C" void linnet_block_backward(const Block* problem) {
    each_block(*problem, [](const BlockHead& h, const float* scale, Room& r) {
        const Shape& s = h.s;
        const int64_t t = h.part.t, n = h.part.n;
        float ones[STRIP];
        std::fill(ones, ones + STRIP, 1.0f);
        h.load_keys(r);
        transpose(r.v, padded(n), s.E, s.Ep, r.vT, h.wp);
        std::fill(r.dk, r.dk + n * s.Dp, 0.0f), std::fill(r.dv, r.dv + n * s.Ep, 0.0f);
        for (int64_t i = 0, M; i < n; i += M) {
            M = std::min<int64_t>(STRIP, n - i);
            const int64_t K = std::min(h.columns(i, M), n);
            Ahead ahead = h.next_block(
                i, 1, {h.p.l.q, h.p.l.k, h.p.l.v, h.p.l.g, h.p.l.dq, h.p.l.dk, h.p.l.dv});
            h.weights(i, M, scale, r, ahead);
            const Rows g = take(h.g, t + i, M, s.E, false, nullptr, 0, r.x.g);
            read_some(M, s.E, h.columns(i, M), h.wp, g, r.vT, {r.X, h.wp}, ones, &ahead);
            h.p.dropout == 0 ? h.slopes<false>(i, M, r) : h.slopes<true>(i, M, r);
            const Out dq = h.space(h.dq, t + i, s.D, r.x.o);
            read(M, K, s.Dp, {r.X, h.wp}, r.k, dq, ones, &ahead);
            h.settle(h.dq, h.dq, t + i, M, s.D, dq);
            write(M, K, s.Dp, {r.X, h.wp}, take(h.q, t + i, M, s.D, true, nullptr, 0, r.x.q), r.dk, &ahead);
            write(M, K, s.Ep, {r.A, h.wp}, take(h.g, t + i, M, s.E, true, nullptr, 0, r.x.g), r.dv);
        }
        h.settle(h.dk, h.dk, t, n, s.D, {r.dk, s.Dp}), h.settle(h.dv, h.dv, t, n, s.E, {r.dv, s.Ep});
        h.clear(h.dq, h.dq, s.D), h.clear(h.dk, h.dk, s.D), h.clear(h.dv, h.dv, s.E);
    });
}
