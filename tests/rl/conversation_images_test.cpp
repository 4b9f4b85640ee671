// Guards: an image in the middle of a conversation that is trained on in another place, with other
// pixels, or in the wrong branches. Oracle: the same tokens with the image in the prompt, in fp64.
#include "rl/data/conversation_images.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/images/image_processor.h"
#include "engine/runner/model_runner.h"
#include "rl/rollouts/granted_images.h"
#include "rl/rollouts/rollout_source.h"
#include "rl/setup/image_input.h"
#include "rl/step/score_step.h"
#include "rollout_bridge/protocol/codec.h"
#include "tests/support/catch.h"
#include "tests/support/close.h"
#include "tests/support/ranks.h"
#include "tests/support/sharded_training.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tiny_tower.h"

using namespace ringside;

namespace {

constexpr int64_t kPlaceholder = 9;
constexpr int64_t kPatch = 2, kMerge = 2;

// An image of height x width tokens.
bridge::Image screenshot(int64_t height, int64_t width, int64_t number) {
  const int64_t side = kPatch * kMerge;
  std::vector<uint8_t> rgb;
  for (int64_t i = 0; i < 3 * height * width * side * side; ++i) {
    rgb.push_back(static_cast<uint8_t>((i * (17 + 4 * number) + 40) % 251));
  }
  return bridge::make_image(height * side, width * side, bridge::Buffer::own(std::move(rgb)));
}

int64_t tokens_of(const bridge::Image& image) {
  return image.head.height * image.head.width / (kPatch * kMerge * kPatch * kMerge);
}

bridge::Rollout start(const std::string& id, std::vector<int64_t> prompt) {
  bridge::Rollout r;
  r.rollout_id = id;
  r.group_id = 1;
  r.group_size = 1;
  r.sample_index = 0;
  r.prompt_ids = std::move(prompt);
  r.rewards = {{"a", 1.0}};
  r.trainer_term = 0;
  return r;
}

void say(bridge::Rollout& r, const std::vector<int64_t>& ids, bool sampled = true) {
  r.completion_ids.insert(r.completion_ids.end(), ids.begin(), ids.end());
  r.loss_mask.insert(r.loss_mask.end(), ids.size(), sampled ? 1 : 0);
  r.logprobs.resize(r.completion_ids.size(), -1.0F);
  r.versions = {{0, 0, static_cast<int64_t>(r.completion_ids.size())}};
}

// Puts the image's tokens there.
void show(bridge::Rollout& r, const bridge::Image& image) {
  const auto begin = static_cast<int64_t>(r.completion_ids.size());
  say(r, std::vector<int64_t>(static_cast<std::size_t>(tokens_of(image)), kPlaceholder), false);
  r.images.push_back(
      {image.head.hash, image.head.height, image.head.width, begin, begin + tokens_of(image), {}});
}

rl::PlacedImage placed(const bridge::Image& image, int64_t begin) {
  return {image.head.hash, {begin, {1, image.head.height / kPatch, image.head.width / kPatch}}};
}

rl::StepBatch step_of(const std::vector<bridge::Rollout>& rollouts, const rl::StepImages& images) {
  rl::Config config;
  config.rollout.group_size = 1;
  config.rollout.prompts_per_step = static_cast<int64_t>(rollouts.size());
  return rl::make_step_batch(rollouts, config, images);
}

void check_equal(const sp::Document& found, const sp::Document& expected) {
  CHECK(found.ids == expected.ids);
  CHECK(found.entries.source == expected.entries.source);
  CHECK(found.entries.target == expected.entries.target);
  CHECK((found.images == expected.images));
  REQUIRE(found.fields.size() == 3);
  for (std::size_t f = 0; f < 3; ++f) {
    CHECK(found.fields[f].name == expected.fields[f].name);
    CHECK((found.fields[f].bytes == expected.fields[f].bytes));
  }
}

// The same conversations twice: with images in the middle, and with images of prompts.
struct Twins {
  bridge::Image a = screenshot(2, 2, 1), b = screenshot(1, 3, 2);
  std::vector<bridge::Rollout> conversations, prompts;
  rl::StepImages of_prompts{{}, kMerge, kPatch};

