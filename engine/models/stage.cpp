#include "engine/models/stage.h"

#include <c10/util/Exception.h>

namespace ringside::engine {

Stage whole_stage(const ModelConfig& config) { return {.layers = {0, config.num_hidden_layers}}; }

std::vector<Stage> cut_stages(const ModelConfig& config, const std::vector<int64_t>& cuts) {
  std::vector<Stage> stages;
  for (std::size_t i = 0; i <= cuts.size(); ++i) {
    const bool is_first = i == 0, is_last = i == cuts.size();
    stages.push_back(
        {.layers = {is_first ? 0 : cuts[i - 1], is_last ? config.num_hidden_layers : cuts[i]},
         .embeds = is_first,
         .scores = is_last});
    check_stage(config, stages.back());
  }
  return stages;
}

void check_stage(const ModelConfig& config, const Stage& stage) {
  const auto& [begin, end] = stage.layers;
  const int64_t layers = config.num_hidden_layers;
  TORCH_CHECK(0 <= begin && begin <= end && end <= layers, "stage: layers ", begin, " to ", end,
              " of a model with ", layers);
  TORCH_CHECK(!stage.embeds || begin == 0, "stage: it embeds, so its layers begin at 0, got ",
              begin);
  TORCH_CHECK(!stage.scores || end == layers, "stage: it scores, so its layers end at ", layers,
              ", got ", end);
  TORCH_CHECK(stage.embeds || stage.scores || begin < end,
              "stage: it has no layer, no embedding and no head");
}

bool copies_embedding(const ModelConfig& config, const Stage& stage) {
  return config.tie_word_embeddings && stage.scores && stage.vocabulary && !stage.embeds;
}

}  // namespace ringside::engine
