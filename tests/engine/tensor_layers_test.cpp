// Guards layers whose matrices are cut over tensor-parallel ranks, against the uncut layer: a head
// on the wrong rank, a bias that is added twice or a sum that is left out gives wrong gradients
// behind a loss that looks fine.
#include <ATen/ATen.h>

#include <functional>
#include <map>
#include <mutex>

#include "engine/models/adapters.h"
#include "engine/params/sharding.h"
#include "tests/support/catch.h"
#include "tests/support/tensor_layer.h"
#include "tests/support/tiny_model.h"

namespace ringside::engine {
namespace {

using test::LayerProblem;

struct Variant {
  const char* name;
  ModelConfig config;
  int64_t layer = 0;
  std::vector<int64_t> ranks = {2, 3, 4};
};

// Throws unless the ranks' result is that of the uncut layer; returns how far they are apart.
void check(const Variant& variant, const MlpTiles& tiles = {}) {
  LayerProblem p{variant.config, variant.layer};
  p.tiles = tiles;
  const test::LayerParams params = test::random_params(p.config, p.layer);
  const test::LayerResult whole = test::run_layer(p, params, nullptr);
  for (const int64_t ranks : variant.ranks) {
    const auto found = test::difference(whole, test::run_layer_on_ranks(p, params, ranks));
    CAPTURE(variant.name, ranks, found.where);
    CHECK(found.worst < 1e-10);
  }
  // Every parameter takes part, so that its gradient was compared.
  for (const auto& [name, grad] : whole.grads) {
    CAPTURE(variant.name, name);
    CHECK(grad.abs().max().item<double>() > 0.0);
  }
}

ModelConfig heads(int64_t query, int64_t kv) {
  ModelConfig config = test::tiny_config();
  config.num_attention_heads = query;
  config.num_key_value_heads = kv;
  return config;
}

ModelConfig with(ModelConfig config, const std::function<void(ModelConfig&)>& change) {
  change(config);
  return config;
}

TEST_CASE("softmax attention on tensor ranks is the uncut layer") {
  const auto biased = [](ModelConfig& c) { c.attention.qkv_bias = c.attention.o_bias = true; };
  for (const Variant& variant : {
           Variant{"4/2 heads: key/value heads on one rank each at 2", heads(4, 2)},
           Variant{"8/4 heads, biases", with(heads(8, 4), biased)},
           Variant{"6/2 heads, biases: parts begin inside groups", with(heads(6, 2), biased)},
           Variant{"7/1 heads: one key/value head on all ranks", heads(7, 1)},
           Variant{"3/3 heads: a rank without a head at 4", heads(3, 3)},
           Variant{"2/1 heads, biases: ranks without a head", with(heads(2, 1), biased)},
           Variant{"sinks and a window", test::stacked_config()},
           Variant{"output gates and RoPE of a part", test::hybrid_config(false), 2},
           Variant{
               "output gates with shared key/value heads",
               with(test::hybrid_config(false), [](ModelConfig& c) { c.num_attention_heads = 6; }),
               2},
           Variant{"one tensor for q, k and v, and for gate and up",
                   with(heads(8, 4),
                        [](ModelConfig& c) {
                          c.fused_projections = true;
                          c.attention.qk_norm = false;
                        }),
                   0,
                   {2, 4}},
           Variant{"norms on both sides", with(heads(4, 2),
                                               [](ModelConfig& c) {
                                                 c.norm_place = NormPlace::kBoth;
                                                 c.multipliers.residual = 0.5;
                                               })},
       }) {
    check(variant);
  }
}

TEST_CASE("latent attention on tensor ranks is the uncut layer") {
  const auto heads_of = [](int64_t count) {
    return with(test::latent_config(),
                [count](ModelConfig& c) { c.num_attention_heads = c.num_key_value_heads = count; });
  };
  for (const Variant& variant : {
           Variant{"5 heads", heads_of(5)},
           Variant{"3 heads, biases: a rank without a head at 4",
                   with(heads_of(3), [](ModelConfig& c) { c.latent.bias = true; })},
           Variant{"queries without a latent",
                   with(heads_of(4), [](ModelConfig& c) { c.latent.q_rank = 0; })},
       }) {
    check(variant);
  }
}

TEST_CASE("a gated delta net on tensor ranks is the uncut layer") {
  for (const bool grouped : {false, true}) {
    for (const int64_t key_heads : {2, 3, 5}) {
      check({grouped ? "grouped projections" : "flat projections",
             with(test::hybrid_config(false), [&](ModelConfig& c) {
               c.delta_net = {{key_heads, 2 * key_heads, 6, 5, 4}, grouped};
             })});
    }
  }
}

TEST_CASE("MLPs on tensor ranks are the uncut layer, in tiles too") {
  const auto sized = [](int64_t size, ChannelMixerKind kind) {
    return with(test::tiny_config(), [&](ModelConfig& c) {
      c.intermediate_size = size;
      c.blocks = {{.channel_mixer = kind}, {.channel_mixer = kind}};
    });
  };
  const auto biased = [](ModelConfig& c) { c.mlp_bias = true; };
  for (const Variant& variant : {
           Variant{"40 columns", sized(40, ChannelMixerKind::kMlp)},
           Variant{"20 columns, biases: a rank without a column at 4",
                   with(sized(20, ChannelMixerKind::kMlp), biased)},
           Variant{"gates by GELU",
                   with(sized(24, ChannelMixerKind::kMlp),
                        [](ModelConfig& c) { c.activation = GateActivation::kGeluTanh; })},
           Variant{"squared ReLU, biases",
                   with(sized(20, ChannelMixerKind::kSquaredReluMlp), biased)},
       }) {
    check(variant);
    check(variant, {.rows = 3});
  }
}

TEST_CASE("experts on tensor ranks are the uncut layer, with shared and stacked experts") {
  for (const Variant& variant : {Variant{"sigmoid router, a shared MLP", test::latent_config(), 1},
                                 Variant{"a gated shared MLP", test::hybrid_config(true), 1},
                                 Variant{"stacked experts with biases", test::stacked_config()}}) {
    check(variant);
  }
}

// Numbers that follow from a factor's name: the order of factors depends on the ranks.
void fill(Adapters& adapters) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < adapters.unit().specs().size(); ++i) {
    const std::string& name = adapters.unit().specs()[i].name;
    at::Generator random = at::make_generator<at::CPUGeneratorImpl>(std::hash<std::string>()(name));
    const at::Tensor factor = adapters.unit().view(i);
    factor.copy_(at::randn(factor.sizes(), random, at::kDouble));
  }
}

