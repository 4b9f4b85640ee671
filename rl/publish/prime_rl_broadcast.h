// Weights to prime-rl's inference servers, through a directory that both sides see.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>

#include "engine/models/decoder.h"

namespace ringside::rl {

// Filesystem broadcast of PrimeIntellect-ai/prime-rl at commit 114f3ca4
// (src/prime_rl/transports/weights/base.py): ROOT/step_N is made anew, marked .sender_ready; the
// orchestrator answers .receiver_ready; then .started, a Hugging Face directory's files, .finished.
// Versions before N - 1 are removed. (Earlier versions of prime-rl look for a file STABLE instead.)
class PrimeRlBroadcast {
 public:
  // root: prime-rl's OUTPUT_DIR/broadcasts. storage: kFloat, kDouble or kBFloat16. tokenizer_from:
  // directory whose tokenizer files go along, may be empty.
  PrimeRlBroadcast(std::filesystem::path root, at::ScalarType storage,
                   std::filesystem::path tokenizer_from, std::chrono::milliseconds patience);

  // Blocks for the orchestrator's answer, at most `patience`, and for the disk. Throws
  // std::runtime_error naming the marker when no answer comes, and
  // std::filesystem::filesystem_error or std::runtime_error when the disk fails.
  void publish(const engine::Decoder& decoder, int64_t version) const;

 private:
  void wait_for(const std::filesystem::path& marker) const;
  void prune(int64_t version) const;

  std::filesystem::path root_;
  at::ScalarType storage_;
  std::filesystem::path tokenizer_from_;
  std::chrono::milliseconds patience_;
};

}  // namespace ringside::rl
