// Guards: RoPE of three positions that turns a pair by the wrong one, or gives text other bits than
// one position does.
#include <ATen/ATen.h>

#include "engine/nn/rope.h"
#include "tests/support/catch.h"

namespace ringside::engine {
namespace {

using Components = std::vector<int64_t>;

Components components(const RopeSections& sections, int64_t pairs) {
  const at::Tensor values = section_components(sections, pairs);
  return {values.const_data_ptr<int64_t>(), values.const_data_ptr<int64_t>() + values.numel()};
}

TEST_CASE("contiguous sections follow each other: time, height, width") {
  CHECK(components({{1, 1, 2}}, 4) == Components{0, 1, 2, 2});
  CHECK(components({{2, 1, 1}}, 6) == Components{0, 0, 1, 2, 0, 0});  // the rest is not turned
}

TEST_CASE("interleaved sections take turns until height and width are used up") {
  CHECK(components({{4, 2, 2}, true}, 8) == Components{0, 1, 2, 0, 1, 2, 0, 0});
  CHECK(components({{3, 3, 2}, true}, 8) == Components{0, 1, 2, 0, 1, 2, 0, 1});
  CHECK(components({{2, 1, 1}, true}, 4) == Components{0, 1, 2, 0});
  CHECK_THROWS_AS(section_components({{4, 2, 3}, true}, 8), c10::Error);
}

TEST_CASE("equal positions of three components give the bits of one") {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    RopeFrequencies frequencies = rope_frequencies({16, 1e6, {}});
    frequencies.component_d = section_components({{4, 2, 2}, true}, 8);
    const at::Tensor positions = at::tensor({0, 1, 17, 131071}, at::kLong);
    const RopeTables one = rope_tables(frequencies, positions, dtype);
    const RopeTables three =
        rope_tables(frequencies, at::stack({positions, positions, positions}), dtype);
    CHECK(three.cos_s1d.equal(one.cos_s1d));
    CHECK(three.sin_s1d.equal(one.sin_s1d));
    CHECK(three.cos_s1d.is_contiguous());
  }
}

TEST_CASE("each pair turns by its own component") {
  RopeFrequencies frequencies = rope_frequencies({8, 100.0, {}});
  frequencies.component_d = section_components({{1, 1, 2}}, 4);
  const at::Tensor positions = at::tensor({3, 50, 7, 60, 11, 70}, at::kLong).view({3, 2});
  const RopeTables tables = rope_tables(frequencies, positions, at::kFloat);
  const at::Tensor turned = at::tensor({3, 7, 11, 11, 50, 60, 70, 70}, at::kFloat).view({2, 1, 4});
  CHECK(tables.cos_s1d.equal((turned * frequencies.inverse_d).cos()));
  CHECK(tables.sin_s1d.equal((turned * frequencies.inverse_d).sin()));
  CHECK_THROWS_AS(rope_tables(rope_frequencies({8, 100.0, {}}), positions, at::kFloat), c10::Error);
}

}  // namespace
}  // namespace ringside::engine
