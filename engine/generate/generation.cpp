#include "engine/generate/generation.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "engine/ops/head_logits.h"

namespace ringside::engine {

Generation::Generation(const Decoder& decoder, const std::vector<std::vector<int64_t>>& prompts,
                       const SamplingParams& params, const GenerateOptions& options)
    : decoder_(decoder),
      weights_(decoder.materialize()),
      prompts_(prompts),
      params_(params),
      options_(options),
      cache_(decoder.config(), decoder.context()),
      completions_(prompts.size()),
      routes_(prompts.size()) {
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    waiting_.push_back(i);
    streams_.push_back(options.seeds.empty() ? RandomStream{params.seed, i}
                                             : RandomStream{options.seeds[i], 0});
  }
}

at::Tensor Generation::tensor_of(const Ids& values) const {
  return at::tensor(values, at::kLong).to(decoder_.context().device);
}

// With record_routes the routes of these tokens become newest_routes_.
at::Tensor Generation::forward(const Ids& ids, const Ids& positions) {
  ExpertNotes routes{.records = options_.record_routes};
  at::Tensor hidden =
      decoder_.forward(weights_, tensor_of(ids), tensor_of(positions), cache_, &routes);
  if (options_.record_routes) {
    newest_routes_ = routes.recorded_sLK().to(at::kCPU);
  }
  return hidden;
}

// The prompt and the tokens drawn so far.
Generation::Ids Generation::text_of(std::size_t completion) const {
  Ids text = prompts_[completion];
  text.insert(text.end(), completions_[completion].ids.begin(), completions_[completion].ids.end());
  return text;
}

int64_t Generation::row_limit() const {
  return options_.max_rows > 0 ? options_.max_rows : static_cast<int64_t>(prompts_.size());
}

// Whether the cache can take so many bytes more, and the step after it too.
bool Generation::has_room(int64_t bytes) const {
  return options_.cache_bytes == 0 ||
         cache_.bytes() + cache_.step_bytes() + bytes <= options_.cache_bytes;
}

// Frees bytes for the next step: first the prompts that are kept for completions which wait, then
// the rows that began last. Both are computed again later.
void Generation::make_room() {
  if (!has_room(0)) {
    begun_.clear();
  }
  while (!has_room(0) && rows_.size() > 1) {
    waiting_.push_front(rows_.back().completion);
    rows_.pop_back();
    Ids kept(rows_.size());
    for (std::size_t b = 0; b < kept.size(); ++b) {
      kept[b] = static_cast<int64_t>(b);
    }
    cache_.keep_rows(kept);
  }
}

void Generation::advance() {
  make_room();
  Ids ids, positions;
  for (Row& row : rows_) {
    ids.push_back(row.last_id);
    positions.push_back(row.position++);
  }
  cache_.begin_step();
  const at::Tensor hidden_BE = forward(ids, positions);
  for (std::size_t b = 0; options_.record_routes && b < rows_.size(); ++b) {
    routes_[rows_[b].completion].push_back(newest_routes_.narrow(0, static_cast<int64_t>(b), 1));
  }
  sample(hidden_BE, 0);
}

// As many completions from the front of the queue as there are places and bytes for, and whose new
// texts fit one forward.
Generation::Beginning Generation::next_to_begin() const {
  Beginning next;
  int64_t tokens = 0, bytes = 0;
  for (const std::size_t completion : waiting_) {
    const auto rows = static_cast<int64_t>(rows_.size() + next.completions.size());
    if (rows >= row_limit()) {
      break;
    }
    Ids text = text_of(completion);
    const bool is_new = !begun_.contains(text) && !next.new_texts.contains(text);
    const int64_t new_tokens = is_new ? static_cast<int64_t>(text.size()) : 0;
    tokens += new_tokens;
    bytes += cache_.row_bytes(new_tokens) + cache_.row_bytes(1);  // and its first token
    if (rows > 0 && (!has_room(bytes) || tokens > kPrefillTokens)) {
      break;
    }
    if (is_new) {
      next.new_texts.insert(text);
    }
    next.completions.push_back(completion);
    next.texts.push_back(std::move(text));
  }
  return next;
}

// Computes these texts in one forward.
void Generation::prefill(const std::set<Ids>& texts) {
  Ids ids, positions, lengths, last_rows;
  for (const Ids& text : texts) {
    ids.insert(ids.end(), text.begin(), text.end());
    for (std::size_t p = 0; p < text.size(); ++p) {
      positions.push_back(static_cast<int64_t>(p));
    }
    lengths.push_back(static_cast<int64_t>(text.size()));
    last_rows.push_back(static_cast<int64_t>(ids.size()) - 1);
  }
  cache_.begin_prompts(lengths);
  const at::Tensor hidden_BE = forward(ids, positions).index_select(0, tensor_of(last_rows));
  std::vector<CachedPrompt> cached = cache_.take_prompts();
  for (std::size_t i = 0; const Ids& text : texts) {
    Begun begun{std::move(cached[i]), hidden_BE.narrow(0, static_cast<int64_t>(i), 1), {}};
    if (options_.record_routes) {
      begun.routes_sLK = newest_routes_.narrow(0, last_rows[i] + 1 - lengths[i], lengths[i]);
    }
    begun_.emplace(text, std::move(begun));
    ++i;
  }
}

