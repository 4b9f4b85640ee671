// A checkpoint header is data from outside: a wrong offset or shape must be an error that names
// file and tensor, never a read out of bounds or a silently shifted tensor. The Python package
// reads and writes the same files in safetensors_parity.py.
#include "engine/io/safetensors.h"

#include <cstring>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace ringside::engine {
namespace {

using Catch::Contains;
using test::TemporaryDirectory;

std::string file_bytes(const std::string& header, const std::string& data, uint64_t length) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + data;
}

// What opening a file with this header and so many bytes of data says.
std::string error_of(const std::string& header, std::size_t data_bytes,
                     std::optional<uint64_t> length = std::nullopt) {
  const TemporaryDirectory dir;
  const auto path = dir.path() / "m.safetensors";
  test::write_file(
      path, file_bytes(header, std::string(data_bytes, 'x'), length.value_or(header.size())));
  try {
    const SafetensorsFile file(path);
  } catch (const std::runtime_error& e) {
    CHECK_THAT(e.what(), Contains("m.safetensors"));
    return e.what();
  }
  return "no error";
}

std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

TEST_CASE("safetensors: what is written is read back, every dtype and odd shapes") {
  const TemporaryDirectory dir;
  const auto path = dir.path() / "m.safetensors";
  std::vector<TensorToWrite> tensors;
  for (const auto dtype : {at::kBool, at::kByte, at::kBFloat16, at::kHalf, at::kInt, at::kLong,
                           at::kFloat, at::kDouble}) {
    tensors.push_back({c10::toString(dtype), at::arange(3).to(dtype), dtype});
  }
  tensors.push_back({"scalar", at::scalar_tensor(2.5), at::kFloat});
  tensors.push_back({"empty", at::empty({3, 0}), at::kFloat});
  tensors.push_back({"strided", at::arange(6.0).view({2, 3}).t(), at::kDouble});
  tensors.push_back({"quote\"\\\xC3\xA9", at::ones({2, 2}), at::kFloat});
  tensors.push_back({"cast", at::full({4}, 0.1), at::kBFloat16});
  write_safetensors(path, tensors);

  const SafetensorsFile file(path);
  CHECK(file.metadata().at("format") == "pt");
  REQUIRE(file.entries().size() == tensors.size());
  for (const TensorToWrite& expected : tensors) {
    bool found = false;
    for (std::size_t i = 0; i < file.entries().size(); ++i) {
      if (file.entries()[i].name == expected.name) {
        found = true;
        CHECK(file.tensor(i).equal(expected.tensor.to(expected.dtype)));
      }
    }
    CHECK(found);
  }
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, test::read_file(path).data(), 8);
  CHECK(header_bytes % 8 == 0);
}

TEST_CASE("safetensors: a tensor outlives its file and writes to it do not reach the disk") {
  const TemporaryDirectory dir;
  const auto path = dir.path() / "m.safetensors";
  write_safetensors(path, {{"a", at::ones({4}), at::kFloat}});
  const at::Tensor a = SafetensorsFile(path).tensor(0);
  a.fill_(7);
  CHECK(a.equal(at::full({4}, 7.0f)));
  CHECK(SafetensorsFile(path).tensor(0).equal(at::ones({4})));
}

TEST_CASE("safetensors: tensors at unaligned offsets are read") {
  const TemporaryDirectory dir;
  const auto path = dir.path() / "m.safetensors";
  const std::string header =
      R"({"a":)" + entry("U8", "[1]", "[0,1]") + R"(,"b":)" + entry("F32", "[1]", "[1,5]") + "}";
  const float value = 1.5f;
  test::write_file(path,
                   file_bytes(header, "x" + std::string(reinterpret_cast<const char*>(&value), 4),
                              header.size()));
  CHECK(SafetensorsFile(path).tensor(1).item<float>() == 1.5f);
}

