// Guards the fuzzers' findings without a fuzzer: every file of the corpus, and mutations of it, go
// through the same entry points; a broken rule ends the test by abort().
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

#include "rollout_bridge/prime_rl/codec.h"
#include "rollout_bridge/protocol/codec.h"
#include "rollout_bridge/weights/manifest_codec.h"
#include "tests/fuzz/entries.h"

namespace ringside::bridge {
namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<uint8_t>;
constexpr int kMutations = 100;
using Entry = void (*)(std::span<const uint8_t>);

// A fuzzer names what it keeps by its SHA-1; make_corpus gives its seeds words.
bool is_seed(const fs::path& path) {
  constexpr std::size_t kHash = 40;
  return path.filename().string().size() != kHash;
}

std::vector<Bytes> files_of(const std::string& name, bool seeds_only = false) {
  std::vector<Bytes> out;
  for (const auto& file : fs::directory_iterator(fs::path(RINGSIDE_FUZZ_CORPUS) / name)) {
    if (seeds_only && !is_seed(file.path())) {
      continue;
    }
    std::ifstream in(file.path(), std::ios::binary);
    out.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return out;
}

void replay(const std::string& name, Entry entry) {
  const std::vector<Bytes> files = files_of(name);
  REQUIRE(files.size() >= 2);
  std::mt19937 rng(7);
  for (const Bytes& bytes : files) {
    entry(bytes);
    for (int i = 0; i < kMutations && !bytes.empty(); ++i) {
      Bytes changed = bytes;
      for (uint32_t k = rng() % 4; k > 0; --k) {
        changed[rng() % changed.size()] = static_cast<uint8_t>(rng());
      }
      if (rng() % 4 == 0) {
        changed.resize(rng() % changed.size());
      }
      entry(changed);
    }
  }
}

TEST_CASE("the corpus and its mutations break no rule", "[fuzz]") {
  for (const fuzz::Format& format : fuzz::kFormats) {
    INFO(format.name);
    replay(format.name, format.entry);
  }
  SUCCEED("no abort");
}

TEST_CASE("the seeds are valid: a fuzzer starts from what is accepted", "[fuzz]") {
  for (const Bytes& bytes : files_of("wire", true)) {
    CHECK(parse_flat(std::as_bytes(std::span(bytes)), {}).ok());
  }
  std::size_t accepted = 0;
  for (const Bytes& bytes : files_of("codec", true)) {
    const auto message = parse_flat(std::as_bytes(std::span(bytes)), {});
    if (message && decode_rollout(message.value()).ok()) {
      ++accepted;
    }
  }
  CHECK(accepted >= 9);
  accepted = 0;
  for (const Bytes& bytes : files_of("image_message", true)) {
    const auto message = parse_flat(std::as_bytes(std::span(bytes)), {});
    accepted += message && read_image_head(message.value()).ok() ? 1 : 0;
  }
  CHECK(accepted >= 3);
  accepted = 0;
  for (const Bytes& bytes : files_of("manifest", true)) {
    if (decode_manifest(std::as_bytes(std::span(bytes))).ok()) {
      ++accepted;
    }
  }
  CHECK(accepted >= 2);
  accepted = 0;
  for (const Bytes& bytes : files_of("prime_step", true)) {
    const auto step = prime_rl::decode_step(std::as_bytes(std::span(bytes)), {});
    accepted += step ? step.value().rollouts.size() : 0;
  }
  CHECK(accepted >= 4);
}

}  // namespace
}  // namespace ringside::bridge
