// Guards the files a run leaves behind: values that read back exactly, lines that survive a kill
// and join after a resume, and TensorBoard records that its reader accepts (read back here byte by
// byte; tests/oracle has Python read them). A wrong checksum makes TensorBoard show nothing,
// silently.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "rl/report/metrics_writer.h"
#include "rl/report/openmetrics.h"
#include "rl/report/tensorboard_writer.h"
#include "tests/support/temporary_directory.h"

namespace ringside::rl {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

using test::read_file;

class TempDir : public test::TemporaryDirectory {
 public:
  fs::path operator/(const std::string& name) const { return path() / name; }
};

TEST_CASE("a metric whose name is not UTF-8 is written with a replacement character") {
  const TempDir dir;
  MetricsWriter(dir / "metrics.jsonl", -1).write(1, {{"rewards/\xff/mean", 0.5}});
  const auto line = nlohmann::json::parse(read_file(dir / "metrics.jsonl"));
  CHECK(line["rewards/\xef\xbf\xbd/mean"] == 0.5);
}

TEST_CASE("a line holds the step first, the metrics in their order, and exact values") {
  const TempDir dir;
  const auto path = dir / "metrics.jsonl";
  MetricsWriter writer(path, -1);
  const double third = 1.0 / 3;
  writer.write(7, {{"reward", third}, {"a/b", 0.1 + 0.2}, {"count", 64}, {"tiny", 5e-324}});
  // Whole and on disk without closing the writer.
  const std::string text = read_file(path);
  CHECK_THAT(text, Catch::StartsWith("{\"step\":7,\"reward\":0.333") && Catch::EndsWith("}\n"));
  const auto line = nlohmann::json::parse(text);
  CHECK(line["reward"].get<double>() == third);
  CHECK(line["a/b"].get<double>() == 0.1 + 0.2);
  CHECK(line["tiny"].get<double>() == 5e-324);
  CHECK(text.find("a/b") < text.find("count"));
}

TEST_CASE("NaN and infinities are null and named") {
  const TempDir dir;
  const auto path = dir / "metrics.jsonl";
  const double inf = std::numeric_limits<double>::infinity();
  MetricsWriter(path, -1).write(1, {{"a", NAN}, {"b", inf}, {"c", -inf}, {"d", 1}});
  CHECK(read_file(path) ==
        "{\"step\":1,\"a\":null,\"b\":null,\"c\":null,\"d\":1.0,"
        "\"non_finite\":{\"a\":\"nan\",\"b\":\"inf\",\"c\":\"-inf\"}}\n");
}

TEST_CASE("a resume drops later steps and a line cut short, and appends") {
  const TempDir dir;
  const auto path = dir / "metrics.jsonl";
  {
    MetricsWriter writer(path, -1);
    for (int step = 1; step <= 5; ++step) {
      writer.write(step, {{"x", step}});
    }
  }
  std::ofstream(path, std::ios::app) << "{\"step\":6,\"x\"";
  {
    MetricsWriter writer(path, 3);
    writer.write(4, {{"x", 40}});
  }
  CHECK(read_file(path) ==
        "{\"step\":1,\"x\":1.0}\n{\"step\":2,\"x\":2.0}\n{\"step\":3,\"x\":3.0}\n"
        "{\"step\":4,\"x\":40.0}\n");
  CHECK_FALSE(fs::exists(dir / "metrics.jsonl.next"));
  const MetricsWriter fresh(path, -1);
  CHECK(read_file(path) == "");
}

TEST_CASE("bad names, foreign files and places that cannot be written are errors") {
  const TempDir dir;
  MetricsWriter writer(dir / "m.jsonl", -1);
  CHECK_THROWS_WITH(writer.write(1, {{"step", 1}}), Contains("metric \"step\""));
  CHECK_THROWS_WITH(writer.write(1, {{"a", 1}, {"a", 2}}), Contains("given twice in step 1"));
  CHECK(read_file(dir / "m.jsonl") == "");
  std::ofstream(dir / "foreign.jsonl") << "{\"step\":1}\nhello\n";
  CHECK_THROWS_WITH(MetricsWriter(dir / "foreign.jsonl", 5),
                    Contains("foreign.jsonl:2: not a JSON"));
  CHECK(read_file(dir / "foreign.jsonl") == "{\"step\":1}\nhello\n");
  CHECK_THROWS_WITH(MetricsWriter(dir / "absent/m.jsonl", -1), Contains("cannot be opened"));
}

TEST_CASE("an address that cannot be bound is named, whatever follows its colon") {
  for (const char* address : {"127.0.0.1", "127.0.0.1:", "127.0.0.1:9x", "127.0.0.1:-1",
                              "127.0.0.1:99999999999", "no-such-host.invalid:9400"}) {
    CHECK_THROWS_WITH(OpenMetricsServer(address),
                      Contains("log.openmetrics " + std::string(address) + ": cannot be bound"));
  }
}

TEST_CASE("CRC-32C is the one of RFC 3720, appendix B.4") {
  const auto crc = [](const std::string& text) {
    return crc32c(std::as_bytes(std::span(text.data(), text.size())));
  };
  CHECK(crc(std::string(32, '\0')) == 0x8a9136aau);
  CHECK(crc(std::string(32, '\xff')) == 0x62a8ab43u);
  CHECK(crc("123456789") == 0xe3069283u);
  CHECK(crc("") == 0);
  // TFRecord's mask of it, as the Python tensorboard package computes it.
  const std::string digits = "123456789";
  CHECK(masked_crc32c(std::as_bytes(std::span(digits.data(), digits.size()))) == 0xc78ab0e5u);
}

// A reader of its own for the record and message formats.
class Reader {
 public:
  explicit Reader(std::string bytes) : bytes_(std::move(bytes)) {}
  bool done() const { return at_ == bytes_.size(); }
  std::string take(std::size_t n) {
    if (n > bytes_.size() - at_) {
      throw std::runtime_error("record ends early");
    }
    at_ += n;
    return bytes_.substr(at_ - n, n);
  }
  template <class T>
  T raw() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) {
        return value;
      }
    }
  }

 private:
  std::string bytes_;
  std::size_t at_ = 0;
};

