// Guards: rows of images in the wrong place, or with a gradient that goes elsewhere; deepstack rows
// lost or added twice, also by recomputation; a placeholder's id that counts; text that changes
// because a model can take images.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <memory>
#include <vector>

#include "engine/layers/decoder_layer.h"
#include "engine/models/weight_export.h"
#include "engine/ops/rms_norm.h"
#include "tests/support/catch.h"
#include "tests/support/close.h"
#include "tests/support/grad_check.h"
#include "tests/support/local_attention.h"
#include "tests/support/tiny_tower.h"

namespace ringside::engine {
namespace {

using test::LocalAttention;
using test::max_abs_diff;
using test::tower_config;
using test::tower_decoder;

// Two documents; the first has an image at tokens 2 to 5, the second one at its first token.
struct Batch {
  std::vector<int64_t> lengths{8, 4};
  at::Tensor ids = at::tensor({3, 4, 9, 9, 9, 9, 5, 6, 9, 7, 8, 9}, at::kLong);
  at::Tensor places = at::tensor({2, 3, 4, 5, 8}, at::kLong);
  at::Tensor positions_3s = at::stack({
      at::tensor({0, 1, 2, 2, 2, 2, 4, 5, 0, 1, 2, 3}, at::kLong),
      at::tensor({0, 1, 2, 2, 3, 3, 4, 5, 0, 1, 2, 3}, at::kLong),
      at::tensor({0, 1, 2, 3, 2, 3, 4, 5, 0, 1, 2, 3}, at::kLong),
  });
  at::Tensor targets = at::arange(12, at::kLong);
};

ImageRows random_images(const ModelConfig& config, const Batch& batch) {
  at::manual_seed(4);
  const auto rows = [&] {
    return at::randn({batch.places.size(0), config.hidden_size}, at::kDouble).requires_grad_();
  };
  ImageRows images{batch.places, rows(), {}};
  for (std::size_t k = 0; k < config.vision->deepstack.size(); ++k) {
    images.deepstack_iE.push_back(rows());
  }
  return images;
}

at::Tensor loss_of(const Decoder& decoder, const Batch& batch, const ImageRows& images,
                   LocalAttention& attention) {
  const at::Tensor hidden =
      decoder.forward(batch.ids, batch.positions_3s, attention, nullptr, images);
  const at::Tensor temperature = at::ones({12}, at::kDouble);
  const at::Tensor weight = at::arange(1, 13, at::kDouble).cos();
  return (decoder.score(hidden, batch.targets, temperature).logprobs_n * weight).sum();
}

std::vector<at::Tensor> leaves_of(const ImageRows& images) {
  std::vector<at::Tensor> leaves{images.rows_iE};
  leaves.insert(leaves.end(), images.deepstack_iE.begin(), images.deepstack_iE.end());
  return leaves;
}

TEST_CASE("gradients of image rows and deepstack rows equal finite differences") {
  for (const VisionFamily family : test::kVisionFamilies) {
    Decoder decoder = tower_decoder(tower_config(family));
    const Batch batch;
    const ImageRows images = random_images(decoder.config(), batch);
    for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
      decoder.set_activation_options({.recompute = recompute});
      LocalAttention attention(batch.lengths);
      CHECK(test::worst_gradient_error([&] { return loss_of(decoder, batch, images, attention); },
                                       leaves_of(images)) < 1e-8);
    }
  }
}

// Everything but the places of images is a document of text.
TEST_CASE("rows that are embeddings compute what their ids do") {
  ModelConfig config = tower_config(VisionFamily::kQwen2Vl);
  const Decoder decoder = tower_decoder(config);
  Batch batch;
  const at::NoGradGuard no_grad;
  const at::Tensor meant = at::tensor({1, 2, 3, 10, 11}, at::kLong);
  LocalAttention attention(batch.lengths);
  const at::Tensor table = decoder.parameters().embedding().view(0);
  const at::Tensor found = decoder.forward(batch.ids, batch.positions_3s, attention, nullptr,
                                           {batch.places, table.index_select(0, meant), {}});
  const at::Tensor ids = batch.ids.index_copy(0, batch.places, meant);
  CHECK(found.equal(decoder.forward(ids, batch.positions_3s, attention)));
}

TEST_CASE("deepstack rows are added behind the first layers, at the places of images alone") {
  ModelConfig config = tower_config(VisionFamily::kQwen3Vl);
  const Decoder decoder = tower_decoder(config);
  const Batch batch;
  const at::NoGradGuard no_grad;
  const ImageRows images = random_images(config, batch);
  // The layers one by one.
  const DecoderWeights weights = decoder.materialize();
  LocalAttention attention(batch.lengths);
  RopeFrequencies frequencies = rope_frequencies(config.rope());
  frequencies.component_d = section_components(config.vision->rope, config.head_dim / 2);
  const Ropes ropes{rope_tables(frequencies, batch.positions_3s, at::kDouble)};
  at::Tensor hidden = at::embedding(weights.embedding_VE, batch.ids).clone();
  const auto row = [&](int64_t i) { return batch.places[i].item<int64_t>(); };
  for (int64_t i = 0; i < 5; ++i) {
    hidden[row(i)] = images.rows_iE[i];
  }
  for (std::size_t layer = 0; layer < 2; ++layer) {
    hidden = decoder.layer(static_cast<int64_t>(layer))
                 .forward(hidden, {weights.layers[layer], ropes, attention});
    for (int64_t i = 0; i < 5; ++i) {
      hidden[row(i)] += images.deepstack_iE[layer][i];
    }
  }
  const at::Tensor expected = rms_norm(hidden, Weight(weights.final_norm_E), config.norm_options());
  CHECK(max_abs_diff(decoder.forward(batch.ids, batch.positions_3s, attention, nullptr, images),
                     expected) < 1e-13);
  // As a generator computes it.
  CHECK(max_abs_diff(
            decoder.forward(weights, batch.ids, batch.positions_3s, attention, nullptr, images),
            expected) < 1e-13);
}

TEST_CASE("the id of a placeholder does not count, and its embedding has no gradient") {
  for (const VisionFamily family : test::kVisionFamilies) {
    Decoder decoder = tower_decoder(tower_config(family));
    Batch batch;
    // Token 11 has the placeholder's id, 9, and no image: a policy sampled it. Its embedding
    // counts.
    const ImageRows images = random_images(decoder.config(), batch);
    LocalAttention attention(batch.lengths);
    const ParamUnit& embedding = decoder.parameters().embedding();
    loss_of(decoder, batch, images, attention).backward();
    const at::Tensor grad = embedding.layout().view_of(embedding.grad(), 0).clone();
    CHECK(grad[9].abs().max().item<double>() > 0);
    decoder.units().front()->zero_grad();
    const at::Tensor value = loss_of(decoder, batch, images, attention).detach();

    batch.ids = batch.ids.index_fill(0, batch.places, 12);
    const at::Tensor other = loss_of(decoder, batch, images, attention);
    CHECK(other.detach().equal(value));
    other.backward();
    const at::Tensor of_other = embedding.layout().view_of(embedding.grad(), 0);
    CHECK(of_other[12].equal(at::zeros_like(of_other[12])));
    CHECK(of_other.equal(grad));
  }
}

TEST_CASE("recomputed layers have the gradients of kept ones to the bit, with deepstack rows") {
  Decoder decoder = tower_decoder(tower_config(VisionFamily::kQwen3Vl));
  const Batch batch;
  const ImageRows images = random_images(decoder.config(), batch);
  std::vector<std::vector<at::Tensor>> found;
  for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
    decoder.set_activation_options({.recompute = recompute});
    for (ParamUnit* unit : decoder.units()) {
      unit->zero_grad();
    }
    for (const at::Tensor& leaf : leaves_of(images)) {
      leaf.mutable_grad().reset();
    }
    LocalAttention attention(batch.lengths);
    loss_of(decoder, batch, images, attention).backward();
    std::vector<at::Tensor>& grads = found.emplace_back();
    for (const ParamUnit* unit : decoder.units()) {
      grads.push_back(unit->grad().clone());
    }
    for (const at::Tensor& leaf : leaves_of(images)) {
      grads.push_back(leaf.grad().clone());
    }
  }
  for (std::size_t i = 0; i < found[0].size(); ++i) {
    CAPTURE(i);
    CHECK(found[0][i].equal(found[1][i]));
  }
}

