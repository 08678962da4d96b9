// Random numbers as a function of a seed and of coordinates: those of linnet/ops/hashing.py.
#pragma once

#include "vector.h"

// A permutation of the 32-bit numbers that leaves no pattern.
template <class T>
SMALL T mix(T x) {
    for (int i = 0; i < 2; i++) x = (x ^ (x >> 16)) * 0x45D9F3Bu + 0x9E3779B9u;
    return x ^ (x >> 16);
}

// The draw at one more coordinate.
SMALL uint32_t hashed(uint32_t h, uint32_t x) { return mix(h ^ mix(x)); }

// What the draws at s, s + 1, ... have in common for every h: hashed(h, s) = mix(mixed(s) ^ h).
SMALL uvec mixed(int64_t s) {
    uvec x;
    for (int i = 0; i < W; i++) x[i] = uint32_t(s) + i;
    return mix(x);
}

// A draw below this drops, which happens with probability p.
SMALL uint32_t threshold(double p) { return uint32_t(p * 4294967296.0); }
