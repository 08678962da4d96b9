// Random numbers as a function of a seed and of coordinates: those of linnet/ops/draws.py.
#pragma once

#include "vector.h"

// A permutation of the 32-bit numbers that leaves no pattern.
template <class T>
SMALL T mix(T x) {
    for (int i = 0; i < 2; i++) x = (x ^ (x >> 16)) * 0x45D9F3Bu + 0x9E3779B9u;
    return x ^ (x >> 16);
}

// The draw at one more coordinate.
SMALL uint32_t draw(uint32_t h, uint32_t x) { return mix(h ^ mix(x)); }

// Those at s, s + 1, ...
SMALL uvec draw(uint32_t h, int64_t s) {
    uvec x;
    for (int i = 0; i < W; i++) x[i] = uint32_t(s) + i;
    return mix(mix(x) ^ h);
}
