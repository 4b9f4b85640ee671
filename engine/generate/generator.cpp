#include "engine/generate/generator.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

#include "engine/generate/kv_cache.h"
#include "engine/ops/head_logits.h"

namespace ringside::engine {
namespace {

// Live share of the rows below which finished rows are dropped from the cache. Copying the cache
// for each finished row would cost more than computing the row.
constexpr double kCompactBelowLiveShare = 0.8;

// Each distinct prompt once, and the index of every prompt among them.
struct DistinctPrompts {
  std::vector<const std::vector<int64_t>*> prompts;
  std::vector<int64_t> index;
};

DistinctPrompts find_distinct(const std::vector<std::vector<int64_t>>& prompts) {
  DistinctPrompts distinct;
  std::map<std::vector<int64_t>, int64_t> seen;
  for (const std::vector<int64_t>& prompt : prompts) {
    const auto [it, is_new] = seen.try_emplace(prompt, distinct.prompts.size());
    if (is_new) {
      distinct.prompts.push_back(&prompt);
    }
    distinct.index.push_back(it->second);
  }
  return distinct;
}

// State of one generate() call: the batch, its cache and the completions so far.
class Batch {
 public:
  Batch(const Decoder& decoder, const std::vector<std::vector<int64_t>>& prompts,
        const SamplingParams& params, const GenerateOptions& options)
      : decoder_(decoder),
        weights_(decoder.materialize()),
        params_(params),
        record_routes_(options.record_routes),
        completions_(prompts.size()),
        routes_(prompts.size()),
        cache_(prefill(prompts)) {
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      rows_.push_back(i);
      next_position_.push_back(static_cast<int64_t>(prompts[i].size()));
      streams_.push_back(options.seeds.empty() ? RandomStream{params.seed, i}
                                               : RandomStream{options.seeds[i], 0});
    }
  }

  bool has_live_rows() const { return live_ > 0; }

  // Draws one token for every row from hidden_ and records it for live completions.
  void sample() {
    std::vector<double> uniform;
    for (const std::size_t i : rows_) {
      uniform.push_back(streams_[i].uniform(completions_[i].ids.size()));
    }
    at::Tensor logits_BV = head_logits(hidden_BE_, weights_.head_VE);
    if (decoder_.config().multipliers.logits_divisor != 1.0) {
      logits_BV.div_(decoder_.config().multipliers.logits_divisor);
    }
    const Draw draw =
        draw_tokens(decoder_.compute_dtype() == at::kDouble ? logits_BV : logits_BV.to(at::kFloat),
                    at::tensor(uniform, at::kDouble).to(logits_BV.device()), params_);
    const at::Tensor ids = draw.ids_B.to(at::kCPU);
    const at::Tensor logprobs = draw.logprobs_B.to(at::kCPU, at::kFloat);
    last_ids_.assign(ids.const_data_ptr<int64_t>(), ids.const_data_ptr<int64_t>() + rows_.size());
    for (std::size_t b = 0; b < rows_.size(); ++b) {
      record(rows_[b], last_ids_[b], logprobs.const_data_ptr<float>()[b]);
    }
  }

  // Feeds the last drawn tokens; hidden_ becomes the state after them.
  void advance() {
    compact();
    std::vector<int64_t> positions;
    for (const std::size_t i : rows_) {
      positions.push_back(next_position_[i]++);
    }
    cache_.begin_step();
    hidden_BE_ = forward(last_ids_, positions, cache_);
    for (std::size_t b = 0; record_routes_ && b < rows_.size(); ++b) {
      if (is_live(rows_[b])) {
        routes_[rows_[b]].push_back(newest_routes_.narrow(0, static_cast<int64_t>(b), 1));
      }
    }
  }

  std::vector<Completion> take() {
    for (std::size_t i = 0; record_routes_ && i < completions_.size(); ++i) {
      // A completion that should_stop ended has a row for its last token too.
      const auto tokens =
          routes_[i].front().size(0) + static_cast<int64_t>(completions_[i].ids.size());
      completions_[i].routes_sLK = at::cat(routes_[i]).narrow(0, 0, tokens - 1).contiguous();
    }
    return std::move(completions_);
  }

 private:
  at::Tensor tensor_of(const std::vector<int64_t>& values) const {
    return at::tensor(values, at::kLong).to(decoder_.context().device);
  }

  // With record_routes the routes of these tokens become newest_routes_.
  at::Tensor forward(const std::vector<int64_t>& ids, const std::vector<int64_t>& positions,
                     KvCache& cache) {
    ExpertNotes routes{.records = record_routes_};
    at::Tensor hidden =
        decoder_.forward(weights_, tensor_of(ids), tensor_of(positions), cache, &routes);
    if (record_routes_) {
      newest_routes_ = routes.recorded_sLK().to(at::kCPU);
    }
    return hidden;
  }