void Generation::begin() {
  const Beginning next = next_to_begin();
  if (next.completions.empty()) {
    return;
  }
  if (!next.new_texts.empty()) {
    prefill(next.new_texts);
  }
  const std::size_t first_row = rows_.size();
  std::vector<CachedPrompt> behind;
  std::vector<at::Tensor> hidden;
  for (std::size_t i = 0; i < next.completions.size(); ++i) {
    const std::size_t completion = next.completions[i];
    const Begun& begun = begun_.at(next.texts[i]);
    behind.push_back(begun.cached);
    hidden.push_back(begun.hidden_1E);
    if (options_.record_routes) {
      routes_[completion] = {begun.routes_sLK};
    }
    rows_.push_back({completion, -1, static_cast<int64_t>(next.texts[i].size())});
    waiting_.pop_front();
  }
  cache_.add_rows(behind);
  behind.clear();  // a page with one user less may not have to be copied
  forget_unneeded();
  sample(at::cat(hidden), first_row);
}

// Keeps the prompts behind which somebody waits.
void Generation::forget_unneeded() {
  std::erase_if(begun_, [&](const auto& begun) {
    return std::none_of(waiting_.begin(), waiting_.end(), [&](std::size_t completion) {
      return completions_[completion].ids.empty() && prompts_[completion] == begun.first;
    });
  });
}

// Draws a token from each hidden state, for the rows from first_row on.
void Generation::sample(const at::Tensor& hidden_BE, std::size_t first_row) {
  std::vector<double> uniform;
  for (std::size_t b = first_row; b < rows_.size(); ++b) {
    const std::size_t completion = rows_[b].completion;
    uniform.push_back(streams_[completion].uniform(completions_[completion].ids.size()));
  }
  at::Tensor logits_BV = head_logits(hidden_BE, weights_.head_VE);
  if (decoder_.config().multipliers.logits_divisor != 1.0) {
    logits_BV.div_(decoder_.config().multipliers.logits_divisor);
  }
  const Draw draw =
      draw_tokens(decoder_.compute_dtype() == at::kDouble ? logits_BV : logits_BV.to(at::kFloat),
                  at::tensor(uniform, at::kDouble).to(logits_BV.device()), params_);
  const at::Tensor ids = draw.ids_B.to(at::kCPU);
  const at::Tensor logprobs = draw.logprobs_B.to(at::kCPU, at::kFloat);
  for (std::size_t b = first_row; b < rows_.size(); ++b) {
    record(rows_[b], ids.const_data_ptr<int64_t>()[b - first_row],
           logprobs.const_data_ptr<float>()[b - first_row]);
  }
  drop_finished();
}

bool Generation::is_live(const Row& row) const {
  return completions_[row.completion].finish == StopReason::kAborted;
}

void Generation::record(Row& row, int64_t id, float logprob) {
  Completion& completion = completions_[row.completion];
  row.last_id = id;
  completion.ids.push_back(id);
  completion.logprobs.push_back(logprob);
  const auto& stops = params_.stop_ids;
  if (std::find(stops.begin(), stops.end(), id) != stops.end()) {
    completion.finish = StopReason::kStop;
  } else if (static_cast<int64_t>(completion.ids.size()) == params_.max_new_tokens) {
    completion.finish = StopReason::kLength;
  }
}

void Generation::drop_finished() {
  Ids kept;
  std::vector<Row> rows;
  for (std::size_t b = 0; b < rows_.size(); ++b) {
    if (is_live(rows_[b])) {
      rows.push_back(rows_[b]);
      kept.push_back(static_cast<int64_t>(b));
    }
  }
  if (rows.size() < rows_.size()) {
    rows_ = std::move(rows);
    cache_.keep_rows(kept);
  }
}

void Generation::step() {
  if (!rows_.empty()) {
    advance();
  }
  while (!waiting_.empty()) {
    const std::size_t before = waiting_.size();
    begin();
    if (waiting_.size() == before) {
      return;
    }
  }
}

std::vector<Completion> Generation::take() {
  for (std::size_t i = 0; options_.record_routes && i < completions_.size(); ++i) {
    if (!routes_[i].empty()) {
      completions_[i].routes_sLK = at::cat(routes_[i]).contiguous();
    }
  }
  return std::move(completions_);
}

}  // namespace ringside::engine
