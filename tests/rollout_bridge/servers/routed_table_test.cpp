// Tables of routed experts as servers send them: read whole, cut to the layers with experts, and
// refused when they are not what was asked for.
#include "rollout_bridge/servers/routed_table.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <random>
#include <string>

#include "rollout_bridge/base/base64.h"
#include "rollout_bridge/servers/sglang.h"
#include "rollout_bridge/servers/vllm.h"
#include "tests/rollout_bridge/servers/contract.h"

namespace ringside::bridge::test {
namespace {

using nlohmann::json;

template <class T>
std::vector<uint8_t> bytes_of(const std::vector<T>& values) {
  std::vector<uint8_t> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// A .npy file as numpy.save writes it.
template <class T>
std::string npy(const std::string& dtype, const std::string& shape, const std::vector<T>& values,
                const std::string& order = "False") {
  std::string header =
      "{'descr': '" + dtype + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }";
  header.resize(118, ' ');
  header.back() = '\n';
  std::vector<uint8_t> file{0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, 118, 0};
  file.insert(file.end(), header.begin(), header.end());
  const auto data = bytes_of(values);
  file.insert(file.end(), data.begin(), data.end());
  return base64(file);
}

// Five rows of three layers, the first of which has no experts.
std::vector<int> ids() {
  std::vector<int> all;
  for (int i = 0; i < 5; ++i) {
    all.insert(all.end(), {0, 0, i, i + 1, 9 - i, 10});
  }
  return all;
}

template <class T>
std::vector<T> as(const std::vector<int>& values) {
  return std::vector<T>(values.begin(), values.end());
}

TEST_CASE("base64 goes back to its bytes, and other text is refused") {
  std::mt19937 rng(1);
  for (std::size_t size = 0; size < 50; ++size) {
    std::vector<uint8_t> bytes(size);
    for (uint8_t& byte : bytes) {
      byte = static_cast<uint8_t>(rng());
    }
    CHECK(from_base64(base64(bytes)) == bytes);
  }
  CHECK(base64(std::vector<uint8_t>{'M', 'a'}) == "TWE=");
  for (const char* text :
       {"A", "AB", "ABC", "AB=C", "A===", "====", "AB C", "TWF=", "TR==", "Ab-_"}) {
    INFO(text);
    CHECK_FALSE(from_base64(text).has_value());
  }
}

TEST_CASE("tables of every integer type are read, with and without layers that have no experts") {
  const std::string shape = "(5, 3, 2)";
  const std::vector<std::string> tables{
      npy("|u1", shape, as<uint8_t>(ids())), npy("<u2", shape, as<uint16_t>(ids())),
      npy("<i2", shape, as<int16_t>(ids())), npy("<i4", shape, as<int32_t>(ids()))};
  const std::vector<int32_t> layers{1, 2};
  const std::vector<uint8_t> expected{0, 1,  9, 10, 1, 2,  8, 10, 2, 3,
                                      7, 10, 3, 4,  6, 10, 4, 5,  5, 10};
  for (const std::string& table : tables) {
    const auto read = read_npy_table(table);
    REQUIRE(read);
    const auto routed = routed_experts(read.value(), 6, layers, 3, 2);
    REQUIRE(routed);
    CHECK(routed.value() == RoutedExperts{layers, 2, 1, expected});
  }
  const auto flat = read_int32_table(base64(bytes_of(as<int32_t>(ids()))), 5, 2);
  REQUIRE(flat);
  CHECK(routed_experts(flat.value(), 6, layers, 3, 2).value().ids == expected);
  // The same layers when the model has no others, and ids above 255.
  auto wide = ids();
  for (std::size_t row = 0; row < 5; ++row) {
    wide[6 * row] = 300;
  }
  const auto all = routed_experts(read_npy_table(npy("<u2", shape, as<uint16_t>(wide))).value(), 6,
                                  std::vector<int32_t>{0, 4, 7}, 9, 2);
  REQUIRE(all);
  CHECK(all.value().id_bytes == 2);
  CHECK(all.value().id(0) == 300);
}

TEST_CASE("a table that is not what was asked for is refused") {
  const std::vector<int32_t> layers{1, 2};
  const auto good = read_npy_table(npy("|u1", "(5, 3, 2)", as<uint8_t>(ids()))).value();
  CHECK(
      routed_experts(good, 7, layers, 3, 2).error().detail.find("expected 0 and [6, 2 or 3, 2]") !=
      std::string::npos);
  CHECK_FALSE(routed_experts(good, 6, layers, 4, 2));
  CHECK_FALSE(routed_experts(good, 6, layers, 3, 3));
  RoutedTable late = good;
  late.first_row = 1;
  CHECK_FALSE(routed_experts(late, 6, layers, 3, 2));
  RoutedTable negative = good;
  negative.ids[3] = -1;
  CHECK_FALSE(routed_experts(negative, 6, layers, 3, 2));
  // As a server answers whose kernels record nothing.
  const auto zeros = read_npy_table(npy("|u1", "(5, 3, 2)", std::vector<uint8_t>(30)));
  REQUIRE(zeros);
  CHECK(routed_experts(zeros.value(), 6, layers, 3, 2)
            .error()
            .detail.find("has expert 0 twice for one token and layer") != std::string::npos);
  const auto data = as<uint8_t>(ids());
  for (const std::string& text :
       {std::string("*"), std::string("AAAA"), npy("|u1", "(5, 3, 3)", data),
        npy("|u1", "(30,)", data), npy("|u1", "(-5, 3, 2)", data), npy("|u1", "(5, 0, 2)", data),
        npy("<f4", "(5, 3, 2)", data), npy("|u1", "(5, 3, 2)", data, "True"),
        npy("|u1", "(999999999, 999999999, 999999999)", data),
        npy("<i4", "(5, 3, 2)", std::vector<uint8_t>(119))}) {
    CHECK_FALSE(read_npy_table(text));
  }
  const std::string file = npy("|u1", "(5, 3, 2)", data);
  const auto bytes = from_base64(file).value();
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    REQUIRE_FALSE(read_npy_table(base64(std::span(bytes).first(size))));
  }
  for (const int64_t rows : {0, 4, 7, 30}) {
    CHECK_FALSE(read_int32_table(base64(bytes_of(as<int32_t>(ids()))), rows, 2));
  }
  CHECK_FALSE(read_int32_table("AAA=", 1, 1));
}

GenerateRequest routed_request() {
  GenerateRequest request = request_at(0.7, {9});
  request.experts_per_token = 2;
  return request;
}

TEST_CASE("vllm: routed experts of prompt and completion") {
  const auto make = [](const ServerOptions& options) { return VllmServer(options, "M"); };
  const auto script = joined(exchanges("vllm", "connect_processed"), exchanges("vllm", "generate"));
  const auto answering_with = [&](const json& table) {
    return generate_against(
        edited(script, [&](json& answer) { answer["choices"][0]["routed_experts"] = table; }), make,
        routed_request());
  };
  const auto result = answering_with(npy("|u1", "(5, 3, 2)", as<uint8_t>(ids())));
  REQUIRE(result);
  CHECK(result.value().routed.rows == 5);
  CHECK(result.value().routed.layers == 3);
  CHECK(result.value().routed.ids == as<int32_t>(ids()));
  CHECK(answering_with("AAAA").error().reason == Reason::kMalformed);
  const auto without = answering_with(nullptr);
  REQUIRE_FALSE(without);
  CHECK(without.error().detail.find("--enable-return-routed-experts") != std::string::npos);
}

TEST_CASE("sglang: routed experts of prompt and completion") {
  const auto make = [](const ServerOptions& options) { return SglangServer(options); };
  auto script = joined(exchanges("sglang", "connect"), exchanges("sglang", "generate"));
  script.back().body["return_routed_experts"] = true;
  const auto answering_with = [&](const std::vector<int>& values, const json& start) {
    return generate_against(edited(script,
                                   [&](json& answer) {
                                     json& meta = answer["meta_info"];
                                     meta["routed_experts"] = base64(bytes_of(as<int32_t>(values)));
                                     meta["routed_experts_start_len"] = start;
                                   }),
                            make, routed_request());
  };
  const auto result = answering_with(ids(), nullptr);
  REQUIRE(result);
  CHECK(result.value().routed.rows == 5);
  CHECK(result.value().routed.layers == 3);
  const std::vector<int> all = ids();
  const auto later = answering_with({all.begin() + 12, all.end()}, 2);
  REQUIRE(later);
  CHECK(later.value().routed.first_row == 2);
  CHECK(later.value().routed.rows == 3);
  CHECK_FALSE(answering_with(ids(), 6));
  CHECK_FALSE(answering_with({1, 2, 3}, 0));
  CHECK_FALSE(generate_against(script, make, routed_request()));
}

}  // namespace
}  // namespace ringside::bridge::test
