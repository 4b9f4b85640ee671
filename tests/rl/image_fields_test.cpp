// Guards: positions counted by the tokens that are left instead of the whole document, rows of an
// image on other tokens, branches and groups that lose their images. Oracle: engine/images'
// positions, which are compared with transformers.
#include "rl/data/image_fields.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <stdexcept>

#include "rl/data/training_batch.h"

using namespace ringside;

namespace {

const std::string kFirst = "000000000000000a00000000000000b1", kSecond(32, 'c');

template <class T>
std::vector<T> numbers(const sp::Document& document, const std::string& name) {
  for (const sp::TokenField& field : document.fields) {
    if (field.name == name) {
      REQUIRE(sizeof(T) == sp::bytes_of(field.dtype));
      REQUIRE(field.bytes.size() == document.ids.size() * field.row_bytes());
      std::vector<T> values(field.bytes.size() / sizeof(T));
      std::memcpy(values.data(), field.bytes.data(), field.bytes.size());
      return values;
    }
  }
  FAIL("no field " << name);
  return {};
}

sp::Document document_of(std::size_t tokens) {
  sp::Document document;
  document.ids.assign(tokens, 9);
  return document;
}

bridge::Rollout rollout_of(const std::string& id) {
  bridge::Rollout rollout;
  rollout.rollout_id = id;
  rollout.group_size = 2;
  rollout.prompt_ids = {1, 9, 9, 2};
  rollout.completion_ids = {20, 21, 22};
  rollout.logprobs = {-1, -1, -1};
  rollout.temperature = 1.0F;
  rollout.rewards = {{"a", id == "r0" ? 1.0 : 0.0}};
  return rollout;
}

}  // namespace

TEST_CASE("fields of images have each token's image, row and positions") {
  sp::Document document = document_of(12);
  // Tokens 1 to 6 are 2 x 3 of the first image, 7 and 8 are 1 x 2 of the second.
  rl::add_image_fields(
      document, std::vector<rl::PlacedImage>{{kFirst, {1, {1, 4, 6}}}, {kSecond, {7, {1, 2, 4}}}},
      2);
  CHECK(document.images ==
        std::vector<sp::DocumentImage>{{{0xa, 0xb1}, {1, 4, 6}, 6},
                                       {{0xcccccccccccccccc, 0xcccccccccccccccc}, {1, 2, 4}, 2}});
  CHECK(numbers<int32_t>(document, "image_row") ==
        std::vector<int32_t>{-1, 0, 1, 2, 3, 4, 5, 0, 1, -1, -1, -1});
  const auto image = numbers<uint64_t>(document, "image");
  CHECK(std::vector(image.begin(), image.begin() + 4) == std::vector<uint64_t>{0, 0, 0xa, 0xb1});
  CHECK(image[2 * 6 + 1] == 0xb1);
  CHECK(image[2 * 7] == 0xcccccccccccccccc);
  CHECK(image[2 * 9] == 0);
  const auto expected = engine::token_positions(
      12, std::vector<engine::ImageSpan>{{1, {1, 4, 6}}, {7, {1, 2, 4}}}, 2);
  const auto positions = numbers<int32_t>(document, "positions");
  for (std::size_t i = 0; i < 12; ++i) {
    CHECK(positions[3 * i] == expected.time[i]);
    CHECK(positions[3 * i + 1] == expected.height[i]);
    CHECK(positions[3 * i + 2] == expected.width[i]);
  }
}

TEST_CASE("text has three equal positions that count on, and no image") {
  sp::Document document = document_of(3);
  rl::add_image_fields(document, {}, 2);
  CHECK(numbers<int32_t>(document, "positions") == std::vector<int32_t>{0, 0, 0, 1, 1, 1, 2, 2, 2});
  CHECK(numbers<int32_t>(document, "image_row") == std::vector<int32_t>(3, -1));
  CHECK(document.images.empty());
}

TEST_CASE("an image may end with the token that is only a target, and no later") {
  const std::vector<rl::PlacedImage> image{{kFirst, {2, {1, 4, 4}}}};
  sp::Document cut = document_of(5);
  rl::add_image_fields(cut, image, 2);
  CHECK(numbers<int32_t>(cut, "image_row") == std::vector<int32_t>{-1, -1, 0, 1, 2});
  CHECK(cut.images[0].tokens == 4);
  sp::Document shorter = document_of(4);
  CHECK_THROWS_AS(rl::add_image_fields(shorter, image, 2), std::invalid_argument);
}

TEST_CASE("hashes that are none are refused") {
  CHECK(rl::image_id(kFirst) == sp::ImageId{0xa, 0xb1});
  for (const std::string& hash :
       {std::string(), std::string(31, 'a'), std::string(33, 'a'), std::string(32, '0'),
        std::string(32, 'g'), "0x" + std::string(30, 'a')}) {
    CHECK_THROWS_WITH(rl::image_id(hash), Catch::Contains("expected 32 hex digits"));
  }
}

TEST_CASE("all documents of a step have the fields of images if one has an image") {
  rl::Config config;
  config.rollout.group_size = 2;
  std::vector<bridge::Rollout> rollouts{rollout_of("r0"), rollout_of("r1")};
  rollouts[0].branches = {{2, 1}};
  rl::StepImages images{{{{kFirst, {1, {1, 2, 4}}}}, {}}, 2};
  const auto step = rl::make_step_batch(rollouts, config, images);
  const auto& documents = step.mini_batches[0].documents;
  REQUIRE(documents.size() == 3);
  for (std::size_t d = 0; d < 3; ++d) {
    CAPTURE(d);
    REQUIRE(documents[d].fields.size() == 3);
    const auto row = numbers<int32_t>(documents[d], "image_row");
    CHECK(row[1] == (d < 2 ? 0 : -1));
    CHECK(row[2] == (d < 2 ? 1 : -1));
    CHECK(row[3] == -1);
    CHECK(documents[d].images.size() == (d < 2 ? 1 : 0));
  }
  // The same but for images: nothing is added, and nothing else changes.
  const auto without = rl::make_step_batch(rollouts, config, {{{}, {}}, 2});
  for (std::size_t d = 0; d < 3; ++d) {
    CHECK(without.mini_batches[0].documents[d].fields.empty());
    CHECK(without.mini_batches[0].documents[d].images.empty());
    CHECK(without.mini_batches[0].documents[d].ids == documents[d].ids);
    CHECK(without.mini_batches[0].documents[d].entries.source == documents[d].entries.source);
  }
  images.of_rollout.pop_back();
  CHECK_THROWS_WITH(rl::make_step_batch(rollouts, config, images),
                    Catch::Contains("images of 1 rollouts in a step of 2"));
}
