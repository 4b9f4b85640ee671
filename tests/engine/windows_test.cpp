// Layers with and without windows in one model: every layout, shared prefixes and generation give
// what one rank computes without a cache, each layer by its own plan.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "engine/generate/generator.h"
#include "engine/generate/paged_cache.h"
#include "engine/runner/collator_options.h"
#include "engine/runner/model_runner.h"
#include "sp/mesh/control.h"
#include "tests/support/catch.h"
#include "tests/support/close.h"
#include "tests/support/local_attention.h"
#include "tests/support/ranks.h"
#include "tests/support/tiny_model.h"

namespace ringside::engine {
namespace {

using test::max_abs_diff;

// Windows of 5, none, and 2.
ModelConfig windowed_config() {
  ModelConfig config = test::tiny_config();
  config.num_hidden_layers = 3;
  list_blocks(config);
  config.blocks[0].window = 5;
  config.blocks[2].window = 2;
  return config;
}

// Documents that share 21 tokens, some of which share 40; one alone, and one token.
std::vector<sp::Document> documents() {
  std::vector<sp::Document> all;
  const auto add = [&](int64_t shared, int64_t length, int64_t seed) {
    sp::Document document;
    for (int64_t i = 0; i < length; ++i) {
      document.ids.push_back(i < shared ? (i * i + 3 * i) % 19 : (7 * i + seed) % 19);
      document.entries.add(i, (3 * i + seed) % 19);
    }
    all.push_back(std::move(document));
  };
  add(21, 30, 1);
  add(40, 43, 2);
  add(40, 58, 3);
  add(21, 22, 4);
  add(0, 17, 5);
  add(0, 1, 6);
  return all;
}

struct Layout {
  const char* name;
  sp::MeshShape mesh;
  sp::RingImpl ring_impl = sp::RingImpl::kP2p;
  bool async_ulysses = false;
  sp::RingImpl ring_backward = sp::RingImpl::kP2p;
};

const std::vector<Layout> kLayouts{
    {"1", {1, 1, 1}},
    {"ulysses 2", {1, 1, 2}},
    {"asynchronous ulysses 2", {1, 1, 2}, sp::RingImpl::kP2p, true},
    {"ring 2", {1, 2, 1}},
    {"ring 3, gathered backward", {1, 3, 1}, sp::RingImpl::kP2p, false, sp::RingImpl::kAllGather},
    {"all-gather 2", {1, 2, 1}, sp::RingImpl::kAllGather},
    {"ring 2 x asynchronous ulysses 2", {1, 2, 2}, sp::RingImpl::kP2p, true}};

struct Pass {
  double loss = 0;
  std::vector<at::Tensor> grads;
  SequenceWork work;
};

Pass train(const ModelConfig& config, const Layout& layout, bool shared_prefix,
           Recompute recompute = Recompute::kNone) {
  Pass pass;
  test::run_ranks_in_memory(layout.mesh, [&](const sp::Mesh& mesh,
                                             const sp::ProcessGroups& groups) {
    auto decoder = std::make_unique<Decoder>(config, at::kDouble);
    decoder->init_random(7, 0.3);
    decoder->set_activation_options({recompute});
    ModelRunner runner(std::make_unique<LanguageModel>(std::move(decoder)), groups, AdamWOptions{});
    sp::SequenceOptions options;
    options.plan.ring_impl = layout.ring_impl;
    options.plan.ring_backward = layout.ring_backward;
    options.async_ulysses = layout.async_ulysses;
    options.shared_prefix = shared_prefix;
    const auto batches = sp::collate(documents(), mesh, collator_options(config, 200, options));
    REQUIRE(batches.size() == 1);
    const std::vector<ModelInput> inputs{
        {&batches[0], at::ones({batches[0].num_entries()}, at::kDouble)}};
    double loss = 0;
    const SequenceWork work = runner.train(inputs, [&](const HeadOutput& output, auto) {
      const at::Tensor sum = (output.logprobs_n * 0.7 + output.entropy_n).sum();
      loss += sum.item<double>();
      return sum;
    });
    const auto losses = sp::sum_scalars({loss}, *groups.control(sp::axes::kLoss));
    if (mesh.rank() == 0) {
      pass.loss = losses.front();
      for (const ParamUnit* unit : runner.model().units()) {
        pass.grads.push_back(unit->grad().clone());
      }
      pass.work = work;
    }
  });
  return pass;
}

void check_equal(const Pass& got, const Pass& expected) {
  CHECK(std::abs(got.loss - expected.loss) < 1e-10 * std::abs(expected.loss));
  for (std::size_t u = 0; u < expected.grads.size(); ++u) {
    CHECK(max_abs_diff(got.grads[u], expected.grads[u]) < 1e-10);
  }
}

TEST_CASE("windows: every layout, with and without shared prefixes, gives one rank's gradients") {
  const ModelConfig config = windowed_config();
  const Pass expected = train(config, kLayouts[0], false);
  for (const Layout& layout : kLayouts) {
    for (const bool shared : {false, true}) {
      CAPTURE(layout.name, shared);
      const Pass pass = train(config, layout, shared);
      check_equal(pass, expected);
      CHECK(pass.work.predicted_bytes == pass.work.sent_bytes);
    }
  }
  check_equal(train(config, kLayouts.back(), true, Recompute::kSelective), expected);
  ModelConfig full = config;
  full.blocks[0].window = 0;
  CHECK(std::abs(train(full, kLayouts[0], false).loss - expected.loss) > 1e-3);
}

TEST_CASE("windows: pairs are counted layer by layer") {
  const ModelConfig config = windowed_config();
  const Pass unshared = train(config, kLayouts[3], false),
             shared = train(config, kLayouts[3], true);
  double expected = 0;
  for (const sp::Document& document : documents()) {
    for (int64_t t = 1; t <= static_cast<int64_t>(document.ids.size()); ++t) {
      expected += static_cast<double>(std::min<int64_t>(t, 5) + t + std::min<int64_t>(t, 2));
    }
  }
  CHECK(unshared.work.raw_pairs == expected);
  CHECK(unshared.work.unique_pairs == expected);
  CHECK(shared.work.raw_pairs == expected);
  CHECK(shared.work.unique_pairs < expected);
}

// Attention as the definition says it, of one document.
class TextbookAttention final : public AttentionBackend {
 public:
  at::Tensor attend(const AttentionSpec& spec, const at::Tensor& q_sHD, const at::Tensor& k_sKD,
                    const at::Tensor& v_sKD) override {
    const int64_t s = q_sHD.size(0), heads = q_sHD.size(1);
    const auto heads_first = [&](const at::Tensor& x) {
      return x.repeat_interleave(heads / x.size(1), 1).transpose(0, 1);
    };
    at::Tensor scores =
        at::matmul(heads_first(q_sHD), heads_first(k_sKD).transpose(1, 2)) * spec.softmax_scale;
    const at::Tensor place = at::arange(s);
    const at::Tensor behind = place.unsqueeze(1) - place;
    const int64_t window = spec.window > 0 ? spec.window : s;
    scores = scores.masked_fill((behind < 0).logical_or(behind >= window), -INFINITY);
    return at::matmul(scores.softmax(-1), heads_first(v_sKD)).transpose(0, 1);
  }
};

TEST_CASE("windows: generation scores what a forward without a cache scores") {
  const Decoder decoder = test::random_decoder(windowed_config(), at::kDouble, 9, 0.35);
  const std::vector<std::vector<int64_t>> prompts{
      {1, 2, 3, 4, 5, 6, 7, 8}, {4}, {5, 6}, {5, 6}, {9, 1}};
  // Long enough that windows move, several times if nothing stops a sequence before.
  const std::vector<int64_t> stop_ids = GENERATE(std::vector<int64_t>{17}, std::vector<int64_t>{});
  const auto completions =
      generate(decoder, prompts, {.max_new_tokens = 200, .stop_ids = stop_ids, .seed = 3});
  std::size_t shortest = 200, longest = 0;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    std::vector<int64_t> all = prompts[i];
    all.insert(all.end(), completions[i].ids.begin(), completions[i].ids.end());
    const at::NoGradGuard no_grad;
    TextbookAttention attention;
    const auto count = static_cast<int64_t>(all.size());
    const auto drawn = static_cast<int64_t>(completions[i].ids.size());
    const at::Tensor hidden =
        decoder.forward(at::tensor(all, at::kLong), at::arange(count, at::kLong), attention);
    const auto first = static_cast<int64_t>(prompts[i].size()) - 1;
    const at::Tensor expected =
        decoder
            .score(hidden.narrow(0, first, drawn), at::tensor(completions[i].ids, at::kLong),
                   at::ones({drawn}))
            .logprobs_n;
    CHECK(max_abs_diff(at::tensor(completions[i].logprobs), expected) < 1e-5);
    shortest = std::min(shortest, completions[i].ids.size());
    longest = std::max(longest, completions[i].ids.size());
  }
  CHECK((stop_ids.empty() ? shortest == 200 : shortest < longest));
  CHECK(longest > 75);
}

// Bytes of keys and values after prompts of these lengths and `steps` more tokens.
int64_t cache_bytes(const Decoder& decoder, std::vector<int64_t> lengths, int64_t steps) {
  const at::NoGradGuard no_grad;
  const int64_t rows = static_cast<int64_t>(lengths.size()), longest = lengths.front();
  PagedCache cache(decoder.config(), decoder.context());
  cache.begin_prompts(lengths);
  const DecoderWeights weights = decoder.materialize();
  const auto ids = [](int64_t n) { return at::arange(n, at::kLong).remainder(19); };
  const at::Tensor positions = test::packed_positions(lengths);
  decoder.forward(weights, ids(positions.numel()), positions, cache);
  cache.add_rows(cache.take_prompts());
  for (int64_t step = 0; step < steps; ++step) {
    cache.begin_step();
    decoder.forward(weights, ids(rows), at::full({rows}, longest + step, at::kLong), cache);
  }
  return cache.bytes();
}

TEST_CASE("windows: the cache of a layer with a window does not grow with the sequence") {
  ModelConfig config = windowed_config();
  const Decoder mixed = test::random_decoder(config, at::kFloat, 9);
  config.blocks.assign(3, {});
  const Decoder full = test::random_decoder(config, at::kFloat, 9);
  config.blocks.assign(3, {.window = 5});
  const Decoder windowed = test::random_decoder(config, at::kFloat, 9);
  for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{120, 3}, {60, 1}}) {
    CAPTURE(lengths);
    // A page apart, because a window lies in one page or in two.
    CHECK(cache_bytes(windowed, lengths, 130) == cache_bytes(windowed, lengths, 130 - kPageTokens));
    CHECK(3 * cache_bytes(windowed, lengths, 130) < cache_bytes(full, lengths, 130));
    CHECK(2 * cache_bytes(mixed, lengths, 130) < cache_bytes(full, lengths, 130) * 5 / 4);
  }
}

TEST_CASE("windows: a layer whose window has no plan is refused") {
  const auto batches = sp::collate(documents(), sp::Mesh({1, 1, 1}, 0), {{4, 2, 8}, 200, {}});
  CHECK_THROWS_WITH(batches[0].plan(5), Catch::Contains("no attention plan for a window of 5"));
}

}  // namespace
}  // namespace ringside::engine