TEST_CASE("safetensors: a broken header is an error that says where") {
  CHECK_THAT(error_of("", 0, 9), Contains("header length is 9"));
  CHECK_THAT(error_of("{}", 0, 1'000'000'000'000), Contains("header length"));
  CHECK_THAT(error_of("{", 0), Contains("parse error"));
  CHECK_THAT(error_of("[]", 0), Contains("not a JSON object"));
  const auto one = [](const std::string& e) { return R"({"a":)" + e + "}"; };
  CHECK_THAT(error_of(one(entry("F8", "[1]", "[0,1]")), 1),
             Contains("'a'") && Contains("dtype 'F8'"));
  CHECK_THAT(error_of(one(entry("F32", "[2]", "[0,4]")), 4), Contains("more than the 4 bytes"));
  CHECK_THAT(error_of(one(entry("F32", "[1]", "[0,8]")), 8), Contains("takes 4 bytes"));
  CHECK_THAT(error_of(one(entry("F32", "[-1]", "[0,4]")), 4), Contains("whole numbers"));
  CHECK_THAT(error_of(one(entry("F32", "[1]", "[4,0]")), 4), Contains("data_offsets"));
  CHECK_THAT(error_of(one(entry("F32", "[1]", "[0,4]")), 3), Contains("3 bytes of data"));
  CHECK_THAT(error_of(one(entry("U8", "[4294967296,4294967296]", "[0,0]")), 0),
             Contains("'a'") && Contains("shape"));
  CHECK_THAT(error_of(one(entry("F32", "[1]", "[0,4]")), 5), Contains("end at byte 4 of 5"));
}

TEST_CASE("safetensors: overlaps, holes and names that come twice are errors") {
  const auto two = [](const std::string& b, const std::string& a, const std::string& first) {
    return R"({"a":)" + entry("U8", "[2]", a) + R"(,")" + first + R"(":)" + entry("U8", "[2]", b) +
           "}";
  };
  CHECK_THAT(error_of(two("[1,3]", "[0,2]", "b"), 3), Contains("'b'") && Contains("ends at 2"));
  CHECK_THAT(error_of(two("[3,5]", "[0,2]", "b"), 5), Contains("'b'") && Contains("ends at 2"));
  CHECK_THAT(error_of(two("[2,4]", "[0,2]", "a"), 4), Contains("'a' comes twice"));
  CHECK(error_of(two("[2,4]", "[0,2]", "b"), 4) == "no error");
}

TEST_CASE("safetensors: tensor by tensor gives the same file, and a wrong sequence is an error") {
  const TemporaryDirectory dir;
  const at::Tensor a = at::arange(6, at::kFloat).view({2, 3}), b = at::arange(4, at::kFloat);
  std::string seen;
  SafetensorsOptions options;
  options.metadata = {{"step", "3"}};
  options.on_bytes = [&](std::span<const std::byte> bytes) {
    seen.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  write_safetensors(dir.path() / "whole", {{"a", a, at::kBFloat16}, {"b", b, at::kBFloat16}},
                    options);
  CHECK(seen == test::read_file(dir.path() / "whole"));
  CHECK(SafetensorsFile(dir.path() / "whole").metadata().at("step") == "3");
  const auto writer = [&](const char* name) {
    return SafetensorsWriter(dir.path() / name,
                             {{"a", at::kBFloat16, {2, 3}}, {"b", at::kBFloat16, {4}}},
                             {{{"step", "3"}}, {}});
  };
  auto streamed = writer("streamed");
  streamed.write(a);
  CHECK_THROWS_WITH(streamed.write(a), Contains("'b' has shape [2, 3], expected [4]"));
  CHECK_THROWS_WITH(streamed.close(), Contains("'b' was not written"));
  streamed.write(b);
  CHECK_THROWS_WITH(streamed.write(b), Contains("no place for another"));
  streamed.close();
  CHECK(test::read_file(dir.path() / "streamed") == seen);
}

TEST_CASE("safetensors: the writer refuses names that come twice and unknown dtypes") {
  const TemporaryDirectory dir;
  const auto path = dir.path() / "m.safetensors";
  const at::Tensor a = at::ones({1});
  CHECK_THROWS_WITH(write_safetensors(path, {{"a", a, at::kFloat}, {"a", a, at::kFloat}}),
                    Contains("'a' comes twice"));
  CHECK_THROWS_WITH(write_safetensors(path, {{"__metadata__", a, at::kFloat}}),
                    Contains("reserved"));
  CHECK_THROWS_WITH(write_safetensors(path, {{"a", a, at::kComplexFloat}}), Contains("'a'"));
  CHECK_THROWS_WITH(write_safetensors(dir.path() / "no" / "m", {}), Contains("cannot create"));
}

}  // namespace
}  // namespace ringside::engine
