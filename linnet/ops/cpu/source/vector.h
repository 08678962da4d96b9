// Vectors of the widest kind that the compiler may use, and small pieces of memory, from one source for every processor.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#if defined(__AVX512F__)
constexpr int W = 16;  // floats in a vector
#elif defined(__AVX__)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif

typedef float vec __attribute__((vector_size(W * 4)));
typedef int32_t ivec __attribute__((vector_size(W * 4)));
typedef float loose __attribute__((vector_size(W * 4), aligned(4), may_alias));  // at any address

static inline vec load(const float* p) { return *reinterpret_cast<const loose*>(p); }
static inline void store(float* p, vec x) { *reinterpret_cast<loose*>(p) = x; }

// The next multiple of W: what rows of vectors are padded to.
static inline int64_t padded(int64_t width) { return (width + W - 1) / W * W; }

// Floats on a cache line's boundary, freed at the end of a scope.
class Memory {
  public:
    explicit Memory(int64_t floats) : data_(nullptr) {
        const size_t bytes = (static_cast<size_t>(std::max<int64_t>(floats, 1)) * 4 + 63) / 64 * 64;
        if (posix_memalign(reinterpret_cast<void**>(&data_), 64, bytes) != 0) std::abort();
    }
    ~Memory() { std::free(data_); }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    float* take(int64_t floats) {  // the next piece, itself on a boundary of vectors
        float* piece = data_ + used_;
        used_ += padded(floats);
        return piece;
    }

  private:
    float* data_;
    int64_t used_ = 0;
};

static inline float dot(const float* a, const float* b, int64_t n) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}
