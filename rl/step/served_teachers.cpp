#include "rl/step/served_teachers.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "rl/config/record_choices.h"
#include "rl/config/teacher.h"
#include "sp/mesh/rank_work.h"

namespace ringside::rl {
namespace {

// The documents of one server, and the first column of each one's entries.
struct Asked {
  std::vector<ServedDocument> documents;
  std::vector<int64_t> first_token;
};

// The document's ids, and where its entries' targets are among them.
ServedDocument served_document(const sp::Document& document) {
  ServedDocument served{document.ids, {}};
  const auto& [source, target, sample] = document.entries;
  for (std::size_t e = 0; e < source.size(); ++e) {
    if (source[e] + 1 == std::ssize(served.ids)) {
      served.ids.push_back(target[e]);  // the last token, which the model does not see
    }
    TORCH_CHECK(served.ids.at(source[e] + 1) == target[e],
                "teacher: a target is not the token behind its source");
    served.places.push_back(source[e] + 1);
  }
  return served;
}

void check_temperature(const StepColumns& columns, int64_t token) {
  if (columns.temperature[token] != 1.0) {
    throw std::runtime_error("a rollout was sampled at temperature " +
                             std::to_string(columns.temperature[token]) +
                             ", but its teacher is on a server, whose log-probs are at temperature "
                             "1; expected rollouts of temperature 1");
  }
}

}  // namespace

ServedTeachers::ServedTeachers(const Config& config, int64_t words) : config_(config) {
  const auto teachers = teachers_of(config.algorithm.distillation);
  for (std::size_t t = 0; t < teachers.size(); ++t) {
    if (teachers[t].is_server()) {
      servers_.try_emplace(static_cast<int64_t>(t), config.algorithm.distillation,
                           teachers[t].place, words);
    }
  }
}

void ServedTeachers::fill(std::span<const MiniBatch> mini_batches, const StepColumns& columns,
                          ServedColumns& said) const {
  std::map<int64_t, Asked> asked;
  for (const MiniBatch& mini_batch : mini_batches) {
    int64_t token = mini_batch.first_token;
    for (const sp::Document& document : mini_batch.documents) {
      const int64_t place = teacher_of_kind(document.kind, config_);
      if (has(place) && document.entries.size() > 0) {
        check_temperature(columns, token);
        asked[place].documents.push_back(served_document(document));
        asked[place].first_token.push_back(token);
      }
      token += document.entries.size();
    }
  }
  for (const auto& [place, of_server] : asked) {
    const auto scores = servers_.at(place).score(of_server.documents);
    for (std::size_t d = 0; d < scores.size(); ++d) {
      const auto put = [&](const at::Tensor& all, const auto& values) {
        const at::Tensor rows =
            all.narrow(0, of_server.first_token[d], std::ssize(of_server.documents[d].places));
        rows.copy_(at::tensor(values).view(rows.sizes()));
      };
      put(said.logprobs_N, scores[d].logprobs);
      put(said.top_ids_NK, scores[d].top_ids);
      put(said.top_logprobs_NK, scores[d].top_logprobs);
    }
  }
}

ServedColumns ServedTeachers::ask(std::span<const MiniBatch> mini_batches,
                                  const StepColumns& columns, sp::Communicator& world,
                                  std::chrono::milliseconds round) const {
  const DistillationConfig& distillation = config_.algorithm.distillation;
  const auto tokens = static_cast<int64_t>(columns.rollout.size());
  const int64_t k = distillation.over == DistillationOver::kTopK ? distillation.top_k : 0;
  ServedColumns said{at::zeros({tokens}, at::kFloat), at::zeros({tokens, k}, at::kInt),
                     at::zeros({tokens, k}, at::kFloat)};
  const std::function<void()> work = [&] { fill(mini_batches, columns, said); };
  sp::run_rank_work(world, round, world.rank() == 0 ? work : std::function<void()>());
  for (at::Tensor* column : {&said.logprobs_N, &said.top_ids_NK, &said.top_logprobs_NK}) {
    if (column->numel() > 0) {
      world.broadcast(*column, 0, "teacher");
    }
  }
  return said;
}

}  // namespace ringside::rl