  Twins() {
    // A tool answers with an image and a word, then the policy speaks.
    bridge::Rollout one = start("one", {1, 2});
    show(one, a);
    say(one, {3}, false);
    say(one, {10, 11, 12});
    bridge::Rollout twin = start("one", {1, 2, 9, 9, 9, 9, 3});
    say(twin, {10, 11, 12});
    add(one, twin, {placed(a, 2)});
    // Two images that follow each other, and one again at the end.
    bridge::Rollout two = start("two", {1, 2, 5});
    show(two, b);
    show(two, a);
    say(two, {6, 7});
    bridge::Rollout second = start("two", {1, 2, 5, 9, 9, 9, 9, 9, 9, 9});
    say(second, {6, 7});
    add(two, second, {placed(b, 3), placed(a, 6)});
    bridge::Rollout none = start("none", {1, 2, 4});
    say(none, {13, 14, 15, 16});
    add(none, none, {});
  }
  void add(bridge::Rollout conversation, bridge::Rollout prompt,
           std::vector<rl::PlacedImage> images) {
    conversations.push_back(std::move(conversation));
    prompts.push_back(std::move(prompt));
    of_prompts.of_rollout.push_back(std::move(images));
  }
};

engine::ImageInput input_of(const engine::VisionConfig& vision,
                            std::function<rl::RecordPixels::Image(const std::string&)> pixels) {
  rl::ImageRules rules;
  rules.processor.patch = vision.patch;
  rules.processor.temporal_patch = vision.temporal_patch;
  rules.processor.merge = vision.merge;
  return rl::image_input(std::move(pixels), rules, std::make_shared<engine::KeptRows>());
}

// Gradients of all units after a pass over the step's documents.
std::vector<at::Tensor> gradients(const engine::ModelConfig& model, const rl::StepBatch& step,
                                  engine::ImageInput input) {
  const sp::ProcessGroups groups = sp::single_rank_groups();
  auto decoder = std::make_unique<engine::Decoder>(test::tower_decoder(model));
  engine::ModelRunner runner(std::make_unique<engine::LanguageModel>(std::move(decoder)), groups,
                             engine::AdamWOptions{});
  runner.take_images(std::move(input));
  const rl::LocalBatch local{sp::collate(step.mini_batches.at(0).documents, sp::Mesh({}, 0),
                                         engine::collator_options(model, 64, {})),
                             0};
  runner.train(rl::model_inputs(local, {}, at::kDouble), test::entropy_loss);
  std::vector<at::Tensor> out;
  for (engine::ParamUnit* unit : runner.decoder().units()) {
    out.push_back(unit->grad().clone());
  }
  return out;
}

std::vector<bridge::FlatRollout> messages_of(const std::vector<bridge::Rollout>& rollouts,
                                             const std::vector<bridge::Image>& images) {
  std::vector<bridge::FlatRollout> messages = rl::flatten_rollouts(rollouts);
  for (const bridge::Image& image : images) {
    const bridge::Payload payload = bridge::encode_image(image);
    messages.push_back(bridge::flatten(bridge::pack_header(bridge::Header{}, payload), payload));
  }
  return messages;
}

// Gives the same messages for every step.
class OneStep final : public rl::RolloutSource {
 public:
  explicit OneStep(std::vector<bridge::FlatRollout> messages) : messages_(std::move(messages)) {}
  engine::WeightSink weight_sink(int64_t, int64_t) override { return {}; }
  std::optional<std::vector<bridge::FlatRollout>> poll(int64_t,
                                                       std::chrono::milliseconds) override {
    return messages_;
  }

