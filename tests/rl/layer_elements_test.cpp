// Guards the weights that predictions of time count: a formula of head counts, which is wrong for
// latent attention, gated attention and delta nets.
#include "rl/setup/layer_elements.h"

#include "tests/support/catch.h"
#include "tests/support/tiny_model.h"

using namespace ringside;

namespace {

rl::LayerElements elements_of(const engine::ModelConfig& model) {
  return rl::mean_layer_elements(model, engine::make_layers(model));
}

}  // namespace

TEST_CASE("softmax attention counts its projections and norms, an MLP its three matrices") {
  const engine::ModelConfig model = test::tiny_config();
  const double projections = 2 * 16 * (4 + 2) * 8;
  const double qk_norms = 2 * 8, norms = 2 * 16;
  CHECK(elements_of(model).token_mixer == projections + qk_norms);
  CHECK(elements_of(model).others == 3 * 16 * 24 + norms);
}

TEST_CASE("gated attention counts the gate of its queries") {
  engine::ModelConfig model = test::tiny_config();
  const double plain = elements_of(model).token_mixer;
  model.attention.gated = true;
  CHECK(elements_of(model).token_mixer == plain + 16 * 4 * 8);
}

TEST_CASE(
    "latent attention counts its latents' projections, experts those that a token is sent to") {
  const engine::ModelConfig model = test::latent_config();
  const double queries = 16 * 9 + 9 + 9 * 4 * 10;          // down, norm, up
  const double keys = 16 * (7 + 4) + 7 + 7 * 4 * (6 + 8);  // down with RoPE's, norm, up
  CHECK(elements_of(model).token_mixer == queries + keys + 4 * 8 * 16);
  const double router = 6 * 16;
  const double experts = 3 * (3 * 16 * 12), shared = 3 * 16 * 12;
  CHECK(elements_of(model).others == (3 * 16 * 24 + router + experts + shared) / 2 + 2 * 16);
}

TEST_CASE("a delta net counts its projections, convolution and gates") {
  engine::ModelConfig model = test::tiny_config();
  model.delta_net.shape = {
      .key_heads = 2, .value_heads = 4, .key_dim = 6, .value_dim = 5, .conv_taps = 4};
  model.blocks = {{engine::TokenMixerKind::kGatedDelta}, {engine::TokenMixerKind::kGatedDelta}};
  const double conv = 2 * 2 * 6 + 4 * 5, out = 4 * 5, gates = 2 * 4;
  const double projections = 16 * (conv + out + gates) + 16 * out;
  const double others = 4 * conv + 2 * 4 + 5;  // taps, decay and its bias, norm
  CHECK(elements_of(model).token_mixer == projections + others);
}
