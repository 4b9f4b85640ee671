// The predicted peak of device memory against the stand-in's, on every layout.
#include <iostream>
#include <tuple>
#include <utility>

#include "engine/models/adapter_targets.h"
#include "rl/data/training_batch.h"
#include "tests/standin/measured_pass.h"
#include "tests/support/catch.h"
#include "tests/support/tiny_model.h"

using namespace ringside;

namespace {

// Activations outweigh weights, as they do in training.
engine::ModelConfig estimated_model(int64_t layers, int64_t experts = 0) {
  engine::ModelConfig config = test::tiny_config(/*vocab_size=*/256);
  config.hidden_size = 48;
  config.intermediate_size = 128;
  config.num_hidden_layers = layers;
  config.head_dim = 12;
  config.tie_word_embeddings = true;
  config.experts.count = experts;
  config.experts.per_token = 2;
  config.experts.intermediate_size = 48;
  config.experts.normalise_weights = true;
  return config;
}

std::vector<sp::Document> documents(int64_t count = 8, int64_t length = 300) {
  std::vector<sp::Document> all;
  for (int64_t d = 0; d < count; ++d) {
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < length; ++i) {
      ids.push_back((7 * i + 31 * d) % 256);
    }
    all.push_back(rl::make_scored_document(std::move(ids), 100));
  }
  return all;
}

standin::MeasuredPass train(const standin::PassLayout& layout, int64_t layers) {
  const standin::MeasuredPass pass =
      standin::measure_pass(estimated_model(layers), at::kFloat, documents(), layout);
  CHECK(pass.reports == "");
  return pass;
}

}  // namespace

TEST_CASE("the peak of device memory is within 5 % of what shapes predict") {
  using engine::Recompute;
  const auto p2p = sp::RingImpl::kP2p;
  for (const auto& [name, layout] : std::vector<std::pair<const char*, standin::PassLayout>>{
           {"1", {{1, 1, 1}, {}}},
           {"ulysses 2", {{1, 1, 2}, {}}},
           {"ring 2 x ulysses 2", {{1, 2, 2}, {}}},
           {"all-gather 2", {{1, 2, 1}, {}, sp::RingImpl::kAllGather}},
           {"dp 2", {{2, 1, 1}, {}}},
           {"1, recomputed", {{1, 1, 1}, {Recompute::kFull}}},
           {"1, without attention", {{1, 1, 1}, {Recompute::kSelective}}},
           {"ring 2 x ulysses 2, without attention", {{1, 2, 2}, {Recompute::kSelective}}},
           {"1, recomputed, offloaded", {{1, 1, 1}, {Recompute::kFull, true}}},
           {"ulysses 2, without attention, offloaded", {{1, 1, 2}, {Recompute::kSelective, true}}},
           {"1, recomputed in tiles", {{1, 1, 1}, {Recompute::kFull, false, 200}}},
           {"1, all of it", {{1, 1, 1}, {Recompute::kSelective, true, 200}}},
           {"shard 2, stage 1", {{1, 1, 1, 2}, {}, p2p, 1}},
           {"shard 3, stage 3", {{1, 1, 1, 3}, {}, p2p, 3}},
           {"shard 2, stage 3, recomputed", {{1, 1, 1, 2}, {Recompute::kFull}, p2p, 3}},
           {"ulysses 2, stage 3, offloaded", {{1, 1, 2}, {Recompute::kFull, true}, p2p, 3}}}) {
    CAPTURE(name);
    const standin::MeasuredPass pass = train(layout, 6);
    const double ratio =
        static_cast<double>(pass.predicted.peak()) / static_cast<double>(pass.peak);
    std::cout << name << ": peak " << pass.peak << " bytes, predicted / measured " << ratio << "\n";
    CHECK(ratio > 0.95);
    CHECK(ratio < 1.05);
  }
}