 private:
  std::vector<bridge::FlatRollout> messages_;
};

TEST_CASE("an image within a conversation makes the document that one in the prompt makes") {
  const Twins twins;
  const rl::StepBatch found = step_of(twins.conversations, {{}, kMerge, kPatch});
  const rl::StepBatch expected = step_of(twins.prompts, twins.of_prompts);
  const auto& documents = found.mini_batches.at(0).documents;
  REQUIRE(documents.size() == 3);
  for (std::size_t d = 0; d < 3; ++d) {
    INFO("document " << d);
    check_equal(documents[d], expected.mini_batches[0].documents[d]);
  }
  CHECK(documents[1].images.size() == 2);
}

TEST_CASE("a prompt's images come before those of its conversation") {
  const Twins twins;
  bridge::Rollout r = start("both", {1, 9, 9, 9, 2});
  say(r, {4});
  show(r, twins.a);
  say(r, {5});
  bridge::Rollout twin = start("both", {1, 9, 9, 9, 2});
  say(twin, {4});
  say(twin, {9, 9, 9, 9}, false);
  say(twin, {5});
  const auto found = step_of({r}, {{{placed(twins.b, 1)}}, kMerge, kPatch});
  const auto expected =
      step_of({twin}, {{{placed(twins.b, 1), placed(twins.a, 6)}}, kMerge, kPatch});
  check_equal(found.mini_batches[0].documents.at(0), expected.mini_batches[0].documents.at(0));
}

TEST_CASE("each branch of a conversation has the images of its own context") {
  const bridge::Image image = screenshot(1, 2, 3);
  bridge::Rollout r = start("forked", {1, 2});
  say(r, {4});     // 0
  show(r, image);  // 1, 2
  say(r, {5});     // 3
  say(r, {6, 7});  // 4, 5: continues the image
  say(r, {8});     // 6: continues the prompt
  show(r, image);  // 7, 8
  say(r, {10});    // 9
  r.branches = {{4, 3}, {6, 0}};
  REQUIRE(bridge::validate(r).ok());
  const auto documents = step_of({r}, {{}, kMerge, kPatch}).mini_batches.at(0).documents;
  REQUIRE(documents.size() == 3);
  const std::vector<std::vector<int64_t>> sampled_after = {{5}, {6, 7}, {10}};
  const std::vector<int64_t> first = {4, 4, 8};
  for (std::size_t d = 0; d < 3; ++d) {
    INFO("branch " << d);
    bridge::Rollout branch = start("branch", {1, 2});
    say(branch, {first[d]}, d != 1);  // the second branch does not count what the first sampled
    say(branch, {9, 9}, false);
    say(branch, sampled_after[d]);
    const auto expected = step_of({branch}, {{{placed(image, 3)}}, kMerge, kPatch});
    check_equal(documents[d], expected.mini_batches[0].documents.at(0));
  }
}

TEST_CASE("a step without a patch takes no images of conversations") {
  const Twins twins;
  CHECK_THROWS_WITH(step_of(twins.conversations, {}), Catch::Contains("expected whole patches"));
}

TEST_CASE("a model trains on an image within a conversation as on one in the prompt") {
  const Twins twins;
  std::map<std::string, rl::RecordPixels::Image> known;
  for (const bridge::Image& image : {twins.a, twins.b}) {
    auto pixels = std::make_shared<engine::ProcessedImage>();
    pixels->image = {image.head.height, image.head.width, {}};
    for (const std::byte value : image.rgb.bytes) {
      pixels->image.rgb.push_back(static_cast<uint8_t>(value));
    }
    pixels->grid = {1, image.head.height / kPatch, image.head.width / kPatch};
    known[image.head.hash] = pixels;
  }
  // As they come to every rank.
  const auto joined = bridge::join_messages(messages_of(twins.conversations, {twins.b, twins.a}));
  auto batch = bridge::read_batch(bridge::split_messages(joined).value()).value();
  rl::ConversationPixels conversation;
  conversation.hold(std::move(batch.images), kPatch);
  for (const engine::VisionFamily family : test::kVisionFamilies) {
    const engine::ModelConfig model = test::tower_config(family);
    const auto found = gradients(
        model, step_of(batch.rollouts, {{}, kMerge, kPatch}),
        input_of(*model.vision, [&](const std::string& hash) { return conversation.find(hash); }));
    const auto expected =
        gradients(model, step_of(twins.prompts, twins.of_prompts),
                  input_of(*model.vision, [&](const std::string& hash) { return known.at(hash); }));
    REQUIRE(found.size() == expected.size());
    for (std::size_t unit = 0; unit < found.size(); ++unit) {
      INFO("family " << static_cast<int>(family) << ", unit " << unit);
      CHECK(test::max_abs_diff(found[unit], expected[unit]) < 1e-12);
      CHECK(expected[unit].abs().max().item<double>() > 0);
    }
  }
}

TEST_CASE("every rank receives the images of a step's conversations, however large they are") {
  const Twins twins;
  const std::vector<bridge::Image> images = {twins.a, screenshot(600, 600, 3), twins.b,
                                             screenshot(700, 600, 4), screenshot(2, 1, 5)};
  OneStep source(messages_of(twins.conversations, images));  // 17 and 20 MB beside small ones
  std::vector<rl::NextRollouts> next(3);
  test::run_ranks_in_memory(
      {.ring = 3}, [&](const sp::Mesh& mesh, const sp::ProcessGroups& groups) {
        next[mesh.rank()] = rl::broadcast_rollouts(
            mesh.rank() == 0 ? &source : nullptr, 1, *groups.control(sp::axes::kWorld),
            std::chrono::milliseconds(1000), [] { return 0; });
      });
  for (const rl::NextRollouts& own : next) {
    CHECK((own.rollouts == twins.conversations));
    REQUIRE(own.images.size() == images.size());
    for (std::size_t i = 0; i < images.size(); ++i) {
      CHECK(own.images[i].head == images[i].head);
      CHECK(std::ranges::equal(own.images[i].rgb.bytes, images[i].rgb.bytes));
    }
  }
}

TEST_CASE("pixels are those of the step, and of no step before") {
  test::TemporaryDirectory directory;
  const std::string model = directory.path();
  test::write_file(model + "/config.json", R"({"model_type": "qwen3_vl", "image_token_id": 9})");
  test::write_file(model + "/preprocessor_config.json",
                   R"({"patch_size": 2, "size": {"shortest_edge": 16, "longest_edge": 4096}})");
  rl::Config config;
  config.model.path = model;
  config.data.image_key = "image";  // and no data: workers bring their prompts
  rl::GrantedImages images(config);
  const Twins twins;
  const rl::StepImages step = images.of(twins.conversations);
  CHECK((step.merge == kMerge && step.patch == kPatch && step.of_rollout.empty()));
  images.hold({twins.a});
  const auto pixels = images.pixels();
  CHECK(pixels(twins.a.head.hash)->grid == engine::PatchGrid{1, 4, 4});
  CHECK(pixels(twins.a.head.hash)->image.rgb.size() == twins.a.rgb.bytes.size());
  images.hold({twins.b});
  CHECK(pixels(twins.b.head.hash)->grid == engine::PatchGrid{1, 2, 6});
  CHECK_THROWS_WITH(pixels(twins.a.head.hash), Catch::Contains("no data file has the image"));
}

TEST_CASE("the bridge knows an image by the hash that the image processor gives it") {
  engine::ProcessorOptions options;
  options.patch = kPatch;
  options.merge = kMerge;
  options.min_pixels = 16;
  const bridge::Image image = screenshot(3, 5, 4);
  engine::RgbImage rgb{image.head.height, image.head.width, {}};
  for (const std::byte value : image.rgb.bytes) {
    rgb.rgb.push_back(static_cast<uint8_t>(value));
  }
  const engine::ProcessedImage processed = engine::process_image(rgb, options);
  REQUIRE(processed.image == rgb);  // it has the right size
  CHECK(processed.hash == image.head.hash);
}

}  // namespace
