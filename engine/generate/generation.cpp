#include "engine/generate/generation.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "engine/ops/head_logits.h"

namespace ringside::engine {
namespace {

// Positions and images of texts that are computed in one forward.
class PackedImages {
 public:
  explicit PackedImages(const ModelConfig& config)
      : deepstack_(config.vision ? config.vision->deepstack.size() : 0) {}

  // The first `tokens` positions of a text.
  void add(const TokenPositions& positions, int64_t tokens) {
    const auto append = [&](std::vector<int64_t>& to, const std::vector<int64_t>& from) {
      to.insert(to.end(), from.begin(), from.begin() + tokens);
    };
    append(time_, positions.time);
    append(height_, positions.height);
    append(width_, positions.width);
  }
  // The images of a text whose first token is row `first`.
  void add(const std::vector<PromptImageRows>& images, int64_t first) {
    for (const PromptImageRows& image : images) {
      for (int64_t row = 0; row < image.rows.rows_iE.size(0); ++row) {
        places_.push_back(first + image.span.begin + row);
      }
      rows_.push_back(&image.rows);
    }
  }

  // [s], or [3, s] where there are images.
  at::Tensor positions(c10::Device device) const {
    const at::Tensor time = at::tensor(time_, at::kLong);
    if (rows_.empty()) {
      return time.to(device);
    }
    return at::stack({time, at::tensor(height_, at::kLong), at::tensor(width_, at::kLong)})
        .to(device);
  }
  ImageRows rows(c10::Device device) const {
    if (rows_.empty()) {
      return {};
    }
    ImageRows joined{at::tensor(places_, at::kLong).to(device), {}, {}};
    std::vector<at::Tensor> rows;
    std::vector<std::vector<at::Tensor>> levels(deepstack_);
    for (const EncodedImages* image : rows_) {
      rows.push_back(image->rows_iE);
      for (std::size_t level = 0; level < deepstack_; ++level) {
        levels[level].push_back(image->deepstack_iE.at(level));
      }
    }
    joined.rows_iE = at::cat(rows);
    for (const std::vector<at::Tensor>& level : levels) {
      joined.deepstack_iE.push_back(at::cat(level));
    }
    return joined;
  }

 private:
  std::size_t deepstack_;
  std::vector<int64_t> time_, height_, width_, places_;
  std::vector<const EncodedImages*> rows_;
};

}  // namespace

Generation::Generation(const Decoder& decoder, const std::vector<std::vector<int64_t>>& prompts,
                       const SamplingParams& params, const GenerateOptions& options)
    : decoder_(decoder),
      weights_(decoder.materialize()),
      prompts_(prompts),
      params_(params),
      options_(options),
      cache_(decoder.config(), decoder.context()),
      completions_(options.begun.begin(), options.begun.end()),
      routes_(prompts.size()) {
  completions_.resize(prompts.size());
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    completions_[i].finish = StopReason::kAborted;
    waiting_.push_back(i);
    streams_.push_back(options.seeds.empty() ? RandomStream{params.seed, i}
                                             : RandomStream{options.seeds[i], 0});
  }
}

at::Tensor Generation::tensor_of(const Ids& values) const {
  return at::tensor(values, at::kLong).to(decoder_.context().device);
}

// With record_routes the routes of these tokens become newest_routes_.
at::Tensor Generation::forward(const Ids& ids, const at::Tensor& positions,
                               const ImageRows& images) {
  ExpertNotes routes{.records = options_.record_routes};
  at::Tensor hidden =
      decoder_.forward(weights_, tensor_of(ids), positions, cache_, &routes, images);
  if (options_.record_routes) {
    newest_routes_ = routes.recorded_sLK().to(at::kCPU);
  }
  return hidden;
}

