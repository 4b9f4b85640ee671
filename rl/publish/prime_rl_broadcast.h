// Weight transfer to prime-rl's inference servers through a shared directory.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>

#include "engine/models/weight_export.h"

namespace ringside::rl {

// Writes ROOT/step_N anew and marks it .sender_ready. The orchestrator answers with
// .receiver_ready. Then follow .started, the files of a Hugging Face directory, and .finished.
// Versions before N - 1 are removed. (Earlier versions of prime-rl wait for a file STABLE instead
// and are not supported.)
// Source: filesystem broadcast of PrimeIntellect-ai/prime-rl at commit 114f3ca4,
// src/prime_rl/transports/weights/base.py.
class PrimeRlBroadcast {
 public:
  // root: prime-rl's OUTPUT_DIR/broadcasts. storage: kFloat, kDouble or kBFloat16. copy_from: of
  // engine::SaveOptions. patience: longest wait for the orchestrator.
  PrimeRlBroadcast(std::filesystem::path root, at::ScalarType storage,
                   std::filesystem::path copy_from, std::chrono::milliseconds patience);

  // Publishes one version. For use in a sink.
  // Blocks: on the orchestrator's answer, at most `patience`, and on the disk.
  // Throws: std::runtime_error naming the marker when no answer arrives;
  // std::filesystem::filesystem_error or std::runtime_error when the disk fails.
  // Collective over: as engine::UnitExport::next().
  void publish(engine::UnitExport& units, int64_t version) const;

 private:
  void wait_for(const std::filesystem::path& marker) const;
  void prune(int64_t version) const;

  std::filesystem::path root_;
  at::ScalarType storage_;
  std::filesystem::path copy_from_;
  std::chrono::milliseconds patience_;
};

}  // namespace ringside::rl
