#include "engine/runner/tensor_traffic.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "engine/layers/decoder_layer.h"
#include "engine/runner/gradient_flow.h"
#include "engine/runner/tensor_inputs.h"

namespace ringside::engine {
namespace {

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

  int64_t elements(const TensorWidths& widths, int64_t forwards,
                   const GradientFlow::Backwards& backwards) const {
    return forwards * (gather * widths.gathered + sum * widths.summed) +
           (backwards.gathered ? sum * widths.gathered : 0) +
           (backwards.summed ? gather * widths.summed : 0);
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
    const Adapters* adapters = stage->adapters();
    GradientFlow flow(adapters, stage->stage().embeds, forwards > 1);
    if (stage->stage().embeds) {
      elements += sent.elements({0, hidden}, /*forwards=*/1, {.summed = adapters == nullptr});
    }
    const sp::Range& layers = stage->stage().layers;
    for (int64_t i = layers.begin; i < layers.end; ++i) {
      const GradientFlow::OfLayer of_layer = flow.next(i);
      elements +=
          sent.elements(stage->layer(i).token_mixer().tensor_widths(), forwards, of_layer.tokens) +
          sent.elements(stage->layer(i).channel_mixer().tensor_widths(), forwards,
                        of_layer.channels);
    }
  }
  const std::vector<int64_t> entries = divide_entries(input.batch->source_n, rows).entries_of;
  const int64_t passes = input.scores_whole ? 2 : 1;
  const int64_t of_head =
      model.scores() ? model.tensor_bytes({static_cast<int64_t>(entries.size()),
                                           entries[rows.ranks->rank()], input.batch->num_entries()})
                     : 0;
  return elements * static_cast<int64_t>(at::elementSize(context.compute)) + passes * of_head;
}

}  // namespace ringside::engine