TEST_CASE("the peak of a tensor rank is predicted") {
  using engine::Recompute;
  const auto on = [](int64_t tensor, const engine::ActivationOptions& activations,
                     int64_t shard = 1) {
    standin::PassLayout layout{{}, activations};
    layout.mesh.tensor = tensor;
    layout.mesh.dp_shard = shard;
    layout.stage = shard > 1 ? 3 : 0;
    return layout;
  };
  for (const auto& [name, layout] : std::vector<std::pair<const char*, standin::PassLayout>>{
           {"tensor 2", on(2, {})},
           {"tensor 3", on(3, {})},
           {"tensor 2, recomputed", on(2, {Recompute::kFull})},
           {"tensor 2, without attention", on(2, {Recompute::kSelective})},
           {"tensor 2, shard 2, recomputed", on(2, {Recompute::kFull}, 2)}}) {
    CAPTURE(name);
    const standin::MeasuredPass pass = train(layout, 6);
    const double ratio =
        static_cast<double>(pass.predicted.peak()) / static_cast<double>(pass.peak);
    std::cout << name << ": peak " << pass.peak << " bytes, predicted / measured " << ratio << "\n";
    CHECK(ratio > 0.95);
    CHECK(ratio < 1.05);
  }
}

TEST_CASE("the peak with adapters beside frozen or quantised weights is predicted") {
  using engine::QuantisedFormat;
  using engine::Recompute;
  const engine::AdapterOptions all{8, 16.0, engine::parse_adapter_targets("all-linear")};
  const engine::AdapterOptions some{4, 8.0, engine::parse_adapter_targets("q_proj, v_proj")};
  const auto p2p = sp::RingImpl::kP2p;
  const auto layout = [&](standin::PassLayout shape, const engine::AdapterShape& adapters) {
    shape.adapters = adapters;
    return shape;
  };
  for (const auto& [name, dtype, shape] :
       std::vector<std::tuple<const char*, at::ScalarType, standin::PassLayout>>{
           {"frozen", at::kFloat, layout({{1, 1, 1}, {}}, {all, {}})},
           {"frozen, bf16", at::kBFloat16, layout({{1, 1, 1}, {}}, {all, {}})},
           {"frozen, two projections", at::kFloat, layout({{1, 1, 1}, {}}, {some, {}})},
           {"frozen, ulysses 2, recomputed", at::kFloat,
            layout({{1, 1, 2}, {Recompute::kFull}}, {all, {}})},
           {"frozen, shard 2", at::kFloat, layout({{1, 1, 1, 2}, {}, p2p, 3}, {all, {}})},
           {"nf4", at::kFloat, layout({{1, 1, 1}, {}}, {all, QuantisedFormat::kNf4})},
           {"nf4, bf16, recomputed", at::kBFloat16,
            layout({{1, 1, 1}, {Recompute::kFull}}, {all, QuantisedFormat::kNf4})},
           {"int8", at::kFloat, layout({{1, 1, 1}, {}}, {all, QuantisedFormat::kInt8})}}) {
    CAPTURE(name);
    const standin::MeasuredPass pass =
        standin::measure_pass(estimated_model(6), dtype, documents(), shape);
    CHECK(pass.reports == "");
    const double ratio =
        static_cast<double>(pass.predicted.peak()) / static_cast<double>(pass.peak);
    std::cout << name << ": before " << pass.before << ", predicted "
              << pass.predicted.weights + pass.predicted.moments << "; peak " << pass.peak
              << " bytes, predicted / measured " << ratio << "\n";
    CHECK(static_cast<double>(pass.predicted.weights + pass.predicted.moments) ==
          Approx(static_cast<double>(pass.before)).epsilon(0.05));
    CHECK(ratio > 0.95);
    CHECK(ratio < 1.05);
  }
}