TEST_CASE("text in a model that can take images has the bits of the model without a tower") {
  for (const VisionFamily family : test::kVisionFamilies) {
    const ModelConfig config = tower_config(family);
    ModelConfig text = config;
    text.vision.reset();
    Decoder plain = test::random_decoder(text, at::kFloat, 3);
    Decoder decoder(config, ComputeContext(at::kFloat));
    decoder.init_random(3, 0.2);
    for (std::size_t u = 0; u < plain.units().size(); ++u) {
      CHECK(plain.units()[u]->name() == decoder.units()[u]->name());
      CHECK(plain.units()[u]->flat().equal(decoder.units()[u]->flat()));
    }
    const Batch batch;
    const at::NoGradGuard no_grad;
    LocalAttention attention(batch.lengths);
    const at::Tensor positions = test::packed_positions(batch.lengths);
    const at::Tensor expected = plain.forward(batch.ids, positions, attention);
    CHECK(decoder.forward(batch.ids, positions, attention).equal(expected));
    CHECK(decoder.forward(batch.ids, at::stack({positions, positions, positions}), attention)
              .equal(expected));
  }
}

TEST_CASE("a new tower's norms multiply by one, in models whose own norms do not") {
  ModelConfig config = tower_config(VisionFamily::kQwen3Vl);
  config.norms_plus_one = true;
  Decoder decoder(config, ComputeContext(at::kDouble));
  decoder.init_random(3, 0.2);
  for (const auto& unit : decoder.parameters().tower()->units()) {
    for (std::size_t i = 0; i < unit->specs().size(); ++i) {
      const ParamSpec& spec = unit->specs()[i];
      INFO(spec.name);
      const at::Tensor values = unit->view(i);
      if (spec.shape.size() > 1) {
        CHECK(values.std().item<double>() == Approx(0.2).epsilon(0.5));
      } else {
        CHECK(values.equal(at::full_like(values, spec.name.ends_with(".weight") ? 1.0 : 0.0)));
      }
    }
  }
}

