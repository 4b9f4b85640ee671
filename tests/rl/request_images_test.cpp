// Guards the images that a worker sends to a server: another image than the prompt's, one name for
// two images, rows that are not those of our image processor, a copy of them for each sample; and
// ways of loading weights that would leave a vision tower out.
#include "rl/worker/request_images.h"

#include <filesystem>
#include <fstream>

#include "engine/images/image_decoder.h"
#include "rl/worker/weight_route.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

using namespace ringside;
using namespace ringside::test;
namespace fs = std::filesystem;

namespace {

const fs::path kSamples = fs::path(RINGSIDE_SOURCE_DIR) / "tests/fuzz/corpus/image";
constexpr int64_t kPlaceholder = 27;

// Prompts with one image each, and one with both, in files below a folder.
class Prompts {
 public:
  Prompts() {
    for (const char* name : {"rgb.png", "exif_6.jpg"}) {
      fs::copy(kSamples / name, folder_.path() / name);
    }
    write_file(folder_.path() / "train.jsonl",
               R"({"prompt": "a", "answer": "", "picture": "rgb.png"})"
               "\n"
               R"({"prompt": "a", "answer": "", "picture": "exif_6.jpg"})"
               "\n"
               R"({"prompt": "ab", "answer": "", "picture": ["exif_6.jpg", "rgb.png"]})"
               "\n");
    config_.image_key = "picture";
    config_.train = (folder_.path() / "train.jsonl").string();
    rules_.processor.patch = 4;
    rules_.processor.min_pixels = 64;
    rules_.processor.max_pixels = 4096;
    rules_.image_token_id = kPlaceholder;
    rl::Config config;
    config.data = config_;
    prompts_ = rl::read_prompts(config_.train, config);
  }

  const rl::Prompt& operator[](std::size_t i) const { return prompts_[i]; }
  // The ids of prompt i: a token before each image, and one at the end.
  std::vector<int64_t> ids(std::size_t i) const {
    std::vector<int64_t> text;
    for (std::size_t k = 0; k < prompts_[i].images.size(); ++k) {
      text.insert(text.end(), {1, kPlaceholder});
    }
    text.push_back(2);
    return rl::expand_placeholders(text, prompts_[i].images, rules_).ids;
  }
  rl::RequestImages images() const {
    rl::RequestImages all(config_, rules_);
    all.take(config_.train, prompts_);
    return all;
  }
  // The rows of a sample, made apart.
  std::vector<float> rows(const std::string& name) const {
    std::ifstream in(kSamples / name, std::ios::binary);
    const std::vector<uint8_t> bytes{std::istreambuf_iterator<char>(in), {}};
    const auto processed = engine::process_image(engine::decode_image(bytes), rules_.processor);
    return engine::patch_rows(processed.image, rules_.processor);
  }
  rl::ImageRules& rules() { return rules_; }

 private:
  TemporaryDirectory folder_;
  rl::DataConfig config_;
  rl::ImageRules rules_;
  std::vector<rl::Prompt> prompts_;
};

// A server that is only asked what it can.
class Able final : public bridge::InferenceServer {
 public:
  explicit Able(bool pull, bool disk) : pull_(pull), disk_(disk) {}
  bridge::Status connect() override { return bridge::Success{}; }
  bridge::Status check_sampling(const bridge::SamplingSettings&) const override {
    return bridge::Success{};
  }
  bridge::Result<bridge::GenerateResult> generate(const bridge::GenerateRequest&) override {
    return never();
  }
  bridge::Status pause(bridge::PausePolicy) override { return never(); }
  bridge::Status load_weights_from_disk(const std::string&, int64_t) override { return never(); }
  bridge::Status resume() override { return never(); }
  bridge::Status health() override { return never(); }
  bridge::Result<std::string> weight_version() override { return never(); }
  bridge::Capabilities capabilities() const override {
    return {.hot_weights = disk_, .pull = pull_};
  }

 private:
  static bridge::Error never() { return {bridge::Reason::kClosed, "nobody asks"}; }
  bool pull_, disk_;
};

}  // namespace

TEST_CASE("request images: a prompt's images have their places, grids and rows") {
  Prompts prompts;
  rl::RequestImages images = prompts.images();
  const auto one = images.of(prompts[0], prompts.ids(0));
  REQUIRE(one.size() == 1);
  CHECK(one[0].begin == 1);
  CHECK(one[0].tokens == 2);
  CHECK(one[0].grid_height == 2);
  CHECK(one[0].grid_width == 4);
  CHECK(*one[0].patches == prompts.rows("rgb.png"));
  const auto both = images.of(prompts[2], prompts.ids(2));
  REQUIRE(both.size() == 2);
  CHECK(both[0].begin == 1);
  CHECK(both[1].begin == 4);
  CHECK(*both[0].patches == prompts.rows("exif_6.jpg"));
  CHECK(*both[1].patches == prompts.rows("rgb.png"));
  CHECK(both[1].id == one[0].id);
  CHECK(both[0].id != one[0].id);
}

TEST_CASE("request images: samples of one image share its rows, which go with the last request") {
  Prompts prompts;
  rl::RequestImages images = prompts.images();
  auto first = images.of(prompts[0], prompts.ids(0));
  auto second = images.of(prompts[2], prompts.ids(2));
  CHECK(first[0].patches == second[1].patches);
  const std::weak_ptr<const std::vector<float>> rows = first[0].patches;
  first.clear();
  second.clear();
  CHECK(rows.expired());
  CHECK(*images.of(prompts[0], prompts.ids(0))[0].patches == prompts.rows("rgb.png"));
}

TEST_CASE("request images: the same pixels under other rules have another name") {
  Prompts prompts;
  rl::RequestImages images = prompts.images();
  const std::string id = images.of(prompts[0], prompts.ids(0))[0].id;
  prompts.rules().processor.mean[0] += 0.125F;
  rl::RequestImages others = prompts.images();
  CHECK(others.of(prompts[0], prompts.ids(0))[0].id != id);
}

TEST_CASE("request images: ids that are not the prompt's are refused") {
  Prompts prompts;
  rl::RequestImages images = prompts.images();
  CHECK_THROWS_AS(images.of(prompts[2], prompts.ids(0)), std::invalid_argument);
}

TEST_CASE("weights that lack a constant vision tower are not fetched by a server") {
  rl::Config config;
  config.rollout.server = rl::RolloutServer::kVllm;
  const Able pulls(true, false);
  CHECK(rl::make_weight_route(config, pulls) != nullptr);
  config.data.image_key = "picture";
  for (const rl::VisionPart part : {rl::VisionPart::kFrozen, rl::VisionPart::kMergers}) {
    config.model.vision = part;
    CHECK_THROWS_WITH(rl::make_weight_route(config, pulls),
                      Catch::Contains("pull and engine need model.vision trained"));
    CHECK(rl::make_weight_route(config, Able(true, true)) != nullptr);
  }
  config.model.vision = rl::VisionPart::kTrained;
  CHECK(rl::make_weight_route(config, pulls) != nullptr);
}