TEST_CASE("the peak of a model with experts is predicted") {
  using engine::Recompute;
  for (const standin::PassLayout& layout : std::vector<standin::PassLayout>{
           {{1, 1, 1}, {}},
           {{1, 1, 2}, {Recompute::kFull}},
           {{1, 1, 1, 2}, {}, sp::RingImpl::kP2p, 3},
           {{1, 1, 2, 1, 2}, {}, sp::RingImpl::kP2p, 3},
           {{1, 1, 1, 4, 2}, {Recompute::kFull}, sp::RingImpl::kP2p, 3}}) {
    const standin::MeasuredPass pass =
        standin::measure_pass(estimated_model(6, /*experts=*/8), at::kFloat, documents(), layout);
    CHECK(pass.reports == "");
    CHECK(static_cast<double>(pass.predicted.peak()) ==
          Approx(static_cast<double>(pass.peak)).epsilon(0.05));
  }
}

TEST_CASE("the peak with adapters of experts is predicted") {
  using engine::Recompute;
  // With one of attention, or the first layer's attention would save nothing.
  const engine::AdapterOptions options{
      8, 16.0, engine::parse_adapter_targets("q_proj, experts.gate_up_proj, experts.down_proj")};
  for (const auto& [dtype, mesh] : std::vector<std::pair<at::ScalarType, standin::PassLayout>>{
           {at::kFloat, {{1, 1, 1}, {}}},
           {at::kBFloat16, {{1, 1, 1}, {}}},
           {at::kFloat, {{1, 1, 1, 4, 2}, {Recompute::kFull}, sp::RingImpl::kP2p, 3}}}) {
    standin::PassLayout layout = mesh;
    layout.adapters = {options, {}};
    const standin::MeasuredPass pass =
        standin::measure_pass(estimated_model(6, /*experts=*/8), dtype, documents(), layout);
    CHECK(pass.reports == "");
    std::cout << "adapters of experts: predicted / measured "
              << static_cast<double>(pass.predicted.peak()) / static_cast<double>(pass.peak)
              << "\n";
    CHECK(static_cast<double>(pass.predicted.peak()) ==
          Approx(static_cast<double>(pass.peak)).epsilon(0.05));
  }
}

TEST_CASE("the peak of a model with latent attention is predicted") {
  using engine::Recompute;
  engine::ModelConfig config = estimated_model(6, /*experts=*/8);
  config.num_key_value_heads = config.num_attention_heads;
  config.latent = {.q_rank = 24, .kv_rank = 16, .nope_dim = 16, .rope_dim = 8, .value_dim = 16};
  config.head_dim = 24;
  config.experts.router = engine::RouterKind::kSigmoid;
  config.experts.shared_intermediate_size = 48;
  config.blocks.assign(
      6, {engine::TokenMixerKind::kLatentAttention, engine::ChannelMixerKind::kExperts});
  for (const standin::PassLayout& layout :
       std::vector<standin::PassLayout>{{{1, 1, 1}, {}},
                                        {{1, 1, 2}, {}},
                                        {{1, 2, 2}, {Recompute::kSelective}},
                                        {{1, 1, 2}, {Recompute::kFull}},
                                        {{1, 1, 1, 2}, {}, sp::RingImpl::kP2p, 3}}) {
    const standin::MeasuredPass pass =
        standin::measure_pass(config, at::kFloat, documents(), layout);
    CHECK(pass.reports == "");
    std::cout << "latent attention: peak " << pass.peak << ", predicted / measured "
              << static_cast<double>(pass.predicted.peak()) / static_cast<double>(pass.peak)
              << "\n";
    CHECK(static_cast<double>(pass.predicted.peak()) ==
          Approx(static_cast<double>(pass.peak)).epsilon(0.05));
  }
}

