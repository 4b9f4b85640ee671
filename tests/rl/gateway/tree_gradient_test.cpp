// Guards the gradient of a rollout that forks: a token of a branch that is left out, trained twice,
// or computed behind another context. Oracle: each sequence of the session by itself.
#include <ATen/ATen.h>

#include <random>

#include "engine/runner/collator_options.h"
#include "engine/runner/model_runner.h"
#include "rl/data/training_batch.h"
#include "rl/gateway/token_tree.h"
#include "rl/step/column_tensors.h"
#include "tests/support/catch.h"
#include "tests/support/sharded_training.h"
#include "tests/support/tiny_model.h"

namespace ringside {
namespace {

using Ids = std::vector<int64_t>;

// What a session sampled at a time: the whole sequence, and how many of its last ids.
struct Sequence {
  Ids ids;
  int64_t sampled;
};

struct Played {
  rl::TokenTree tree;
  std::vector<Sequence> sequences;
};

// 200 turns: most continue the last one, others retry an older one, or begin anew behind a common
// first message.
Played played_session(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
  const auto ids = [&](int64_t count) {
    Ids all;
    for (int64_t i = 0; i < count; ++i) {
      all.push_back(below(19));
    }
    return all;
  };
  Played played;
  std::vector<int64_t> ends;
  for (int turn = 0; turn < 200; ++turn) {
    const int64_t kind = turn == 0 ? 0 : below(20);
    Ids context = kind == 0 ? Ids{1, 2, 3} : Ids{};
    const Ids added = ids(1 + below(3));
    context.insert(context.end(), added.begin(), added.end());
    int64_t end = 0;
    Sequence sequence;
    if (kind > 0) {
      const std::size_t before = kind < 16 ? ends.size() - 1 : below(std::ssize(ends));
      end = ends[before];
      sequence.ids = played.sequences[before].ids;
    }
    const Ids said = ids(1 + below(3));
    sequence.ids.insert(sequence.ids.end(), context.begin(), context.end());
    sequence.ids.insert(sequence.ids.end(), said.begin(), said.end());
    sequence.sampled = std::ssize(said);
    const std::vector<float> logprobs(said.size(), -1.0F);
    ends.push_back(played.tree.add(end, context, {said, logprobs, 0, 1}));
    played.sequences.push_back(std::move(sequence));
  }
  return played;
}

// The documents that the trainer makes of the session's rollout.
std::vector<sp::Document> trained_documents(const rl::TokenTree& tree) {
  bridge::Rollout rollout;
  rollout.rollout_id = "r";
  rollout.group_id = 0;
  rollout.group_size = 1;
  rollout.sample_index = 0;
  rollout.rewards = {{"reward", 1.0}};
  tree.write(rollout);
  rl::Config config;
  config.rollout.prompts_per_step = 1;
  config.rollout.group_size = 1;
  config.train.num_mini_batches = 1;
  config.algorithm.dynamic_sampling = rl::DynamicSampling::kNone;
  return rl::make_step_batch(std::vector{rollout}, config).mini_batches.at(0).documents;
}

// Each sequence with its last ids as loss entries.
std::vector<sp::Document> lone_documents(const std::vector<Sequence>& sequences) {
  std::vector<sp::Document> documents;
  for (const Sequence& sequence : sequences) {
    documents.push_back(
        rl::make_scored_document(sequence.ids, std::ssize(sequence.ids) - sequence.sampled));
  }
  return documents;
}

struct Pass {
  std::vector<at::Tensor> gradients;
  int64_t tokens = 0;   // computed
  int64_t entries = 0;  // tokens of the loss
};

Pass pass_over(const std::vector<sp::Document>& documents, bool shared) {
  engine::ModelConfig model = test::tiny_config();
  model.max_position_embeddings = 4096;
  const sp::ProcessGroups groups = sp::single_rank_groups();
  engine::ComputeContext context(at::kDouble);
  engine::ModelRunner runner(
      std::make_unique<engine::LanguageModel>(test::random_stages({}, model, context)), groups,
      engine::AdamWOptions{});
  sp::SequenceOptions sequence;
  sequence.shared_prefix = shared;
  const rl::LocalBatch local{
      sp::collate(documents, sp::Mesh({}, 0),
                  engine::collator_options(model, shared ? 1 << 20 : 1024, sequence)),
      0};
  const auto inputs = rl::model_inputs(local, {}, at::kDouble);
  Pass pass;
  for (const engine::ModelInput& input : inputs) {
    pass.tokens += input.batch->ids_s.numel();
    pass.entries += input.batch->target_n.numel();
  }
  runner.train(inputs, test::entropy_loss);
  for (engine::ParamUnit* unit : runner.decoder().units()) {
    pass.gradients.push_back(unit->grad().clone());
  }
  return pass;
}

TEST_CASE("the gradient of a session of 200 turns is that of its sequences one by one") {
  for (const uint64_t seed : {1, 2}) {
    const Played played = played_session(seed);
    const Pass tree = pass_over(trained_documents(played.tree), /*shared=*/true);
    const Pass lone = pass_over(lone_documents(played.sequences), /*shared=*/false);
    CHECK(tree.entries == lone.entries);
    REQUIRE(tree.gradients.size() == lone.gradients.size());
    for (std::size_t u = 0; u < tree.gradients.size(); ++u) {
      const double scale = lone.gradients[u].abs().max().item<double>();
      CHECK(scale > 0);
      CHECK((tree.gradients[u] - lone.gradients[u]).abs().max().item<double>() < 1e-10 * scale);
    }
    CHECK(tree.tokens * 5 < lone.tokens);
  }
}

}  // namespace
}  // namespace ringside
