#include "engine/runner/tensor_traffic.h"

#include <algorithm>
#include <initializer_list>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "engine/layers/decoder_layer.h"
#include "engine/runner/tensor_inputs.h"

namespace ringside::engine {
namespace {

// Whether what is gathered for a mixer has a gradient, and what is summed behind it.
struct Backwards {
  bool gathered = true;
  bool summed = true;
};

// Rows that a rank sends in a gather of its own rows, and in a sum of all rows. The backward of
// each is the other.
struct SentRows {
  int64_t gather = 0;
  int64_t sum = 0;

  explicit SentRows(const RowParts& rows) {
    const int64_t own = rows.own().size();
    const int64_t all = std::accumulate(rows.rows_of.begin(), rows.rows_of.end(), int64_t{0});
    gather = own * (static_cast<int64_t>(rows.rows_of.size()) - 1);
    sum = all - own;
  }

  int64_t elements(const TensorWidths& widths, int64_t forwards, const Backwards& backwards) const {
    return forwards * (gather * widths.gathered + sum * widths.summed) +
           (backwards.gathered ? sum * widths.gathered : 0) +
           (backwards.summed ? gather * widths.summed : 0);
  }
};

// Gradients of the model's first layer. With adapters the embedding has none, nor has the layer's
// input, unless a recomputed layer asks for it.
struct FirstLayer {
  bool embedding = true;
  Backwards tokens, channels;

  FirstLayer(const Adapters* adapters, bool recomputes) {
    if (adapters == nullptr) {
      return;
    }
    embedding = false;
    if (recomputes) {
      return;
    }
    const std::vector<std::string>& targets = adapters->options().targets;
    const auto any_of = [&](std::initializer_list<std::string_view> names) {
      return std::ranges::any_of(
          targets, [&](const std::string& name) { return std::ranges::count(names, name) > 0; });
    };
    const auto of_mlp = [](const std::string& name) {
      return name == "gate_proj" || name == "up_proj" || name == "down_proj" ||
             name == "gate_up_proj";
    };
    tokens.gathered = any_of({"q_a_proj", "kv_a_proj_with_mqa"});  // what they give is gathered
    tokens.summed = !std::ranges::all_of(targets, of_mlp);
    channels.gathered = tokens.summed;
  }
};

}  // namespace

int64_t tensor_bytes(const HeadedModel& model, const ModelInput& input) {
  const ComputeContext& context = model.trunk().context();
  const RowParts rows = row_parts(context, input.batch->ids_s.size(0));
  if (!rows.is_cut()) {
    return 0;
  }
  const SentRows sent(rows);
  int64_t elements = 0;
  for (const Decoder* stage : model.stages()) {
    const int64_t forwards = stage->activation_options().recompute == Recompute::kNone ? 1 : 2;
    const int64_t hidden = stage->config().hidden_size;
    const FirstLayer first(stage->adapters(), forwards > 1);
    if (stage->stage().embeds) {
      elements += sent.elements({0, hidden}, /*forwards=*/1, {.summed = first.embedding});
    }
    const sp::Range& layers = stage->stage().layers;
    for (int64_t i = layers.begin; i < layers.end; ++i) {
      const bool is_first = i == 0;
      elements += sent.elements(stage->layer(i).token_mixer().tensor_widths(), forwards,
                                is_first ? first.tokens : Backwards()) +
                  sent.elements(stage->layer(i).channel_mixer().tensor_widths(), forwards,
                                is_first ? first.channels : Backwards());
    }
  }
  const std::vector<int64_t> entries = divide_entries(input.batch->source_n, rows).entries_of;
  const int64_t of_head =
      model.scores() ? model.tensor_bytes({static_cast<int64_t>(entries.size()),
                                           entries[rows.ranks->rank()], input.batch->num_entries()})
                     : 0;
  return elements * static_cast<int64_t>(at::elementSize(context.compute)) + of_head;
}

}  // namespace ringside::engine