TEST_CASE("the peak with adapters beside latent attention is predicted") {
  engine::ModelConfig config = estimated_model(6);
  config.num_key_value_heads = config.num_attention_heads;
  config.latent = {.q_rank = 24, .kv_rank = 16, .nope_dim = 16, .rope_dim = 8, .value_dim = 16};
  config.head_dim = 24;
  config.blocks.assign(6, {engine::TokenMixerKind::kLatentAttention});
  standin::PassLayout layout{{1, 1, 1}, {}};
  // So many ranks that what the adapters save is a tenth of the peak.
  layout.adapters = {{64, 16.0,
                      engine::parse_adapter_targets("q_a_proj, q_b_proj, kv_a_proj_with_mqa, "
                                                    "kv_b_proj, o_proj, gate_proj, up_proj, "
                                                    "down_proj")},
                     {}};
  const standin::MeasuredPass pass = standin::measure_pass(config, at::kFloat, documents(), layout);
  CHECK(pass.reports == "");
  std::cout << "adapters beside latent attention: predicted / measured "
            << static_cast<double>(pass.predicted.peak()) / static_cast<double>(pass.peak) << "\n";
  CHECK(static_cast<double>(pass.predicted.peak()) ==
        Approx(static_cast<double>(pass.peak)).epsilon(0.05));
}

TEST_CASE("the peak of layers with other norms or an MLP without a gate is predicted") {
  using engine::Recompute;
  engine::ModelConfig both = estimated_model(6), behind = both, ungated = both;
  engine::ModelConfig whole_heads = both, partial = both;
  both.norm_place = engine::NormPlace::kBoth;
  behind.norm_place = engine::NormPlace::kAfter;
  // As OLMo 2: one norm over all query heads together, and one over all key heads.
  whole_heads.norm_place = engine::NormPlace::kAfter;
  whole_heads.attention.qk_norm = false;
  whole_heads.attention.joint_qk_norm = true;
  partial.attention.rotary_dim = 6;
  ungated.blocks.assign(
      6, {engine::TokenMixerKind::kSoftmaxAttention, engine::ChannelMixerKind::kSquaredReluMlp});
  for (const auto& [name, config] : {std::pair{"norms before and behind", both},
                                     {"norms behind", behind},
                                     {"norms behind and of whole heads", whole_heads},
                                     {"RoPE of half a head", partial},
                                     {"squared ReLU", ungated}}) {
    for (const standin::PassLayout& layout :
         std::vector<standin::PassLayout>{{{1, 1, 1}, {}},
                                          {{1, 1, 2}, {Recompute::kFull}},
                                          {{1, 1, 1}, {Recompute::kSelective, false, 200}}}) {
      CAPTURE(name);
      const standin::MeasuredPass pass =
          standin::measure_pass(config, at::kFloat, documents(), layout);
      CHECK(pass.reports == "");
      std::cout << name << ": predicted / measured "
                << static_cast<double>(pass.predicted.peak()) / static_cast<double>(pass.peak)
                << "\n";
      CHECK(static_cast<double>(pass.predicted.peak()) ==
            Approx(static_cast<double>(pass.peak)).epsilon(0.05));
    }
  }
}

// Heads of a delta net. With many narrow ones the convolution's backward needs most, with wide ones
// the rule's.
engine::ModelConfig hybrid_model(sp::StateShape heads, bool grouped) {
  engine::ModelConfig config = estimated_model(4);
  config.norms_plus_one = config.attention.gated = true;
  config.attention.rotary_dim = 6;
  config.delta_net = {heads, grouped};
  config.blocks.assign(4, {engine::TokenMixerKind::kGatedDelta});
  config.blocks[3].token_mixer = engine::TokenMixerKind::kSoftmaxAttention;
  return config;
}