TEST_CASE("an export and copies of a model have its tower") {
  const Decoder decoder =
      tower_decoder(tower_config(VisionFamily::kQwen3Vl), at::kDouble, VisionTraining::kNothing);
  const at::Tensor patches = test::random_patches(*decoder.config().vision, {{1, 2, 4}});
  const std::vector<PatchGrid> grids{{1, 2, 4}};
  const at::Tensor expected = decoder.parameters().tower()->encode(patches, grids).rows_iE;
  export_weights(decoder, [&](UnitExport& units) {
    CHECK((units.weights().specs() == decoder_specs(decoder.config())));
    const std::unique_ptr<Decoder> copy = whole_copy(units);
    CHECK(copy->parameters().tower()->encode(patches, grids).rows_iE.equal(expected));
  });
}

TEST_CASE("adapters freeze a tower, which the model without them shares") {
  Decoder decoder = tower_decoder(tower_config(VisionFamily::kQwen2_5Vl));
  decoder.add_adapters({2, 4.0, {"q_proj"}});
  CHECK(decoder.trained_units().size() == 1);
  const std::vector<PatchGrid> grids{{1, 2, 4}};
  const at::Tensor patches = test::random_patches(*decoder.config().vision, grids);
  CHECK_FALSE(decoder.parameters().tower()->encode(patches, grids).rows_iE.requires_grad());
  CHECK(decoder.without_adapters()->parameters().tower() == decoder.parameters().tower());
}

TEST_CASE("rows that do not fit, and images for a model without a tower, are refused") {
  const ModelConfig config = tower_config(VisionFamily::kQwen3Vl);
  const Decoder decoder = tower_decoder(config);
  const Batch batch;
  const ImageRows good = random_images(config, batch);
  LocalAttention attention(batch.lengths);
  const auto refuses = [&](const ImageRows& images) {
    CHECK_THROWS_AS(decoder.forward(batch.ids, batch.positions_3s, attention, nullptr, images),
                    c10::Error);
  };
  refuses({good.place_i.narrow(0, 0, 4), good.rows_iE, good.deepstack_iE});
  refuses({good.place_i.to(at::kInt), good.rows_iE, good.deepstack_iE});
  refuses({good.place_i, good.rows_iE.to(at::kFloat), good.deepstack_iE});
  refuses({good.place_i, good.rows_iE.narrow(1, 0, 3), good.deepstack_iE});
  refuses({good.place_i, good.rows_iE, {}});
  refuses({good.place_i, good.rows_iE, {good.rows_iE, good.rows_iE.narrow(0, 0, 4)}});
  CHECK_THROWS_AS(decoder.forward(batch.ids, batch.positions_3s.narrow(0, 0, 2), attention),
                  c10::Error);
  CHECK_THROWS_AS(decoder.forward(batch.ids, batch.positions_3s.narrow(1, 0, 11), attention),
                  c10::Error);

  ModelConfig text = config;
  text.vision.reset();
  const Decoder plain = test::random_decoder(text, at::kDouble, 3);
  const at::Tensor positions = test::packed_positions(batch.lengths);
  CHECK_THROWS_AS(plain.forward(batch.ids, positions, attention, nullptr, good), c10::Error);
  CHECK_THROWS_AS(plain.forward(batch.ids, batch.positions_3s, attention), c10::Error);
}

TEST_CASE("a model with a tower is not cut into stages") {
  const ModelConfig config = tower_config(VisionFamily::kQwen3Vl);
  for (const Stage& stage : cut_stages(config, {1})) {
    CHECK_THROWS_WITH(Decoder(config, stage, ComputeContext(at::kDouble)),
                      Catch::Contains("is not cut into stages"));
  }
}

}  // namespace
}  // namespace ringside::engine
