// Guards: a vision tower, or rows of images in a decoder, that make the host wait, touch device
// memory from the host, or compute something else on a device.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "tests/support/catch.h"
#include "tests/support/local_attention.h"
#include "tests/support/standin/standin.h"
#include "tests/support/tiny_tower.h"

namespace ringside::standin {
namespace {

using engine::VisionFamily;

const std::vector<engine::PatchGrid> kGrids{{1, 4, 6}, {1, 2, 2}};

// Of one document, whose images are its tokens 1 to 6 and 9.
struct Inputs {
  at::Tensor patches, ids, positions_3s, places;

  explicit Inputs(const engine::ModelConfig& config)
      : patches(test::random_patches(*config.vision, kGrids, at::kDouble)),
        ids(at::arange(11, at::kLong)),
        positions_3s(at::arange(33, at::kLong).view({3, 11})),
        places(at::tensor({1, 2, 3, 4, 5, 6, 9}, at::kLong)) {}

  Inputs on(c10::Device device) const {
    Inputs there = *this;
    for (at::Tensor* one : {&there.patches, &there.ids, &there.positions_3s, &there.places}) {
      *one = one->to(device);
    }
    return there;
  }
};

// Rows of the images, hidden states behind the decoder, gradients of all units.
std::vector<at::Tensor> train(engine::Decoder& decoder, const Inputs& inputs) {
  test::LocalAttention attention({11});
  engine::EncodedImages images =
      decoder.parameters().tower()->encode(inputs.patches, kGrids, decoder.activation_options());
  std::vector<at::Tensor> results{images.rows_iE.detach()};
  const at::Tensor hidden =
      decoder.forward(inputs.ids, inputs.positions_3s, attention, nullptr,
                      {inputs.places, images.rows_iE, std::move(images.deepstack_iE)});
  results.push_back(hidden.detach());
  hidden.square().sum().backward();
  for (const engine::ParamUnit* unit : decoder.units()) {
    results.push_back(unit->grad());
  }
  return results;
}

TEST_CASE("a model with images computes the same on a device, and its host never waits") {
  for (const VisionFamily family : test::kVisionFamilies) {
    for (const engine::Recompute recompute : {engine::Recompute::kNone, engine::Recompute::kFull}) {
      Scope scope;
      const engine::ModelConfig config = test::tower_config(family);
      engine::Decoder here = test::tower_decoder(config, at::kDouble);
      engine::ComputeContext context(at::kDouble);
      context.device = device();
      engine::Decoder there(
          config, context,
          {.frozen = false, .projections = {}, .vision = engine::VisionTraining::kAll});
      there.copy_parameters_from(here);
      for (engine::Decoder* decoder : {&here, &there}) {
        decoder->set_activation_options({.recompute = recompute});
      }
      const Inputs inputs(config);
      const Inputs uploaded = inputs.on(device());
      scope.reset_counts();
      std::vector<at::Tensor> found;
      {
        const NoHostWaits none(0, "a model with images");
        found = train(there, uploaded);
      }
      CHECK(scope.text() == "");
      CHECK(Counts::sum(scope.counts().host_syncs) == 0);
      const std::vector<at::Tensor> expected = train(here, inputs);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        CAPTURE(i);
        CHECK(found[i].cpu().equal(expected[i]));
      }
    }
  }
}

}  // namespace
}  // namespace ringside::standin
