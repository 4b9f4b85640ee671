// Bench of weight deltas: cost of sending 64 MiB of bf16 weights as changes. Measures encoding,
// applying and bytes on the wire by density of changes, beside a memcpy and a hash of the same
// bytes in the same run. Prints one JSON object per line.
//
// Usage: bench_delta [repetitions]
// One thread. Changes are single steps of the last bf16 digit at random places of normally
// distributed weights. The figures are medians of the repetitions. MB/s are 10^6 bytes of the whole
// tensor, changed or not.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "rollout_bridge/weights/delta_codec.h"
#include "rollout_bridge/weights/snapshot.h"
#include "tools/bench/bridge/words.h"

namespace {

using namespace ringside;
using bench::normal_words;
using bench::Words;

constexpr std::size_t kElements = std::size_t{32} << 20;

std::span<const std::byte> bytes_of(const Words& words) { return std::as_bytes(std::span(words)); }

double median_seconds(int repetitions, const std::function<void()>& action) {
  std::vector<double> seconds;
  for (int i = 0; i < repetitions; ++i) {
    const auto start = std::chrono::steady_clock::now();
    action();
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

double megabytes_per_second(double seconds) {
  return static_cast<double>(kElements * sizeof(uint16_t)) / seconds / 1e6;
}

void run_density(const Words& base, double density, int repetitions) {
  std::mt19937 rng(2);
  std::uniform_real_distribution<double> uniform;
  Words next = base;
  for (uint16_t& w : next) {
    if (uniform(rng) < density) {
      w = static_cast<uint16_t>(rng() % 2 == 0 ? w + 1 : w - 1);
    }
  }
  std::optional<bridge::Overwrite> delta;
  const double encode = median_seconds(
      repetitions, [&] { delta = bridge::encode_overwrite(bytes_of(base), bytes_of(next), 2); });
  if (!delta) {
    std::printf("{\"density\": %g, \"sent\": \"dense\"}\n", density);
    return;
  }
  Words target = base;
  bool applied = true;
  const double apply = median_seconds(repetitions, [&] {
    applied = applied && bridge::apply_overwrite(delta->payload, delta->changed, 2,
                                                 std::as_writable_bytes(std::span(target)))
                             .ok();
  });
  if (!applied || target != next) {
    std::fprintf(stderr, "bench_delta: density %g came back as other bytes\n", density);
    std::exit(1);
  }
  const auto payload = static_cast<double>(delta->payload.size());
  std::printf(
      "{\"density\": %g, \"changed\": %llu, \"payload_bytes\": %zu, \"bytes_per_change\": %.3f, "
      "\"share_of_dense\": %.4f, \"encode_MB_s\": %.0f, \"apply_MB_s\": %.0f}\n",
      density, static_cast<unsigned long long>(delta->changed), delta->payload.size(),
      payload / static_cast<double>(delta->changed), payload / (kElements * sizeof(uint16_t)),
      megabytes_per_second(encode), megabytes_per_second(apply));
}

}  // namespace

int main(int argc, char** argv) {
  const int repetitions = argc > 1 ? std::max(1, std::atoi(argv[1])) : 5;
  const Words base = normal_words(kElements);
  Words copy(kElements);
  std::string hash;
  const double memcpy_s = median_seconds(
      repetitions, [&] { std::memcpy(copy.data(), base.data(), kElements * sizeof(uint16_t)); });
  const double hash_s =
      median_seconds(repetitions, [&] { hash = bridge::tensor_hash(bytes_of(copy)); });
  std::printf("{\"bytes\": %zu, \"memcpy_MB_s\": %.0f, \"hash_MB_s\": %.0f, \"xxh3\": \"%s\"}\n",
              kElements * sizeof(uint16_t), megabytes_per_second(memcpy_s),
              megabytes_per_second(hash_s), hash.c_str());
  for (const double density : {0.001, 0.01, 0.03, 0.1, 0.5}) {
    run_density(base, density, repetitions);
  }
  return 0;
}