  KvCache prefill(const std::vector<std::vector<int64_t>>& prompts) {
    const DistinctPrompts distinct = find_distinct(prompts);
    std::vector<int64_t> lengths, ids, positions, last_rows;
    for (const std::vector<int64_t>* prompt : distinct.prompts) {
      ids.insert(ids.end(), prompt->begin(), prompt->end());
      for (std::size_t p = 0; p < prompt->size(); ++p) {
        positions.push_back(static_cast<int64_t>(p));
      }
      lengths.push_back(static_cast<int64_t>(prompt->size()));
      last_rows.push_back(static_cast<int64_t>(ids.size()) - 1);
    }
    const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
    KvCache cache(decoder_.config(), lengths, decoder_.context(),
                  longest + std::min(params_.max_new_tokens, longest + 64));
    const at::Tensor hidden = forward(ids, positions, cache);
    for (std::size_t i = 0; record_routes_ && i < prompts.size(); ++i) {
      const int64_t d = distinct.index[i];
      routes_[i].push_back(newest_routes_.narrow(0, last_rows[d] + 1 - lengths[d], lengths[d]));
    }
    const at::Tensor which = tensor_of(distinct.index);
    hidden_BE_ = hidden.index_select(0, tensor_of(last_rows).index_select(0, which));
    if (distinct.prompts.size() < prompts.size()) {
      cache.keep_rows(which);
    }
    live_ = prompts.size();
    return cache;
  }

  bool is_live(std::size_t i) const { return completions_[i].finish == StopReason::kAborted; }

  void record(std::size_t i, int64_t id, float logprob) {
    Completion& completion = completions_[i];
    if (!is_live(i)) {
      return;
    }
    completion.ids.push_back(id);
    completion.logprobs.push_back(logprob);
    const auto& stops = params_.stop_ids;
    if (std::find(stops.begin(), stops.end(), id) != stops.end()) {
      completion.finish = StopReason::kStop;
    } else if (static_cast<int64_t>(completion.ids.size()) == params_.max_new_tokens) {
      completion.finish = StopReason::kLength;
    }
    live_ -= is_live(i) ? 0 : 1;
  }

  void compact() {
    if (static_cast<double>(live_) > kCompactBelowLiveShare * static_cast<double>(rows_.size())) {
      return;
    }
    std::vector<int64_t> kept;
    for (std::size_t b = 0; b < rows_.size(); ++b) {
      if (is_live(rows_[b])) {
        rows_[kept.size()] = rows_[b];
        last_ids_[kept.size()] = last_ids_[b];
        kept.push_back(static_cast<int64_t>(b));
      }
    }
    rows_.resize(kept.size());
    last_ids_.resize(kept.size());
    cache_.keep_rows(tensor_of(kept));
  }

  const Decoder& decoder_;
  const DecoderWeights weights_;
  const SamplingParams& params_;
  const bool record_routes_;
  std::vector<Completion> completions_;
  std::vector<std::vector<at::Tensor>> routes_;  // of each prompt's tokens so far
  at::Tensor newest_routes_;                     // of the last forward, on the CPU
  std::vector<RandomStream> streams_;            // per prompt
  std::vector<int64_t> next_position_;           // per prompt
  std::size_t live_ = 0;
  at::Tensor hidden_BE_;           // of each row's last token
  KvCache cache_;                  // declared after hidden_BE_ and live_, which its prefill sets
  std::vector<std::size_t> rows_;  // prompt of each row
  std::vector<int64_t> last_ids_;  // per row
};

void check_request(const Decoder& decoder, const std::vector<std::vector<int64_t>>& prompts,
                   const SamplingParams& params, const GenerateOptions& options) {
  check_sampling_params(params);
  if (decoder.stage() != whole_stage(decoder.config())) {
    throw std::invalid_argument(
        "generate: the decoder is a stage of a model, expected a whole one");
  }
  if (!options.seeds.empty() && options.seeds.size() != prompts.size()) {
    throw std::invalid_argument("generate: " + std::to_string(prompts.size()) + " prompts, but " +
                                std::to_string(options.seeds.size()) + " seeds");
  }
  const int64_t limit = num_positions(decoder.config());
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    if (prompts[i].empty()) {
      throw std::invalid_argument("generate: prompt " + std::to_string(i) + " is empty");
    }
    const int64_t needed = static_cast<int64_t>(prompts[i].size()) + params.max_new_tokens;
    if (limit > 0 && needed > limit) {
      throw std::invalid_argument("generate: prompt " + std::to_string(i) + " of " +
                                  std::to_string(prompts[i].size()) + " tokens plus " +
                                  std::to_string(params.max_new_tokens) + " new ones exceeds " +
                                  std::to_string(limit) + " positions");
    }
  }
}

}  // namespace

std::vector<Completion> generate(const Decoder& decoder,
                                 const std::vector<std::vector<int64_t>>& prompts,
                                 const SamplingParams& params, const GenerateOptions& options) {
  check_request(decoder, prompts, params, options);
  if (prompts.empty()) {
    return {};
  }
  const at::NoGradGuard no_grad;
  Batch batch(decoder, prompts, params, options);
  while (!(options.should_stop && options.should_stop())) {
    batch.sample();
    if (!batch.has_live_rows()) {
      break;
    }
    batch.advance();
  }
  return batch.take();
}

}  // namespace ringside::engine
