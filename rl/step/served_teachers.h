// Teachers on servers: rank 0 asks them about a step's documents before it is scored, and all ranks
// get what they say. So every layout computes with the same numbers.
// Shapes: N = loss tokens of the step, K = most likely tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <span>

#include "rl/algorithm/step_columns.h"
#include "rl/config/config.h"
#include "rl/data/training_batch.h"
#include "rl/step/teacher_server.h"
#include "sp/mesh/communicator.h"

namespace ringside::rl {

// By the loss tokens' places in the step's columns; 0 where another teacher judges. On the host.
struct ServedColumns {
  at::Tensor logprobs_N;       // fp32
  at::Tensor top_ids_NK;       // int32; K is 0 unless over top_k
  at::Tensor top_logprobs_NK;  // fp32
};

// Thread safety: none.
class ServedTeachers {
 public:
  // words: of the policy. config must outlive it.
  // Throws: as TeacherServer.
  ServedTeachers(const Config& config, int64_t words);

  // Whether teacher `place` of teachers_of() is on a server; whether any is.
  bool has(int64_t place) const { return servers_.contains(place); }
  bool any() const { return !servers_.empty(); }

  // What the servers say of the documents that they are to judge.
  // round: of waiting, as sp::run_rank_work().
  // Collective over: world. Blocks: until all documents are judged.
  // Throws: on rank 0 as TeacherServer::score(), and for a token sampled at another temperature
  // than 1; on other ranks sp::RankFailed.
  ServedColumns ask(std::span<const MiniBatch> mini_batches, const StepColumns& columns,
                    sp::Communicator& world, std::chrono::milliseconds round) const;

 private:
  void fill(std::span<const MiniBatch> mini_batches, const StepColumns& columns,
            ServedColumns& said) const;

  const Config& config_;
  std::map<int64_t, TeacherServer> servers_;  // by place
};

}  // namespace ringside::rl
