#include "engine/generate/paged_cache.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "engine/generate/prompt_attention.h"
#include "engine/layers/decoder_layer.h"

namespace ringside::engine {
namespace {

// Makes place for at least `pages` pages. Memory that no page has is not touched.
void grow(at::Tensor& x, int64_t pages) {
  if (x.size(0) >= pages) {
    return;
  }
  std::vector<int64_t> shape = x.sizes().vec();
  shape[0] = std::max(pages, x.size(0) * 3 / 2);
  const at::Tensor larger = at::empty(shape, x.options());
  larger.narrow(0, 0, x.size(0)).copy_(x);
  x = larger;
}

}  // namespace

PagedCache::PagedCache(const ModelConfig& config, const ComputeContext& context)
    : device_(context.device), recurrent_(config.num_hidden_layers) {
  for (const DecoderLayer& of_model : make_layers(config)) {
    Layer& layer = layers_.emplace_back();
    const TokenFlow flow = of_model.token_mixer().flow();
    if (!flow.keys) {
      continue;
    }
    auto window = std::find_if(windows_.begin(), windows_.end(),
                               [&](const Window& w) { return w.window == flow.window; });
    if (window == windows_.end()) {
      window = windows_.emplace(windows_.end());
      window->window = flow.window;
    }
    layer.window = window - windows_.begin();
    window->layers.push_back(static_cast<int64_t>(layers_.size()) - 1);
    const int64_t heads = flow.keys->heads, dim = flow.keys->dim;
    layer.keys.keys_PKDt = at::zeros({0, heads, dim, kPageTokens}, context.compute_options());
    if (!flow.keys->are_values) {
      layer.keys.values_PKtD = at::zeros({0, heads, kPageTokens, dim}, context.compute_options());
    }
    window->page_bytes += kPageTokens * flow.keys->elements() *
                          static_cast<int64_t>(c10::elementSize(context.compute));
  }
}

PagedCache::Row PagedCache::new_row() const {
  Row row;
  for (const Window& window : windows_) {
    row.emplace_back(window.pool, window.window);
  }
  return row;
}

at::Tensor PagedCache::indices(const std::vector<int64_t>& values) const {
  return at::tensor(values, at::kLong).to(device_);
}

void PagedCache::reserve(Window& window) {
  const int64_t pages = window.pool->size(), added = pages - window.zeroed_pages;
  if (added == 0) {
    return;
  }
  for (const int64_t layer : window.layers) {
    PagedKeys& keys = layers_[layer].keys;
    for (at::Tensor* x : {&keys.keys_PKDt, &keys.values_PKtD}) {
      if (x->defined()) {
        grow(*x, pages);
        // A NaN in a place that no token has would survive its weight of 0.
        x->narrow(0, window.zeroed_pages, added).zero_();
      }
    }
  }
  window.zeroed_pages = pages;
}

void PagedCache::begin_prompts(std::vector<int64_t> lengths) {
  TORCH_CHECK(!lengths.empty(), "cache: no prompts");
  const int64_t shortest = *std::min_element(lengths.begin(), lengths.end());
  TORCH_CHECK(shortest > 0, "cache: a prompt of ", shortest, " tokens");
  steps_ = false;
  prompts_.clear();
  for (Window& window : windows_) {
    window.prompt_pages.clear();
  }
  for (const int64_t length : lengths) {
    Row& row = prompts_.emplace_back(new_row());
    for (std::size_t w = 0; w < windows_.size(); ++w) {
      row[w].start(length);
      windows_[w].prompt_pages.push_back(indices({row[w].pages().begin(), row[w].pages().end()}));
    }
  }
  for (Window& window : windows_) {
    reserve(window);
  }
  recurrent_.begin_prompts(lengths);
  prompt_lengths_ = std::move(lengths);
}

std::vector<CachedPrompt> PagedCache::take_prompts() {
  std::vector<CachedPrompt> taken;
  for (Row& row : prompts_) {
    const auto index = static_cast<int64_t>(taken.size());
    taken.push_back({std::move(row), recurrent_.prompt(index)});
  }
  prompts_.clear();
  return taken;
}

void PagedCache::add_rows(const std::vector<CachedPrompt>& prompts) {
  std::vector<PromptState> states;
  for (const CachedPrompt& prompt : prompts) {
    rows_.push_back(prompt.pages);
    states.push_back(prompt.state);
  }
  recurrent_.add_rows(states);
}

void PagedCache::keep_rows(const std::vector<int64_t>& rows) {
  std::vector<Row> kept;
  for (const int64_t row : rows) {
    kept.push_back(std::move(rows_.at(row)));
  }
  rows_ = std::move(kept);
  recurrent_.keep_rows(indices(rows));
}

void PagedCache::copy_pages(const Window& window, const std::vector<PageList::Copy>& copies) {
  if (copies.empty()) {
    return;
  }
  std::vector<int64_t> from, to;
  for (const PageList::Copy& copy : copies) {
    from.push_back(copy.from);
    to.push_back(copy.to);
  }
  const at::Tensor from_n = indices(from), to_n = indices(to);
  for (const int64_t layer : window.layers) {
    PagedKeys& keys = layers_[layer].keys;
    for (at::Tensor* x : {&keys.keys_PKDt, &keys.values_PKtD}) {
      if (x->defined()) {
        x->index_copy_(0, to_n, x->index_select(0, from_n));
      }
    }
  }
}

RowPages PagedCache::tables(std::size_t window) const {
  std::size_t most = 0;
  for (const Row& row : rows_) {
    most = std::max(most, row[window].pages().size());
  }
  std::vector<int64_t> pages, begin, end;
  for (const Row& row : rows_) {
    const PageList& list = row[window];
    pages.insert(pages.end(), list.pages().begin(), list.pages().end());
    pages.resize(pages.size() + most - list.pages().size());
    begin.push_back(list.hidden());
    end.push_back(list.tokens() - list.first());
  }
  const auto rows = static_cast<int64_t>(rows_.size());
  return {indices(pages).view({rows, static_cast<int64_t>(most)}), indices(begin), indices(end)};
}

void PagedCache::begin_step() {
  steps_ = true;
  recurrent_.begin_step();
  for (std::size_t w = 0; w < windows_.size(); ++w) {
    std::vector<PageList::Copy> copies;
    for (Row& row : rows_) {
      row[w].append(copies);
    }
    reserve(windows_[w]);
    copy_pages(windows_[w], copies);
    windows_[w].rows = tables(w);
  }
}

int64_t PagedCache::bytes() const {
  int64_t sum = 0;
  for (const Window& window : windows_) {
    sum += window.pool->in_use() * window.page_bytes;
  }
  return sum;
}

int64_t PagedCache::step_bytes() const {
  int64_t sum = 0;
  for (const Row& row : rows_) {
    for (std::size_t w = 0; w < windows_.size(); ++w) {
      sum += row[w].needs_page() ? windows_[w].page_bytes : 0;
    }
  }
  return sum;
}

int64_t PagedCache::row_bytes(int64_t tokens) const {
  int64_t sum = 0;
  for (const Window& window : windows_) {
    // A window may begin inside a page.
    const int64_t kept = window.window > 0 ? std::min(tokens, window.window + kPageTokens) : tokens;
    sum += pages_of(kept) * window.page_bytes;
  }
  return sum;
}

at::Tensor PagedCache::attend(const AttentionSpec& spec, const at::Tensor& q_sHD,
                              const at::Tensor& k_sKD, const at::Tensor& v_sKD) {
  Layer& layer = layers_.at(spec.layer);
  const Window& window = windows_.at(layer.window);
  TORCH_CHECK(spec.window == window.window, "cache: layer ", spec.layer, " has a window of ",
              window.window, ", got ", spec.window);
  if (!steps_) {
    return prefill(spec, layer, q_sHD, k_sKD, v_sKD);
  }
  TORCH_CHECK(q_sHD.size(0) == num_rows(), "cache: ", num_rows(), " rows, got ", q_sHD.size(0),
              " tokens");
  return attend_pages(spec, window.rows, layer.keys, q_sHD, k_sKD, v_sKD);
}

// Writes the tokens that a prompt's pages hold.
void PagedCache::keep_prompt(Layer& layer, std::size_t prompt, const at::Tensor& k_KnD,
                             const at::Tensor& v_KnD) const {
  const at::Tensor& pages = windows_[layer.window].prompt_pages[prompt];
  const int64_t first = prompts_[prompt][layer.window].first();
  const int64_t tokens = k_KnD.size(1) - first, places = pages.size(0) * kPageTokens;
  // [K, n, D] -> [pages, K, t, D], filled up with zeros
  const auto by_page = [&](const at::Tensor& x_KnD) {
    return at::constant_pad_nd(x_KnD.narrow(1, first, tokens), {0, 0, 0, places - tokens})
        .view({x_KnD.size(0), pages.size(0), kPageTokens, x_KnD.size(2)})
        .transpose(0, 1);
  };
  layer.keys.keys_PKDt.index_copy_(0, pages, by_page(k_KnD).transpose(2, 3).contiguous());
  if (layer.keys.values_PKtD.defined()) {
    layer.keys.values_PKtD.index_copy_(0, pages, by_page(v_KnD).contiguous());
  }
}

at::Tensor PagedCache::prefill(const AttentionSpec& spec, Layer& layer, const at::Tensor& q_sHD,
                               const at::Tensor& k_sKD, const at::Tensor& v_sKD) {
  std::vector<at::Tensor> outs;
  int64_t begin = 0;
  for (std::size_t i = 0; i < prompt_lengths_.size(); ++i) {
    const int64_t n = prompt_lengths_[i];
    const auto heads_first = [begin, n](const at::Tensor& x) {
      return x.narrow(0, begin, n).transpose(0, 1);
    };
    const at::Tensor k_KnD = heads_first(k_sKD), v_KnD = heads_first(v_sKD);
    keep_prompt(layer, i, k_KnD, v_KnD);
    outs.push_back(attend_prompt(spec, heads_first(q_sHD), k_KnD, v_KnD).transpose(0, 1));
    begin += n;
  }
  return at::cat(outs);
}

}  // namespace ringside::engine
