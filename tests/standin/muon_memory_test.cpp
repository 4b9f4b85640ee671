// The predicted peak of device memory with Muon against the stand-in's, in the backward and, with
// few tokens, in the update; and that a step with Muon computes where the weights are.
#include <iostream>
#include <utility>
#include <vector>

#include "rl/data/training_batch.h"
#include "tests/standin/measured_pass.h"
#include "tests/support/catch.h"
#include "tests/support/tiny_model.h"

using namespace ringside;

namespace {

engine::ModelConfig muon_model(bool experts) {
  engine::ModelConfig config = test::tiny_config(/*vocab_size=*/256);
  config.hidden_size = 96;
  config.intermediate_size = 256;
  config.num_hidden_layers = 2;
  config.head_dim = 24;
  config.tie_word_embeddings = true;
  if (experts) {
    config.experts.count = 8;
    config.experts.per_token = 2;
    config.experts.intermediate_size = 96;
    config.experts.normalise_weights = true;
    config.blocks.assign(2, {.channel_mixer = engine::ChannelMixerKind::kExperts});
  }
  return config;
}

std::vector<sp::Document> documents_of(int64_t count, int64_t length) {
  std::vector<sp::Document> all;
  for (int64_t d = 0; d < count; ++d) {
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < length; ++i) {
      ids.push_back((7 * i + 31 * d) % 256);
    }
    all.push_back(rl::make_scored_document(std::move(ids), length / 2));
  }
  return all;
}

}  // namespace

TEST_CASE("Muon's one moment a matrix and the peak of its update are predicted") {
  const auto p2p = sp::RingImpl::kP2p;
  struct Case {
    const char* name;
    standin::PassLayout layout;
    int64_t length;  // of each of two documents
    bool experts = false;
  };
  for (Case& one : std::vector<Case>{{"1, few tokens", {{1, 1, 1}, {}}, 8},
                                     {"1, many tokens", {{1, 1, 1}, {}}, 600},
                                     {"dp 2, few tokens", {{2, 1, 1}, {}}, 8},
                                     {"shard 2, stage 1", {{1, 1, 1, 2}, {}, p2p, 1}, 8},
                                     {"shard 3, stage 3", {{1, 1, 1, 3}, {}, p2p, 3}, 8},
                                     {"experts, few tokens", {{1, 1, 1}, {}}, 8, true}}) {
    CAPTURE(one.name);
    one.layout.muon = true;
    const standin::MeasuredPass pass = standin::measure_pass(
        muon_model(one.experts), at::kFloat, documents_of(2, one.length), one.layout);
    CHECK(pass.reports == "");
    const int64_t state = pass.predicted.weights + pass.predicted.moments;
    const auto ratio_of = [](int64_t predicted, int64_t measured) {
      return static_cast<double>(predicted) / static_cast<double>(measured);
    };
    const double states = ratio_of(state, pass.before);
    const double peaks = ratio_of(pass.predicted.peak(), pass.peak);
    std::cout << one.name << ": state " << pass.before << " bytes, predicted / measured " << states
              << "; peak " << pass.peak << " bytes, " << peaks << "\n";
    CHECK(states == Approx(1.0).epsilon(0.02));
    CHECK(peaks > 0.95);
    CHECK(peaks < 1.25);
  }
}
