// Cache of generation: an attention backend that keeps the keys and values of every row in pages,
// and the states of layers that pass one, so each new token costs one row. Rows that start with the
// same prompt share its pages. Layers with a window keep the pages that it reaches.
//
// Shapes: H = query heads, K = key/value heads, D = head dim. Of latent attention the latents are
// kept: K = 1, D = kv_rank + rope_dim, and the keys are the values too.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/device/compute_context.h"
#include "engine/generate/page_attention.h"
#include "engine/generate/page_pool.h"
#include "engine/generate/recurrent_cache.h"
#include "engine/layers/model_config.h"
#include "engine/nn/attention_backend.h"

namespace ringside::engine {

// What the forward of a prompt left: rows can start behind it, any number of them, at any time. Its
// pages are in use as long as it, or a row that shares them, lives.
struct CachedPrompt {
  std::vector<PageList> pages;  // by window
  PromptState state;
};

// Use: begin_prompts(), one forward over the packed prompts, take_prompts(); add_rows(); then
// begin_step() and one forward over a token of each row, again and again. Not differentiable.
// Thread safety: none.
class PagedCache final : public AttentionBackend {
 public:
  // context: the decoder's.
  PagedCache(const ModelConfig& config, const ComputeContext& context);

  // The next forward is over these packed prompts.
  // Throws: c10::Error when there is none, or an empty one.
  void begin_prompts(std::vector<int64_t> lengths);
  // After that forward: what the prompts left, in order.
  std::vector<CachedPrompt> take_prompts();

  // Adds a row behind each of these prompts, in order, after the rows that are there.
  void add_rows(const std::vector<CachedPrompt>& prompts);
  // Keeps these rows in that order and drops the others.
  void keep_rows(const std::vector<int64_t>& rows);
  int64_t num_rows() const { return static_cast<int64_t>(rows_.size()); }

  // The next forward is over one token of each row.
  void begin_step();

  // Bytes of the keys and values in use.
  int64_t bytes() const;
  // By how much begin_step() raises them.
  int64_t step_bytes() const;
  // Bytes of keys and values of a row with so many tokens.
  int64_t row_bytes(int64_t tokens) const;

  bool attends_latents() const override { return true; }
  RecurrentBackend* recurrent() override { return &recurrent_; }

  // Throws: c10::Error when a step has not one token of each row, or another window than the layer.
  at::Tensor attend(const AttentionSpec& spec, const at::Tensor& q_sHD, const at::Tensor& k_sKD,
                    const at::Tensor& v_sKD) override;

 private:
  // Layers with the same window have their tokens in the same pages.
  struct Window {
    int64_t window = 0;
    std::shared_ptr<PagePool> pool = std::make_shared<PagePool>();
    int64_t page_bytes = 0;    // of all its layers
    int64_t zeroed_pages = 0;  // that there is memory for
    std::vector<int64_t> layers;
    std::vector<at::Tensor> prompt_pages;  // of each packed prompt
    RowPages rows;                         // of the step
  };
  struct Layer {
    int64_t window = -1;  // index in windows_; -1: it keeps no keys
    PagedKeys keys;
  };
  using Row = std::vector<PageList>;  // by window

  Row new_row() const;
  at::Tensor indices(const std::vector<int64_t>& values) const;
  void copy_pages(const Window& window, const std::vector<PageList::Copy>& copies);
  void reserve(Window& window);
  RowPages tables(std::size_t window) const;
  void keep_prompt(Layer& layer, std::size_t prompt, const at::Tensor& k_KnD,
                   const at::Tensor& v_KnD) const;
  at::Tensor prefill(const AttentionSpec& spec, Layer& layer, const at::Tensor& q_sHD,
                     const at::Tensor& k_sKD, const at::Tensor& v_sKD);

  c10::Device device_;
  std::vector<Window> windows_;
  std::vector<Layer> layers_;
  RecurrentCache recurrent_;
  std::vector<int64_t> prompt_lengths_;
  std::vector<Row> prompts_;
  std::vector<Row> rows_;
  bool steps_ = false;  // the forward is a step
};

}  // namespace ringside::engine
