// One run of generate(): which completions are computed, and what was drawn for them.
//
// Rows are the completions that are computed now. The others wait in a queue, for a place among the
// rows or for room in the cache. A row that has to leave the cache goes back to the queue with its
// tokens, and later begins behind them.
//
// Shapes: B = rows, E = hidden size.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "engine/generate/generator.h"
#include "engine/generate/paged_cache.h"

namespace ringside::engine {

// Thread safety: none.
class Generation {
 public:
  // The arguments must outlive this; they are those of generate(), checked.
  Generation(const Decoder& decoder, const std::vector<std::vector<int64_t>>& prompts,
             const SamplingParams& params, const GenerateOptions& options);

  bool is_done() const { return rows_.empty() && waiting_.empty(); }

  // Draws one token for each row, after those that it has. Then begins completions that wait, as
  // many as there is room for, and draws their first tokens.
  void step();

  // Bytes of keys and values in use.
  int64_t cache_bytes() const { return cache_.bytes(); }

  // The completions, in the order of the prompts.
  std::vector<Completion> take();

 private:
  using Ids = std::vector<int64_t>;

  // What the keys and values of a text depend on.
  struct Text {
    Ids ids;
    std::vector<std::string> images;  // ids of the prompt's
    auto operator<=>(const Text&) const = default;
  };

  // A completion that is computed.
  struct Row {
    std::size_t completion;
    int64_t last_id;
    int64_t position;  // of the next token, all components alike
  };
  // A text that was computed: a prompt, or one with the tokens of a row that left the cache. It is
  // kept while completions of the same prompt wait.
  struct Begun {
    CachedPrompt cached;
    at::Tensor hidden_1E;  // of its last token
    at::Tensor routes_sLK;
  };
  // Completions that begin together.
  struct Beginning {
    std::vector<std::size_t> completions;
    std::vector<Text> texts;  // of each: its prompt and the tokens drawn so far
    // Those of them that are to be computed, and a completion that each is of.
    std::map<Text, std::size_t> new_texts;
  };

  at::Tensor tensor_of(const Ids& values) const;
  at::Tensor forward(const Ids& ids, const at::Tensor& positions, const ImageRows& images = {});
  Text text_of(std::size_t completion) const;
  // Of a text of so many tokens that begins with the completion's prompt, and of the token after
  // it.
  TokenPositions positions_of(std::size_t completion, int64_t tokens) const;
  int64_t row_limit() const;
  bool has_room(int64_t bytes) const;
  void make_room();
  void advance();
  Beginning next_to_begin() const;
  void prefill(const std::map<Text, std::size_t>& texts);
  void begin();
  void forget_unneeded();
  void sample(const at::Tensor& hidden_BE, std::size_t first_row);
  void record(Row& row, int64_t id, float logprob);
  int64_t most_tokens(std::size_t completion) const;
  bool is_live(const Row& row) const;
  void drop_finished();

  const Decoder& decoder_;
  const DecoderWeights weights_;
  const std::vector<Ids>& prompts_;
  const SamplingParams& params_;
  const GenerateOptions& options_;
  PagedCache cache_;
  std::vector<Completion> completions_;
  std::vector<RandomStream> streams_;            // of each completion
  std::vector<std::vector<at::Tensor>> routes_;  // of each completion's tokens so far, on the CPU
  at::Tensor newest_routes_;                     // of the last forward
  std::deque<std::size_t> waiting_;              // completions, in the order in which they begin
  std::map<Text, Begun> begun_;
  std::vector<Row> rows_;
};

}  // namespace ringside::engine
