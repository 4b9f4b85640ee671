#include "engine/generate/recurrent_cache.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "engine/nn/gated_delta.h"

namespace ringside::engine {
namespace {

at::Tensor conv_weight(const GatedDelta& net) { return net.conv_GcT.flatten(0, 1); }

DeltaRows rows_of(const GatedDelta& net, const at::Tensor& convolved) {
  return delta_rows(net.shape, net.channels_sGC, convolved, net.log_decay_Gv, net.decay_bias_Gv);
}

at::Tensor by_group_of(const sp::StateShape& shape, const at::Tensor& out_ShV) {
  return out_ShV.reshape({out_ShV.size(0), shape.key_heads, shape.out_channels()});
}

}  // namespace

void RecurrentCache::begin_prompts(std::vector<int64_t> lengths) {
  prompt_lengths_ = std::move(lengths);
  prompts_ = std::make_shared<std::vector<LayerState>>(rows_.size());
  tables_ = {};
}

void RecurrentCache::add_rows(const std::vector<PromptState>& prompts) {
  const auto add = [&](at::Tensor& rows, at::Tensor LayerState::*member, std::size_t layer) {
    std::vector<at::Tensor> parts;
    if (rows.defined()) {
      parts.push_back(rows);
    }
    for (const PromptState& prompt : prompts) {
      const at::Tensor& states = (*prompt.layers)[layer].*member;
      if (!states.defined()) {
        return;
      }
      parts.push_back(states.narrow(0, prompt.index, 1));
    }
    rows = parts.empty() ? at::Tensor() : at::cat(parts);
  };
  for (std::size_t layer = 0; layer < rows_.size(); ++layer) {
    add(rows_[layer].state_BhKV, &LayerState::state_BhKV, layer);
    add(rows_[layer].before_BTc, &LayerState::before_BTc, layer);
  }
}

void RecurrentCache::keep_rows(const at::Tensor& rows_b) {
  for (LayerState& layer : rows_) {
    for (at::Tensor* x : {&layer.state_BhKV, &layer.before_BTc}) {
      *x = x->defined() ? x->index_select(0, rows_b) : *x;
    }
  }
}

at::Tensor RecurrentCache::mix(int64_t layer, const GatedDelta& net) {
  return prompts_ ? prefill(prompts_->at(layer), net) : step(rows_.at(layer), net);
}

RecurrentCache::PromptTables RecurrentCache::make_tables(const sp::StateShape& shape,
                                                         c10::Device device) const {
  std::vector<sp::Range> rows;
  std::vector<RecurrentRun> runs;
  int64_t begin = 0;
  for (const int64_t length : prompt_lengths_) {
    rows.push_back({begin, begin + length});
    runs.push_back({begin, begin + length, -1});
    begin += length;
  }
  const std::vector<int64_t> before(rows.size() * (shape.conv_taps - 1), -1);
  return {std::make_shared<const ConvTables>(rows, before, shape.conv_taps, begin, device),
          std::make_shared<const ChunkTables>(runs, begin, device)};
}

at::Tensor RecurrentCache::prefill(LayerState& layer, const GatedDelta& net) {
  const int64_t before = net.shape.conv_taps - 1;
  const at::Tensor conv_in = conv_channels(net.shape, net.channels_sGC);
  if (tables_.conv == nullptr) {
    tables_ = make_tables(net.shape, conv_in.device());
  }
  std::vector<at::Tensor> tails;
  int64_t end = 0;
  for (const int64_t length : prompt_lengths_) {
    end += length;
    const int64_t kept = std::min(length, before);
    tails.push_back(at::cat({conv_in.new_zeros({before - kept, conv_in.size(1)}),
                             conv_in.narrow(0, end - kept, kept)}));
  }
  const at::Tensor convolved = causal_conv_silu(conv_in, {}, conv_weight(net), tables_.conv);
  const DeltaResult result = delta_rule(rows_of(net, convolved), tables_.chunks);
  layer.state_BhKV = result.end_rhKV;
  layer.before_BTc = at::stack(tails);
  return by_group_of(net.shape, result.out_ShV);
}

at::Tensor RecurrentCache::step(LayerState& layer, const GatedDelta& net) {
  TORCH_CHECK(layer.state_BhKV.defined() && net.channels_sGC.size(0) == layer.state_BhKV.size(0),
              "recurrent cache: a step of ", net.channels_sGC.size(0),
              " rows, expected one of each sequence");
  const at::Tensor convolved = causal_conv_silu_step(conv_channels(net.shape, net.channels_sGC),
                                                     conv_weight(net), layer.before_BTc);
  return by_group_of(net.shape, delta_step(rows_of(net, convolved), layer.state_BhKV));
}

}  // namespace ringside::engine