// The prompt and the tokens drawn so far.
Generation::Text Generation::text_of(std::size_t completion) const {
  Text text{prompts_[completion], {}};
  const Ids& drawn = completions_[completion].ids;
  text.ids.insert(text.ids.end(), drawn.begin(), drawn.end());
  if (!options_.images.empty()) {
    for (const PromptImageRows& image : options_.images[completion]) {
      text.images.push_back(image.id);
    }
  }
  return text;
}

TokenPositions Generation::positions_of(std::size_t completion, int64_t tokens) const {
  std::vector<ImageSpan> spans;
  if (!options_.images.empty()) {
    for (const PromptImageRows& image : options_.images[completion]) {
      spans.push_back(image.span);
    }
  }
  const auto& vision = decoder_.config().vision;
  return token_positions(tokens + 1, spans, vision ? vision->merge : 1);
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
  const at::Tensor hidden_BE = forward(ids, tensor_of(positions));
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
    Text text = text_of(completion);
    const bool is_new = !begun_.contains(text) && !next.new_texts.contains(text);
    const int64_t new_tokens = is_new ? static_cast<int64_t>(text.ids.size()) : 0;
    tokens += new_tokens;
    bytes += cache_.row_bytes(new_tokens) + cache_.row_bytes(1);  // and its first token
    if (rows > 0 && (!has_room(bytes) || tokens > kPrefillTokens)) {
      break;
    }
    if (is_new) {
      next.new_texts.emplace(text, completion);
    }
    next.completions.push_back(completion);
    next.texts.push_back(std::move(text));
  }
  return next;
}

// Computes these texts in one forward.
void Generation::prefill(const std::map<Text, std::size_t>& texts) {
  Ids ids, lengths, last_rows;
  PackedImages images(decoder_.config());
  for (const auto& [text, completion] : texts) {
    const auto tokens = static_cast<int64_t>(text.ids.size());
    images.add(positions_of(completion, tokens), tokens);
    if (!options_.images.empty()) {
      images.add(options_.images[completion], static_cast<int64_t>(ids.size()));
    }
    ids.insert(ids.end(), text.ids.begin(), text.ids.end());
    lengths.push_back(tokens);
    last_rows.push_back(static_cast<int64_t>(ids.size()) - 1);
  }
  cache_.begin_prompts(lengths);
  const c10::Device device = decoder_.context().device;
  const at::Tensor hidden_BE = forward(ids, images.positions(device), images.rows(device))
                                   .index_select(0, tensor_of(last_rows));
  std::vector<CachedPrompt> cached = cache_.take_prompts();
  for (std::size_t i = 0; const auto& [text, completion] : texts) {
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
    const auto tokens = static_cast<int64_t>(next.texts[i].ids.size());
    rows_.push_back({completion, -1, positions_of(completion, tokens).time.back()});
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
      return completions_[completion].ids.empty() && text_of(completion) == begun.first;
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
  Draw draw = draw_tokens(
      decoder_.compute_dtype() == at::kDouble ? logits_BV : logits_BV.to(at::kFloat),
      at::tensor(uniform, at::kDouble).to(logits_BV.device()), params_, options_.record_kept);
  const at::Tensor ids = draw.ids_B.to(at::kCPU);
  const at::Tensor logprobs = draw.logprobs_B.to(at::kCPU, at::kFloat);
  for (std::size_t b = first_row; b < rows_.size(); ++b) {
    if (!draw.kept.empty()) {
      completions_[rows_[b].completion].kept.push_back(std::move(draw.kept[b - first_row]));
    }
    record(rows_[b], ids.const_data_ptr<int64_t>()[b - first_row],
           logprobs.const_data_ptr<float>()[b - first_row]);
  }
  drop_finished();
}

int64_t Generation::most_tokens(std::size_t completion) const {
  return options_.max_new_tokens.empty() ? params_.max_new_tokens
                                         : options_.max_new_tokens[completion];
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
  } else if (std::ssize(completion.ids) == most_tokens(row.completion)) {
    completion.finish = StopReason::kLength;
  }
  if (options_.on_token) {
    options_.on_token(row.completion, completion);
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
