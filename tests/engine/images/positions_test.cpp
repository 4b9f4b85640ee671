// Guards: positions of images by runs of equal ids, which join adjacent images and take a sampled
// placeholder for an image. Counted by hand; image_oracle.py compares with transformers.
#include "engine/images/positions.h"

#include <catch2/catch.hpp>

namespace ringside::engine {
namespace {

using Catch::Contains;
using Numbers = std::vector<int64_t>;

TEST_CASE("a text without images counts on in all three components") {
  const TokenPositions found = token_positions(4, {}, 2);
  CHECK(found == TokenPositions{{0, 1, 2, 3}, {0, 1, 2, 3}, {0, 1, 2, 3}});
  CHECK(token_positions(0, {}, 2).time.empty());
}

TEST_CASE("an image counts by rows and columns, and the text goes on after its longer side") {
  // Two text tokens, 1 x 3 tokens of image, one text token.
  const std::vector<ImageSpan> images = {{2, {1, 2, 6}}};
  const TokenPositions found = token_positions(6, images, 2);
  CHECK(found.time == Numbers{0, 1, 2, 2, 2, 5});
  CHECK(found.height == Numbers{0, 1, 2, 2, 2, 5});
  CHECK(found.width == Numbers{0, 1, 2, 3, 4, 5});
}

TEST_CASE("two adjacent images stay two, from the first token on and to the last") {
  // 2 x 1 and 1 x 2 tokens, nothing before, between or after.
  const std::vector<ImageSpan> images = {{0, {1, 4, 2}}, {2, {1, 2, 4}}};
  const TokenPositions found = token_positions(4, images, 2);
  CHECK(found.time == Numbers{0, 0, 2, 2});
  CHECK(found.height == Numbers{0, 1, 2, 2});
  CHECK(found.width == Numbers{0, 0, 2, 3});
}

TEST_CASE("a grid with an odd number of tokens a side, and another merge") {
  const std::vector<ImageSpan> images = {{1, {1, 9, 3}}};
  const TokenPositions found = token_positions(5, images, 3);
  CHECK(found.time == Numbers{0, 1, 1, 1, 4});
  CHECK(found.height == Numbers{0, 1, 2, 3, 4});
  CHECK(found.width == Numbers{0, 1, 1, 1, 4});
}

TEST_CASE("spans out of order, overlapping, beyond the end or of a video are refused") {
  const auto refused = [](std::vector<ImageSpan> images, int64_t tokens = 8) {
    try {
      token_positions(tokens, images, 2);
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(refused({{0, {1, 4, 4}}, {4, {1, 4, 4}}}) == "");
  CHECK_THAT(refused({{0, {1, 4, 4}}, {3, {1, 2, 2}}}), Contains("between token 4"));
  CHECK_THAT(refused({{5, {1, 4, 4}}}), Contains("the end of 8"));
  CHECK_THAT(refused({{-1, {1, 2, 2}}}), Contains("at token -1"));
  CHECK_THAT(refused({{0, {1, 3, 4}}}), Contains("multiples of merge = 2"));
  CHECK_THAT(refused({{0, {2, 2, 2}}}), Contains("one frame"));
}

}  // namespace
}  // namespace ringside::engine
