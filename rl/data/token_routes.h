// Replayed routes of a step's tokens: the routed experts of rollouts as rows of documents.
// Torch-free.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rollout_bridge/protocol/branches.h"
#include "rollout_bridge/protocol/schema.h"
#include "sp/batch/document.h"

namespace ringside::rl {

// The experts that replayed tokens use, as a field of documents.
inline constexpr const char* kRoutesField = "routes";

// The rows of all documents of a step have one form: the ids of each layer with experts in order,
// of one or two bytes (little-endian). Thread safety: const functions from any thread.
class TokenRoutes {
 public:
  // Rollouts without routes are those that failed.
  // Throws: std::invalid_argument naming a rollout whose routes have other layers, or another
  // number of experts a token, than those of an earlier one.
  explicit TokenRoutes(std::span<const bridge::Rollout> rollouts);

  // Whether a rollout of the step has routes.
  bool any() const { return layers_ > 0; }
  // The field kRoutesField of the tokens of a branch but its last. A rollout without routes gets
  // made-up ones: it carries no loss. Only if any().
  // Shapes: [ids of the branch - 1, layers with experts x experts a token], uint8 or int16.
  sp::TokenField field(const bridge::Rollout& rollout, const bridge::BranchPath& path) const;

 private:
  void append(std::vector<uint8_t>& rows, const bridge::RoutedExperts& routed, int64_t begin,
              int64_t end) const;
  void append_made_up(std::vector<uint8_t>& rows, int64_t begin, int64_t end) const;
  void append_id(std::vector<uint8_t>& rows, int64_t id) const;

  int64_t layers_ = 0;  // 0: no rollout has routes
  int64_t per_token_ = 0;
  int64_t id_bytes_ = 1;
  int64_t experts_ = 0;  // largest id + 1
};

}  // namespace ringside::rl