TEST_CASE("the peak of a model with gated delta nets is predicted") {
  using engine::Recompute;
  const auto p2p = sp::RingImpl::kP2p;
  const auto zigzag = [](standin::PassLayout layout) {
    layout.placement = sp::Placement::kZigzag;
    return layout;
  };
  const sp::StateShape wide{2, 4, 32, 48, 4}, narrow{24, 24, 8, 8, 4};
  for (const auto& [name, heads, grouped, dtype, layout] : std::vector<
           std::tuple<const char*, sp::StateShape, bool, at::ScalarType, standin::PassLayout>>{
           {"1", wide, true, at::kFloat, {{1, 1, 1}, {}}},
           {"1, flat projections", wide, false, at::kFloat, {{1, 1, 1}, {}}},
           {"1, bf16", wide, true, at::kBFloat16, {{1, 1, 1}, {}}},
           {"1, narrow heads", narrow, true, at::kFloat, {{1, 1, 1}, {}}},
           {"1, narrow heads, bf16", narrow, false, at::kBFloat16, {{1, 1, 1}, {}}},
           {"1, recomputed", wide, true, at::kFloat, {{1, 1, 1}, {Recompute::kFull}}},
           {"ulysses 2", wide, true, at::kFloat, {{1, 1, 2}, {}}},
           {"ulysses 2, selective", narrow, true, at::kFloat, {{1, 1, 2}, {Recompute::kSelective}}},
           {"ring 2", wide, true, at::kFloat, zigzag({{1, 2, 1}, {}})},
           {"ring 2, narrow heads", narrow, true, at::kFloat, zigzag({{1, 2, 1}, {}})},
           {"shard 2, stage 3", wide, true, at::kFloat, {{1, 1, 1, 2}, {}, p2p, 3}},
           {"1, offloaded", wide, true, at::kFloat, {{1, 1, 1}, {Recompute::kFull, true}}}}) {
    CAPTURE(name);
    const standin::MeasuredPass pass =
        standin::measure_pass(hybrid_model(heads, grouped), dtype, documents(), layout);
    CHECK(pass.reports == "");
    const double ratio =
        static_cast<double>(pass.predicted.peak()) / static_cast<double>(pass.peak);
    std::cout << "delta nets, " << name << ": peak " << pass.peak << " bytes, predicted / measured "
              << ratio << "\n";
    CHECK(ratio > 0.95);
    CHECK(ratio < 1.05);
  }
}

TEST_CASE("the peak is predicted where other ranks' keys and values are most of a layer") {
  engine::ModelConfig config = estimated_model(3);
  config.num_key_value_heads = config.num_attention_heads = 8;
  config.head_dim = 16;
  const int64_t tile = GENERATE(0, 100);
  const int64_t ring = GENERATE(2, 3, 4);
  CAPTURE(tile, ring);
  const engine::ActivationOptions activations{engine::Recompute::kFull, false, tile,
                                              /*logit_chunk_bytes=*/1 << 18};
  // One document is cut over the ring; whole ones would send nothing.
  const standin::MeasuredPass pass =
      standin::measure_pass(config, at::kFloat, documents(1, 2400), {{1, ring, 1}, activations});
  CHECK(pass.reports == "");
  const double ratio = static_cast<double>(pass.predicted.peak()) / static_cast<double>(pass.peak);
  std::cout << "ring " << ring << ", tiles of " << tile << ": predicted / measured " << ratio
            << "\n";
  CHECK(pass.predicted.communication > pass.peak / 10);
  CHECK(ratio > 0.95);
  CHECK(ratio < 1.05);
}

TEST_CASE(
    "with recomputation and offload the device part of activations does not grow with depth") {
  using engine::Recompute;
  for (const Recompute recompute : {Recompute::kFull, Recompute::kSelective}) {
    for (const sp::MeshShape mesh : {sp::MeshShape{1, 1, 1}, sp::MeshShape{1, 2, 2}}) {
      const auto grown = [&](bool offload) {
        const standin::MeasuredPass shallow = train({mesh, {recompute, offload}}, 3);
        const standin::MeasuredPass deep = train({mesh, {recompute, offload}}, 9);
        // A third of the moments and weights beside them is a gradient's share.
        const int64_t gradients = (deep.before - shallow.before) / 3;
        return std::pair{(deep.held - deep.before) - (shallow.held - shallow.before),
                         (deep.peak - deep.before) - (shallow.peak - shallow.before) - gradients};
      };
      const int64_t input = 2400 / mesh.sp_size() * 48 * 4;  // bytes of a layer's input
      CHECK(grown(false).first >= 6 * input * 0.9);
      const auto [held_off, peak_off] = grown(true);
      CAPTURE(static_cast<int>(recompute), mesh.sp_size(), input, held_off, peak_off);
      CHECK(held_off == 0);
      CHECK(peak_off <= input / 10);
    }
  }
}