std::uint32_t mask(const std::string& text) {
  return masked_crc32c(std::as_bytes(std::span(text.data(), text.size())));
}

std::vector<std::string> records(const fs::path& path) {
  Reader file(read_file(path));
  std::vector<std::string> events;
  while (!file.done()) {
    const std::string length = file.take(8);
    CHECK(file.raw<std::uint32_t>() == mask(length));
    events.push_back(file.take(Reader(length).raw<std::uint64_t>()));
    CHECK(file.raw<std::uint32_t>() == mask(events.back()));
  }
  return events;
}

// The event's fields, as "field=value" in order; the wall time is left out.
std::string decode_event(const std::string& event) {
  Reader in(event);
  std::ostringstream out;
  while (!in.done()) {
    const auto tag = in.varint();
    switch (tag) {
      case 1 << 3 | 1:
        CHECK(in.raw<double>() > 1.7e9);
        break;
      case 2 << 3 | 0:
        out << "step=" << in.varint() << " ";
        break;
      case 3 << 3 | 2:
        out << "version=" << in.take(in.varint()) << " ";
        break;
      case 7 << 3 | 2:
        CHECK(in.take(in.varint()) == std::string("\x08\x01"));
        out << "start ";
        break;
      case 5 << 3 | 2: {
        Reader summary(in.take(in.varint()));
        while (!summary.done()) {
          REQUIRE(summary.varint() == (1 << 3 | 2));
          Reader value(summary.take(summary.varint()));
          REQUIRE(value.varint() == (1 << 3 | 2));
          out << value.take(value.varint()) << "=";
          REQUIRE(value.varint() == (2 << 3 | 5));
          out << value.raw<float>() << " ";
          CHECK(value.done());
        }
        break;
      }
      default:
        FAIL("unexpected tag " << tag);
    }
  }
  return out.str();
}

TEST_CASE("an event file reads back: version, start of a resumed session, scalars") {
  const TempDir dir;
  const std::string long_name(300, 'n');  // a length of two varint bytes
  TensorboardWriter writer(dir / "tb", 3);
  writer.write(3, {{"reward", 0.5}, {"loss/kl", -2}});
  writer.write(1000000, {{long_name, 1e10}});
  const auto events = records(writer.path());
  REQUIRE(events.size() == 4);
  CHECK(decode_event(events[0]) == "step=0 version=brain.Event:2 ");
  CHECK(decode_event(events[1]) == "step=3 start ");
  CHECK(decode_event(events[2]) == "step=3 reward=0.5 loss/kl=-2 ");
  CHECK(decode_event(events[3]) == "step=1000000 " + long_name + "=1e+10 ");

  const TensorboardWriter second(dir / "tb", -1);
  CHECK(second.path() != writer.path());
  CHECK(records(second.path()).size() == 1);
}

}  // namespace
}  // namespace ringside::rl
