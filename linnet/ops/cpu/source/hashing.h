// Random numbers as a function of a seed and coordinates, the same as in linnet/ops/hashing.py.
#pragma once

#include "vector.h"

// A permutation of the 32-bit numbers that leaves no pattern.
template <class T>
SMALL T mix(T x) {
    for (int i = 0; i < 2; i++) x = (x ^ (x >> 16)) * 0x45D9F3Bu + 0x9E3779B9u;
    return x ^ (x >> 16);
}

// The hash h extended by one coordinate.
SMALL uint32_t hashed(uint32_t h, uint32_t x) { return mix(h ^ mix(x)); }

// The part of the hashes at s, s + 1, ... that every h shares: hashed(h, s) = mix(mixed(s) ^ h).
SMALL uvec mixed(int64_t s) {
    uvec x;
    for (int i = 0; i < W; i++) x[i] = uint32_t(s) + i;
    return mix(x);
}

// A hash is below this, and so drops, with probability p.
SMALL uint32_t threshold(double p) { return uint32_t(p * 4294967296.0); }
