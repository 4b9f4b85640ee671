#include "rollout_bridge/journal.h"

#include <fcntl.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "rollout_bridge/codec.h"

namespace ringside::bridge {
namespace {

constexpr char kMagic[8] = {'R', 'S', 'J', 'R', 'N', 'L', '0', '1'};

struct RecordHead {
  uint32_t payload_bytes;
  uint32_t kind;
  uint64_t xxh3;
};
static_assert(sizeof(RecordHead) == 16);

uint64_t record_hash(uint32_t kind, std::span<const std::byte> payload) {
  return XXH3_64bits_withSeed(payload.data(), payload.size(), kind);
}

std::vector<std::byte> make_record(uint32_t kind, std::span<const std::byte> payload) {
  const RecordHead head{static_cast<uint32_t>(payload.size()), kind, record_hash(kind, payload)};
  std::vector<std::byte> record(sizeof head + payload.size());
  std::memcpy(record.data(), &head, sizeof head);
  std::copy(payload.begin(), payload.end(), record.begin() + sizeof head);
  return record;
}

std::filesystem::path prepared(const std::filesystem::path& directory) {
  std::filesystem::create_directories(directory);
  return directory / "journal.bin";
}

std::vector<int64_t> read_ranges(std::span<const std::byte> payload) {
  std::vector<int64_t> values(payload.size() / sizeof(int64_t));
  std::memcpy(values.data(), payload.data(), values.size() * sizeof(int64_t));
  return values;
}

std::vector<int64_t> flat_ranges(const IdSet& ids) {
  std::vector<int64_t> values;
  for (const auto& [begin, end] : ids.ranges()) values.insert(values.end(), {begin, end});
  return values;
}

}  // namespace

Journal::Journal(Options options)
    : options_(std::move(options)),
      file_(prepared(options_.directory), O_RDWR | O_CREAT | O_APPEND) {
  file_.lock();
  if (file_.size() == 0) {
    file_.append(std::as_bytes(std::span(kMagic)));
    file_bytes_ = sizeof kMagic;
    write_record(Kind::kRun, std::as_bytes(std::span(options_.run_id)));
    file_.sync();
    sync_directory(options_.directory);
    return;
  }
  replay();
}

void Journal::replay() {
  char magic[sizeof kMagic] = {};
  file_.read_at(0, std::as_writable_bytes(std::span(magic)));
  if (std::memcmp(magic, kMagic, sizeof kMagic) != 0) {
    throw std::runtime_error(file_.path().string() + ": not a rollout journal (no RSJRNL01)");
  }
  const uint64_t size = file_.size();
  uint64_t at = sizeof kMagic;
  std::vector<std::byte> payload;
  std::vector<Rollout> live;
  while (size - at >= sizeof(RecordHead)) {
    RecordHead head{};
    file_.read_at(at, std::as_writable_bytes(std::span(&head, 1)));
    if (head.payload_bytes > size - at - sizeof head) break;  // torn
    payload.resize(head.payload_bytes);
    file_.read_at(at + sizeof head, payload);
    if (record_hash(head.kind, payload) != head.xxh3) break;  // torn or damaged
    if (at == sizeof kMagic && head.kind != static_cast<uint32_t>(Kind::kRun)) {
      throw std::runtime_error(file_.path().string() + ": the first record is not the run id");
    }
    replay_record(static_cast<Kind>(head.kind), payload, {at, sizeof head + payload.size()}, live);
    at += sizeof head + payload.size();
  }
  if (at == sizeof kMagic) {  // died before the first record was whole
    truncated_bytes_ = size - at;
    file_.truncate(at);
    file_bytes_ = at;
    write_record(Kind::kRun, std::as_bytes(std::span(options_.run_id)));
    return;
  }
  truncated_bytes_ = size - at;
  if (truncated_bytes_ > 0) file_.truncate(at);
  file_bytes_ = at;
  std::erase_if(live, [&](const Rollout& r) { return consumed_.contains(r.group_id); });
  replayed_ = std::move(live);
}

void Journal::replay_record(Kind kind, std::span<const std::byte> payload, Extent extent,
                            std::vector<Rollout>& live) {
  if (kind == Kind::kRun) {
    const std::string run_id(reinterpret_cast<const char*>(payload.data()), payload.size());
    if (run_id != options_.run_id) {
      throw std::runtime_error(file_.path().string() + ": belongs to run '" + run_id +
                               "', expected '" + options_.run_id + "'");
    }
    return;
  }
  if (kind == Kind::kRollout) {
    auto message = parse_flat(payload, options_.limits);
    if (!message) throw std::runtime_error(file_.path().string() + ": " + message.error().detail);
    auto rollout = decode_rollout(message.value(), options_.limits);
    if (!rollout) throw std::runtime_error(file_.path().string() + ": " + rollout.error().detail);
    live_[rollout.value().group_id].push_back(extent);
    live.push_back(std::move(rollout).value());
    return;
  }
  if (kind != Kind::kConsumed && kind != Kind::kReopened) {
    throw std::runtime_error(file_.path().string() + ": record of kind " +
                             std::to_string(static_cast<uint32_t>(kind)) +
                             ", written by a newer version");
  }
  const std::vector<int64_t> ranges = read_ranges(payload);
  for (size_t i = 0; i + 1 < ranges.size(); i += 2) {
    const int64_t begin = ranges[i];
    const int64_t end = ranges[i + 1];
    if (kind == Kind::kReopened) {
      for (int64_t id = begin; id < end; ++id) consumed_.erase(id);
      continue;
    }
    consumed_.insert_range(begin, end);
    const auto first = live_.lower_bound(begin);
    const auto last = live_.lower_bound(end);
    for (auto it = first; it != last; ++it) {
      for (const Extent& dead : it->second) dead_bytes_ += dead.bytes;
    }
    live_.erase(first, last);
  }
  // Rollouts journalled before this record are gone for good, also when the group is reopened.
  if (kind == Kind::kConsumed) {
    std::erase_if(live, [&](const Rollout& r) { return consumed_.contains(r.group_id); });
  }
}

std::vector<Rollout> Journal::take_replayed() { return std::exchange(replayed_, {}); }

void Journal::append(int64_t group_id, std::span<const uint8_t> flat_rollout) {
  const uint64_t offset = file_bytes_;
  write_record(Kind::kRollout, std::as_bytes(flat_rollout));
  live_[group_id].push_back({offset, file_bytes_ - offset});
}

void Journal::consume(std::span<const int64_t> group_ids) {
  IdSet fresh;
  for (const int64_t id : group_ids) {
    if (!consumed_.contains(id)) fresh.insert(id);
  }
  if (fresh.ranges().empty()) return;
  const std::vector<int64_t> ranges = flat_ranges(fresh);
  write_record(Kind::kConsumed, std::as_bytes(std::span(ranges)));
  for (const int64_t id : group_ids) {
    consumed_.insert(id);
    const auto it = live_.find(id);
    if (it == live_.end()) continue;
    for (const Extent& extent : it->second) dead_bytes_ += extent.bytes;
    live_.erase(it);
  }
  if (dead_bytes_ >= options_.compact_bytes && dead_bytes_ * 2 >= file_bytes_) compact();
}

void Journal::reopen(int64_t group_id) {
  if (!consumed_.contains(group_id)) return;
  const int64_t range[2] = {group_id, group_id + 1};
  write_record(Kind::kReopened, std::as_bytes(std::span(range)));
  consumed_.erase(group_id);
}

void Journal::tick(std::chrono::steady_clock::time_point now) {
  if (options_.fsync != FsyncPolicy::kInterval || !unsynced_ ||
      now - last_sync_ < options_.fsync_interval) {
    return;
  }
  file_.sync();
  unsynced_ = false;
  last_sync_ = now;
}

void Journal::write_record(Kind kind, std::span<const std::byte> payload) {
  const std::vector<std::byte> record = make_record(static_cast<uint32_t>(kind), payload);
  try {
    file_.append(record);
  } catch (...) {
    file_.truncate(file_bytes_);  // no half record in front of the next one
    throw;
  }
  file_bytes_ += record.size();
  unsynced_ = true;
  if (options_.fsync == FsyncPolicy::kEvery) {
    file_.sync();
    unsynced_ = false;
  }
}

// Writes what is alive to a new file and renames it over the old one, so a crash leaves one of
// both.
void Journal::compact() {
  const std::filesystem::path fresh_path = options_.directory / "journal.new";
  PosixFile fresh(fresh_path, O_RDWR | O_CREAT | O_TRUNC | O_APPEND);
  fresh.lock();
  fresh.append(std::as_bytes(std::span(kMagic)));
  uint64_t bytes = sizeof kMagic;
  const auto put = [&](std::span<const std::byte> record) {
    fresh.append(record);
    bytes += record.size();
  };
  put(make_record(static_cast<uint32_t>(Kind::kRun), std::as_bytes(std::span(options_.run_id))));
  const std::vector<int64_t> ranges = flat_ranges(consumed_);
  put(make_record(static_cast<uint32_t>(Kind::kConsumed), std::as_bytes(std::span(ranges))));
  std::vector<std::byte> record;
  for (auto& [group, extents] : live_) {
    for (Extent& extent : extents) {
      record.resize(extent.bytes);
      file_.read_at(extent.offset, record);
      extent.offset = bytes;
      put(record);
    }
  }
  fresh.sync();
  std::filesystem::rename(fresh_path, options_.directory / "journal.bin");
  sync_directory(options_.directory);
  file_ = std::move(fresh);
  file_bytes_ = bytes;
  dead_bytes_ = 0;
}

}  // namespace ringside::bridge