TEST_CASE("adapters on tensor ranks: the same model and the same gradients of whole factors") {
  const std::vector<std::string> all{"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                     "gate_proj", "up_proj", "down_proj"};
  for (const ModelConfig& config : {heads(4, 2), heads(6, 2), heads(3, 3)}) {
    LayerProblem p{config, 1};
    const test::LayerParams params = test::random_params(p.config, p.layer);
    // Of each rank: its adapters' gradients.
    const auto run = [&](int64_t ranks, at::Tensor& gradient) {
      std::mutex mutex;
      const auto body = [&](const std::shared_ptr<sp::Communicator>& comm) {
        ComputeContext context(at::kDouble);
        const auto alone = sp::make_single_rank_communicator();
        if (comm != nullptr) {
          context.sharding = std::make_shared<const Sharding>(Sharding{alone, alone});
          context.tensor =
              std::make_shared<const TensorSharding>(TensorSharding{comm, context.sharding, comm});
        }
        Adapters adapters(p.config, whole_stage(p.config), {4, 8.0, all}, context);
        fill(adapters);
        const auto result = test::run_layer(
            p, params, comm, [&](const DecoderLayer&, std::vector<Weight>& weights) {
              for (Weight& weight : weights) {
                weight = Weight(weight.value.detach());
              }
              adapters.attach(p.layer, weights, adapters.split_layers()[p.layer], at::kDouble);
            });
        const std::lock_guard lock(mutex);
        const at::Tensor& grad = adapters.unit().flat().grad();
        // By name, as the order of factors depends on the ranks.
        std::map<std::string, at::Tensor> by_name;
        int64_t begin = 0;
        for (const ParamSpec& spec : adapters.unit().specs()) {
          by_name[spec.name] = grad.narrow(0, begin, spec.numel());
          begin += spec.numel();
        }
        std::vector<at::Tensor> sorted;
        for (const auto& [name, of_factor] : by_name) {
          sorted.push_back(of_factor);
        }
        const at::Tensor flat = at::cat(sorted);
        gradient = gradient.defined() ? gradient + flat : flat.clone();
        return result;
      };
      if (ranks == 1) {
        return body(nullptr);
      }
      test::LayerResult first;
      std::vector<at::Tensor> y(ranks), d_x(ranks);
      sp::MeshShape shape;
      shape.tensor = ranks;
      test::run_ranks_in_memory(shape,
                                [&](const sp::Mesh& mesh, const sp::ProcessGroups& groups) {
                                  const test::LayerResult part =
                                      body(groups.tensors(sp::axes::kTensor));
                                  y[mesh.rank()] = part.y_sE;
                                  d_x[mesh.rank()] = part.d_x_sE;
                                },
                                {sp::axes::kTensor});
      first.y_sE = at::cat(y);
      first.d_x_sE = at::cat(d_x);
      return first;
    };
    at::Tensor expected_gradient;
    const test::LayerResult expected = run(1, expected_gradient);
    for (const int64_t ranks : {2, 3, 4}) {
      CAPTURE(config.num_attention_heads, ranks);
      at::Tensor gradient;
      const test::LayerResult found = run(ranks, gradient);
      test::LayerDifference difference;
      difference.add("output", expected.y_sE, found.y_sE);
      difference.add("input gradient", expected.d_x_sE, found.d_x_sE);
      difference.add("factors", expected_gradient, gradient);
      CAPTURE(difference.where);
      CHECK(difference.worst < 1e-10);
    }
  }
}

TEST_CASE("what cannot be cut says why") {
  const auto reason = [](const ModelConfig& config, int64_t ranks) {
    return supports(config, Feature::kTensorCut, {0, ranks}).reason();
  };
  CHECK(reason(heads(6, 2), 4).empty());
  CHECK(reason(test::hybrid_config(true), 3).empty());
  CHECK(reason(test::latent_config(), 3).empty());
  CHECK(reason(with(heads(4, 2),
                    [](ModelConfig& c) {
                      c.attention.qk_norm = false;
                      c.attention.joint_qk_norm = true;
                    }),
               2) == "attention with a norm over all heads would need a sum over tensor ranks");
  const ModelConfig fused = with(heads(4, 2), [](ModelConfig& c) { c.fused_projections = true; });
  CHECK(reason(fused, 2).empty());
  CHECK_THAT(reason(fused, 4), Catch::Contains("one tensor for q, k and v"));
}

}  // namespace
}  // namespace ringside::engine
