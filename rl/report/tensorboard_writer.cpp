#include "rl/report/tensorboard_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <stdexcept>

namespace ringside::rl {
namespace {

// Field numbers of tensorboard/compat/proto/event.proto and summary.proto.
constexpr int kEventWallTime = 1;     // double
constexpr int kEventStep = 2;         // int64
constexpr int kEventFileVersion = 3;  // string
constexpr int kEventSummary = 5;      // Summary
constexpr int kEventSessionLog = 7;   // SessionLog
constexpr int kSummaryValue = 1;      // repeated Summary.Value
constexpr int kValueTag = 1;          // string
constexpr int kValueSimple = 2;       // float
constexpr int kSessionStatus = 1;     // enum
constexpr int kSessionStart = 1;      // SessionLog.START

// Wire types of the protocol-buffer encoding.
constexpr int kVarint = 0;
constexpr int kFixed64 = 1;
constexpr int kBytes = 2;
constexpr int kFixed32 = 5;

static_assert(std::endian::native == std::endian::little, "records are written in host order");

template <class T>
void put_raw(std::string& out, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out.append(bytes, sizeof(T));
}

void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) {
    out.push_back(static_cast<char>(value | 0x80));
  }
  out.push_back(static_cast<char>(value));
}

void put_tag(std::string& out, int field, int wire_type) {
  put_varint(out, static_cast<std::uint64_t>(field << 3 | wire_type));
}

void put_bytes(std::string& out, int field, const std::string& bytes) {
  put_tag(out, field, kBytes);
  put_varint(out, bytes.size());
  out += bytes;
}

// The fields of an Event before its payload.
std::string event_head(int64_t step) {
  using Seconds = std::chrono::duration<double>;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  std::string event;
  put_tag(event, kEventWallTime, kFixed64);
  put_raw(event, std::chrono::duration_cast<Seconds>(now).count());
  put_tag(event, kEventStep, kVarint);
  put_varint(event, static_cast<std::uint64_t>(step));
  return event;
}

std::string summary_of(const Metrics& metrics) {
  std::string summary;
  for (const auto& [name, value] : metrics) {
    std::string entry;
    put_bytes(entry, kValueTag, name);
    put_tag(entry, kValueSimple, kFixed32);
    put_raw(entry, static_cast<float>(value));
    put_bytes(summary, kSummaryValue, entry);
  }
  return summary;
}

std::string host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) {
    return "localhost";
  }
  return name.data();
}

constexpr std::array<std::uint32_t, 256> make_crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) {
      crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0u);
    }
    table[byte] = crc;
  }
  return table;
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace

std::uint32_t crc32c(std::span<const std::byte> bytes) {
  static constexpr auto kTable = make_crc_table();
  std::uint32_t crc = 0xffffffffu;
  for (const std::byte byte : bytes) {
    crc = crc >> 8 ^ kTable[(crc ^ std::to_integer<std::uint32_t>(byte)) & 0xff];
  }
  return ~crc;
}

std::uint32_t masked_crc32c(std::span<const std::byte> bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xa282ead8u;
}

TensorboardWriter::TensorboardWriter(const std::filesystem::path& folder, int64_t first_step) {
  std::filesystem::create_directories(folder);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  const std::string base = "events.out.tfevents." + std::to_string(seconds) + "." + host_name() +
                           "." + std::to_string(getpid()) + ".";
  // O_EXCL and a counter: two writers in one second, or two containers with equal pids, get
  // separate files.
  for (int n = 0; fd_ < 0; ++n) {
    path_ = folder / (base + std::to_string(n));
    fd_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644);
    if (fd_ < 0 && errno != EEXIST) {
      throw std::runtime_error(path_.string() + ": cannot be created: " + std::strerror(errno));
    }
  }
  std::string version = event_head(0);
  put_bytes(version, kEventFileVersion, "brain.Event:2");
  write_record(version);
  if (first_step >= 0) {
    std::string session;
    put_tag(session, kSessionStatus, kVarint);
    put_varint(session, kSessionStart);
    std::string start = event_head(first_step);
    put_bytes(start, kEventSessionLog, session);
    write_record(start);
  }
}

TensorboardWriter::~TensorboardWriter() { close(fd_); }

void TensorboardWriter::write(int64_t step, const Metrics& metrics) {
  std::string event = event_head(step);
  put_bytes(event, kEventSummary, summary_of(metrics));
  write_record(event);
}

// TFRecord: length, masked CRC of the length, data, masked CRC of the data.
void TensorboardWriter::write_record(const std::string& event) {
  std::string record;
  put_raw(record, static_cast<std::uint64_t>(event.size()));
  put_raw(record, masked_crc32c(bytes_of(record)));
  record += event;
  put_raw(record, masked_crc32c(bytes_of(event)));
  std::size_t done = 0;
  while (done < record.size()) {
    const ssize_t n = ::write(fd_, record.data() + done, record.size() - done);
    if (n < 0 && errno != EINTR) {
      throw std::runtime_error(path_.string() + ": cannot be written: " + std::strerror(errno));
    }
    if (n > 0) {
      done += static_cast<std::size_t>(n);
    }
  }
}

}  // namespace ringside::rl
