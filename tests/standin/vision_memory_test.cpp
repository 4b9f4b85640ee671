// The predicted peak of device memory of models that take images against the stand-in's.
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "engine/runner/loading_memory.h"
#include "tests/standin/measured_pass.h"
#include "tests/support/catch.h"
#include "tests/support/image_documents.h"
#include "tests/support/tiny_tower.h"

using namespace ringside;

namespace {

using engine::Recompute;
using engine::VisionFamily;
using engine::VisionTraining;

constexpr int64_t kHeight = 12;  // tokens

// Of an image, in tokens. Both of two that follow each other have together as many as any others.
int64_t width_of(int64_t number) { return number % 2 == 0 ? 15 : 16; }

// A tower whose activations are most of the peak where they are kept.
engine::ModelConfig model_of(VisionFamily family) {
  engine::ModelConfig config = test::tower_config(family);
  config.vocab_size = 64;
  config.hidden_size = 48;
  config.intermediate_size = 96;
  config.num_hidden_layers = 3;
  config.head_dim = 12;
  config.max_position_embeddings = 1024;
  config.tie_word_embeddings = true;
  engine::VisionConfig& vision = *config.vision;
  vision.depth = 4;
  vision.width = 32;
  vision.mlp = 48;
  vision.patch = 4;
  vision.rope = {{2, 2, 2}, family == VisionFamily::kQwen3Vl};
  if (family == VisionFamily::kQwen2_5Vl) {
    vision.window = 32;
    vision.full_blocks = {1, 3};
  }
  if (family == VisionFamily::kQwen3Vl) {
    vision.positions = 64;
    vision.deepstack = {0, 2};
  }
  return config;
}

// Each with an image of its own.
std::vector<sp::Document> documents(int64_t count = 8) {
  std::vector<sp::Document> all;
  for (int64_t d = 0; d < count; ++d) {
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < 240; ++i) {
      ids.push_back((7 * i + 31 * d) % 64);
    }
    all.push_back(
        test::image_document(std::move(ids), 210, {{5, d + 1, kHeight, width_of(d + 1)}}));
  }
  return all;
}

engine::ImageInput images(const engine::VisionConfig& vision) {
  engine::ImageInput input;
  input.processor.patch = vision.patch;
  input.processor.temporal_patch = vision.temporal_patch;
  input.processor.merge = vision.merge;
  input.kept = std::make_shared<engine::KeptRows>();
  input.pixels = [patch = vision.patch](const sp::ImageId& id) {
    auto image = std::make_shared<engine::ProcessedImage>();
    image->grid = {1, 2 * kHeight, 2 * width_of(static_cast<int64_t>(id.low))};
    image->image.height = image->grid.height * patch;
    image->image.width = image->grid.width * patch;
    image->image.rgb.assign(3 * image->image.height * image->image.width, 100);
    return image;
  };
  return input;
}

struct Case {
  const char* name;
  standin::PassLayout layout;
  VisionTraining vision;
  at::ScalarType dtype = at::kFloat;
};

}  // namespace

TEST_CASE("the peak of a model with a vision tower is predicted") {
  const auto p2p = sp::RingImpl::kP2p;
  const auto tensor = [](int64_t ranks, int64_t shard) {
    standin::PassLayout layout;
    layout.mesh.tensor = ranks;
    layout.mesh.dp_shard = shard;
    layout.stage = shard > 1 ? 3 : 0;
    return layout;
  };
  std::vector<Case> cases;
  for (const auto vision :
       {VisionTraining::kNothing, VisionTraining::kMergers, VisionTraining::kAll}) {
    for (const auto& [name, layout] : std::vector<std::pair<const char*, standin::PassLayout>>{
             {"1", {{1, 1, 1}, {}}},
             {"1, recomputed", {{1, 1, 1}, {Recompute::kFull}}},
             {"ulysses 2", {{1, 1, 2}, {}}},
             {"ring 2", {{1, 2, 1}, {}}},
             {"ring 2, recomputed", {{1, 2, 1}, {Recompute::kFull}}},
             {"shard 2, stage 2", {{1, 1, 1, 2}, {}, p2p, 2}},
             {"shard 2, stage 3", {{1, 1, 1, 2}, {}, p2p, 3}},
             {"shard 2, stage 3, recomputed", {{1, 1, 1, 2}, {Recompute::kFull}, p2p, 3}},
             {"tensor 2", tensor(2, 1)},
             {"tensor 2, shard 2", tensor(2, 2)}}) {
      cases.push_back({name, layout, vision});
    }
    cases.push_back({"1, bf16", {{1, 1, 1}, {}}, vision, at::kBFloat16});
    cases.push_back(
        {"1, bf16, recomputed", {{1, 1, 1}, {Recompute::kFull}}, vision, at::kBFloat16});
  }
  for (const VisionFamily family : test::kVisionFamilies) {
    const engine::ModelConfig config = model_of(family);
    for (Case& one : cases) {
      CAPTURE(static_cast<int>(family), one.name, static_cast<int>(one.vision));
      one.layout.vision = one.vision;
      const standin::MeasuredPass pass =
          standin::measure_pass(config, one.dtype, documents(), one.layout,
                                std::chrono::seconds(20), [&] { return images(*config.vision); });
      CHECK(pass.reports == "");
      const double ratio =
          static_cast<double>(pass.predicted.peak()) / static_cast<double>(pass.peak);
      std::cout << "family " << static_cast<int>(family) << ", tower "
                << static_cast<int>(one.vision) << ", " << one.name << ": before " << pass.before
                << ", predicted " << pass.predicted.weights + pass.predicted.moments << "; held "
                << pass.held << "; peak " << pass.peak << ", predicted " << pass.predicted.peak()
                << " / measured " << ratio << "\n";
      CHECK(static_cast<double>(pass.predicted.weights + pass.predicted.moments) ==
            Approx(static_cast<double>(pass.before)).epsilon(0.05));
      CHECK(ratio > 0.95);
      CHECK(ratio < 1.05);
    }
  }
}

TEST_CASE("the part of a tower that is not trained is loaded in the compute dtype") {
  const engine::ComputeContext context(at::kBFloat16, standin::device());
  for (const VisionFamily family : test::kVisionFamilies) {
    for (const auto vision :
         {VisionTraining::kNothing, VisionTraining::kMergers, VisionTraining::kAll}) {
      engine::ModelConfig config = model_of(family);
      config.num_hidden_layers = 1;
      const engine::WeightStorage storage{.frozen = false, .projections = {}, .vision = vision};
      standin::Scope scope;
      engine::RandomWeights draw(config, 1, 0.1);
      const engine::Decoder decoder(config, context, storage, std::ref(draw));
      const engine::LoadingMemory predicted = engine::loading_memory(config, context, storage, {});
      CAPTURE(static_cast<int>(family), static_cast<int>(vision));
      CHECK(static_cast<double>(predicted.kept) ==
            Approx(static_cast<double>(scope.current_bytes())).epsilon(0.05));
      CHECK(static_cast<double>(predicted.peak) ==
            Approx(static_cast<double>(scope.peak_bytes())).epsilon(0.05));
    }
  }
}
