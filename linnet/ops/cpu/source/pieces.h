// Softmax attention of units of queries over a few pieces of the keys: windows, blocks anywhere, landmarks.
//
// The keys of a unit are copied side by side; from there on it is a block of block.h. A unit's gradients of keys are
// summed side by side too, and then added to those of the keys that they were copied from. M5 of docs/math.md.
#pragma once

#include "block.h"

struct Pieces {
    Linear l;          // k, v, dk, dv have K tokens, masks.real is (B, K); masks.run is not used
    int64_t K, unit;   // queries that share their keys
    int64_t most;      // pieces of a unit
    int64_t widest;    // keys of a unit
    const int64_t* piece;  // (B or 1, H or 1, units, most, 2): the first key, and how many
    int64_t piece_b, piece_h;
    const int64_t* band;  // (N, 2): first and last key of piece 0 that a query sees, the last excluded; null: all
    double scale;
};

// So many keys that rows of scores would fall into the same few lines of the first-level cache: more than enough for
// windows and landmarks, but not for landmarks that see all keys.
constexpr int64_t LONG_ROW = 512;

// From one row of scores to the next.
static inline int64_t pitch(int64_t keys) { return padded(keys) + (padded(keys) < LONG_ROW ? 0 : W); }

// Columns of X (rows x columns) as rows, a panel of two vectors of each after the other.
PLAIN void turn_panels(const float* X, int64_t rows, int64_t columns, int64_t ldx, float* Y) {
    for (int64_t c = 0, n; c < rows; c += n) {
        n = std::min<int64_t>(2 * W, rows - c);
        transpose(X + c * ldx, n, columns, ldx, Y + c * columns, n);
    }
}

// M rows of a times these panels.
PLAIN void read_panels(int64_t M, int64_t K, int64_t columns, Rows a, const float* S, Out o, const float* gain) {
    for (int64_t c = 0; c < columns; c += 2 * W) {
        const Out to = {o.p + c, o.ld};
        if (columns - c > W)
            read_panel<2>(M, K, a, S + c * K, 2 * W, to, gain);
        else
            read_panel<1>(M, K, a, S + c * K, W, to, gain);
    }
}

struct Unit : Head {
    const Pieces& p;
    const uint8_t* there;  // which keys are real, or null
    int64_t t, n, keys = 0, wp;
    bool hides = false;
    struct Piece {
        int64_t from, many, at;  // its first key, how many, and where they are copied to
    };
    std::vector<Piece> pieces;
    Unit(const Pieces& p_, int64_t i, int64_t u)
        : Head(p_.l, i), p(p_), there(real_row(p_.l.masks, b, p_.K)),
          t(u * p_.unit), n(std::min(p_.unit, p_.l.N - t)), wp(pitch(p_.widest)) {
        const int64_t* x = p.piece + b * p.piece_b + i % p.l.H * p.piece_h + u * p.most * 2;
        for (int64_t j = 0; j < p.most; j++, x += 2) {  // numbers that changed since they were made read no other memory
            const int64_t from = std::clamp<int64_t>(x[0], 0, p.K);
            const int64_t many = std::clamp<int64_t>(x[1], 0, std::min(p.K - from, p.widest - keys));
            pieces.push_back({from, many, keys}), keys += many;
        }
    }
    void load(Room& r, std::vector<uint8_t>& hidden) {
        for (const Piece& x : pieces) {
            pack_rows(k, x, s.D, r.k + x.at * s.Dp), pack_rows(v, x, s.E, r.v + x.at * s.Ep);
            for (int64_t j = 0; there && j < x.many; j++) hides |= hidden[x.at + j] = !there[x.from + j];
        }
        std::fill(r.k + keys * s.Dp, r.k + padded(keys) * s.Dp, 0.0f);
        std::fill(r.v + keys * s.Ep, r.v + padded(keys) * s.Ep, 0.0f);
        if (wp < LONG_ROW)
            transpose(r.k, padded(keys), s.D, s.Dp, r.kT, wp);
        else
            turn_panels(r.k, padded(keys), s.D, s.Dp, r.kT);
    }
    // The content of a masked key is not read.
    void pack_rows(const Row& x, const Piece& y, int64_t width, float* to) const {
        const int64_t ld = padded(width);
        for (int64_t j = y.from; j < y.from + y.many; j++, to += ld) {
            const bool real_key = !there || there[j];
            if (real_key) std::memcpy(to, x.p + j * x.ld, width * 4);
            std::fill(real_key ? to + width : to, to + ld, 0.0f);
        }
    }
    // Turns the scores of a query into weights, in place, up to a factor, which it returns; unseen keys get 0.
    float weigh(int64_t query, float* a, const std::vector<uint8_t>& hidden) const {
        const int64_t columns = padded(keys);
        std::fill(a + keys, a + columns, NEVER);
        if (p.band) {
            const Piece& x = pieces[0];
            std::fill(a, a + std::clamp<int64_t>(p.band[2 * query] - x.from, 0, x.many), NEVER);
            std::fill(a + std::clamp<int64_t>(p.band[2 * query + 1] - x.from, 0, x.many), a + x.many, NEVER);
        }
        for (int64_t j = 0; hides && j < keys; j++)
            if (hidden[j]) a[j] = NEVER;
        vec top = vec{} + FLOOR, sum = {};
        for (int64_t c = 0; c < columns; c += W) top = most(top, ::load(a + c));
        const float highest = largest(top);
        for (int64_t c = 0; c < columns; c += W) {
            const vec y = exp(::load(a + c) - highest);
            store(a + c, y), sum += y;
        }
        const float y = total(sum);
        return y == 0 ? 1 : 1 / y;  // M5
    }
    void weights(int64_t i, int64_t M, const float* scale, Room& r, const std::vector<uint8_t>& hidden) const {
        const Rows x = take(q, t + i, M, s.D, false, nullptr, 0, r.x.q);
        if (wp < LONG_ROW)
            read_some(M, s.D, padded(keys), wp, x, r.kT, {r.A, wp}, scale, nullptr);
        else
            read_panels(M, s.D, padded(keys), x, r.kT, {r.A, wp}, scale);
        for (int64_t j = 0; j < M; j++) r.x.gain[j] = weigh(t + i + j, r.A + j * wp, hidden);
    }
    // dX in X from g v^T, and A with its factor.
    void slopes(int64_t M, Room& r) const {
        const float scale = float(p.scale);
        for (int64_t j = 0; j < M; j++) {
            float *a = r.A + j * wp, *x = r.X + j * wp;
            vec sum = {};
            for (int64_t e = 0; e < padded(keys); e += W) {
                const vec A = ::load(a + e) * r.x.gain[j];
                store(a + e, A), sum += A * ::load(x + e);
            }
            const float mean = total(sum);
            for (int64_t e = 0; e < padded(keys); e += W) store(x + e, ::load(a + e) * (::load(x + e) - mean) * scale);
        }
    }
    void put_rows(const Row& to, int64_t M, int64_t width, int64_t i, Out o) const {
        for (int64_t j = 0; width % W && j < M; j++) std::memcpy(to.p + (t + i + j) * to.ld, o.p + j * o.ld, width * 4);
    }
    void add_rows(const Row& to, int64_t width, const float* from) const {
        const int64_t ld = padded(width);
        for (const Piece& x : pieces)
            for (int64_t j = 0; j < x.many; j++)
                if (!there || there[x.from + j]) add(to.p + (x.from + j) * to.ld, from + (x.at + j) * ld, width);
    }
};

