// Bench of the gated delta rule: milliseconds of forward and backward of one document, one line a
// length. Usage: bench_delta_net HEADS DIM THREADS LENGTH...
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <vector>

#include "engine/nn/delta_rule.h"

namespace {

using namespace ringside::engine;

constexpr int kRepeats = 5;

double milliseconds(int64_t heads, int64_t dim, int64_t length) {
  at::manual_seed(1);
  const auto unit = [](const at::Tensor& x) { return x / x.norm(2, {2}, true); };
  DeltaRows rows{unit(at::randn({length, heads, dim})), unit(at::randn({length, heads, dim})),
                 at::randn({length, heads, dim}), -0.1 * at::rand({length, heads}),
                 at::rand({length, heads})};
  for (at::Tensor* x : {&rows.q_SkK, &rows.k_SkK, &rows.v_ShV, &rows.g_Sh, &rows.beta_Sh}) {
    x->set_requires_grad(true);
  }
  const at::Tensor d_out = at::randn({length, heads, dim});
  const auto tables = std::make_shared<const ChunkTables>(
      std::vector<RecurrentRun>{{0, length, -1}}, length, at::kCPU);
  double best = std::numeric_limits<double>::max();
  for (int i = 0; i < kRepeats; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    delta_rule(rows, tables).out_ShV.backward(d_out);
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    best = std::min(best, took.count());
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fprintf(stderr, "usage: bench_delta_net HEADS DIM THREADS LENGTH...\n");
    return 2;
  }
  at::set_num_threads(std::atoi(argv[3]));
  for (int i = 4; i < argc; ++i) {
    const int64_t length = std::atoll(argv[i]);
    std::printf("%lld %.2f\n", static_cast<long long>(length),
                milliseconds(std::atoll(argv[1]), std::atoll(argv[2]), length));
  }
}
