// The file to compile: every kernel, behind plain C functions that take one pointer to a problem.
#include "bidirectional.h"
#include "block.h"
#include "causal.h"
#include "decode.h"
#include "dropout.h"
#include "exp_bidirectional.h"
#include "exp_causal.h"
#include "glu.h"
#include "moments.h"
#include "norm.h"
#include "pieces.h"
#include "rotate.h"
#include "sample.h"

#include <cmath>

extern "C" int linnet_floats() { return W; }

#if defined(_OPENMP)
extern "C" int linnet_openmp() { return 1; }
#else
extern "C" int linnet_openmp() { return 0; }
#endif

// Runs once after compilation, in a separate process: 0 if the kernels run and are right on this processor.
extern "C" int linnet_check() {
    constexpr int64_t N = 70, D = 12;
    Memory memory(N * D + D * D);
    float *x = memory.take(N * D), *S = memory.take(D * D);
    Memory results(N * D);
    for (int64_t i = 0; i < N * D; i++) x[i] = static_cast<float>(i % 7) - 2.5f;
    const View in = {x, 0, 0, D}, out = {results.take(N * D), 0, 0, D};
    Linear p = {};
    p.B = p.H = p.threads = p.group = p.spans = 1, p.N = N, p.D = p.E = D;
    p.q = p.k = p.v = in, p.o = out, p.S1 = S;
    linnet_causal(&p);
    for (int64_t t = 0; t < N; t++)
        for (int64_t e = 0; e < D; e++) {
            double sum = 0;
            for (int64_t s = 0; s <= t; s++) sum += double(dot(x + t * D, x + s * D, D)) * x[s * D + e];
            if (!(std::abs(sum - out.data[t * D + e]) < 1)) return 1;  // sums are whole numbers of up to a thousand
        }
    return 0;
}