// f(unit, memory of its thread, which of its keys are masked) for all units; a thread has all units of a head, so that
// no two threads add to the same gradient.
template <class F>
static void each_unit(const Pieces& p, F f) {
#pragma omp parallel num_threads(p.l.threads)
    {
        Room r(Shape(p.l), pitch(p.widest));
        std::vector<uint8_t> hidden(padded(p.widest));
        float scale[STRIP], ones[STRIP];
        std::fill(scale, scale + STRIP, float(p.scale)), std::fill(ones, ones + STRIP, 1.0f);
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < p.l.B * p.l.H; i++)
            for (int64_t u = 0; u * p.unit < p.l.N; u++) {
                Unit unit(p, i, u);
                unit.load(r, hidden);
                f(unit, r, hidden, scale, ones);
            }
    }
}

extern "C" void linnet_pieces(const Pieces* problem) {
    each_unit(*problem, [](const Unit& h, Room& r, const std::vector<uint8_t>& hidden, const float* scale, const float*) {
        for (int64_t i = 0, M; i < h.n; i += M) {
            M = std::min<int64_t>(STRIP, h.n - i);
            h.weights(i, M, scale, r, hidden);
            const Out o = room(h.o, h.t + i, h.s.E, r.x.o);
            read(M, h.keys, h.s.Ep, {r.A, h.wp}, r.v, o, r.x.gain);
            h.put_rows(h.o, M, h.s.E, i, o);
        }
    });
}

extern "C" void linnet_pieces_backward(const Pieces* problem) {
    each_unit(*problem, [](const Unit& h, Room& r, const std::vector<uint8_t>& hidden, const float* scale, const float* ones) {
        const Shape& s = h.s;
        if (h.wp < LONG_ROW)
            transpose(r.v, padded(h.keys), s.E, s.Ep, r.vT, h.wp);
        else
            turn_panels(r.v, padded(h.keys), s.E, s.Ep, r.vT);
        std::fill(r.dk, r.dk + h.keys * s.Dp, 0.0f), std::fill(r.dv, r.dv + h.keys * s.Ep, 0.0f);
        for (int64_t i = 0, M; i < h.n; i += M) {
            M = std::min<int64_t>(STRIP, h.n - i);
            h.weights(i, M, scale, r, hidden);
            const Rows g = take(h.g, h.t + i, M, s.E, false, nullptr, 0, r.x.g);
            if (h.wp < LONG_ROW)
                read_some(M, s.E, padded(h.keys), h.wp, g, r.vT, {r.X, h.wp}, ones, nullptr);
            else
                read_panels(M, s.E, padded(h.keys), g, r.vT, {r.X, h.wp}, ones);
            h.slopes(M, r);
            const Out dq = room(h.dq, h.t + i, s.D, r.x.o);
            read(M, h.keys, s.Dp, {r.X, h.wp}, r.k, dq, ones);
            h.put_rows(h.dq, M, s.D, i, dq);
            write(M, h.keys, s.Dp, {r.X, h.wp}, take(h.q, h.t + i, M, s.D, true, nullptr, 0, r.x.q), r.dk);
            write(M, h.keys, s.Ep, {r.A, h.wp}, take(h.g, h.t + i, M, s.E, true, nullptr, 0, r.x.g), r.dv);
        }
        h.add_rows(h.dk, s.D, r.dk), h.add_rows(h.dv, s.E, r.dv);
    });
}
