#include "rollout_bridge/trainer/journal.h"

#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>

#include "rollout_bridge/protocol/codec.h"

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

std::unique_ptr<File> open_journal(const Journal::Options& options) {
  options.files->create_directories(options.directory);
  return options.files->open(options.directory / "journal.bin");
}

std::vector<int64_t> read_ranges(std::span<const std::byte> payload) {
  std::vector<int64_t> values(payload.size() / sizeof(int64_t));
  if (!values.empty()) {
    std::memcpy(values.data(), payload.data(), values.size() * sizeof(int64_t));
  }
  return values;
}

// Checks the form of a record of ranges. The record's hash proves only that the bytes are as
// written.
bool are_ranges(std::span<const std::byte> payload, const std::vector<int64_t>& values) {
  if (payload.size() % (2 * sizeof(int64_t)) != 0) {
    return false;
  }
  for (size_t i = 0; i < values.size(); i += 2) {
    if (values[i] < 0 || values[i] >= values[i + 1]) {
      return false;
    }
  }
  return true;
}

std::vector<int64_t> flat_ranges(const IdSet& ids) {
  std::vector<int64_t> values;
  for (const auto& [begin, end] : ids.ranges()) {
    values.insert(values.end(), {begin, end});
  }
  return values;
}

Result<Rollout> read_rollout(std::span<const std::byte> payload, const Limits& limits) {
  const auto message = parse_flat(payload, limits);
  return message ? decode_rollout(message.value(), limits) : Result<Rollout>(message.error());
}

Result<ImageHead> read_image(std::span<const std::byte> payload, const Limits& limits) {
  const auto message = parse_flat(payload, limits);
  return message ? read_image_head(message.value(), limits) : Result<ImageHead>(message.error());
}

const FlatImage& image_message(const Journal::NamedImage& image) {
  if (!image.message) {
    throw std::invalid_argument("image " + image.hash + " is neither here nor in the journal");
  }
  return *image.message;
}

// Appends to a new file, also records of the old one.
class FileCopy {
 public:
  FileCopy(const File& from, File& to) : from_(from), to_(to) {}

  void put(std::span<const std::byte> bytes) {
    to_.append(bytes);
    bytes_ += bytes.size();
  }
  void put_record(uint32_t kind, const auto& payload) {
    put(make_record(kind, std::as_bytes(std::span(payload))));
  }
  Extent move(const Extent& extent) {
    record_.resize(extent.bytes);
    from_.read_at(extent.offset, record_);
    const Extent at{bytes_, extent.bytes};
    put(record_);
    return at;
  }
  uint64_t bytes() const { return bytes_; }

 private:
  const File& from_;
  File& to_;
  uint64_t bytes_ = 0;
  std::vector<std::byte> record_;
};

// True for errors that end when somebody frees space.
bool is_no_room(const std::system_error& error) {
  const int code = error.code().value();
  return code == ENOSPC || code == EDQUOT || code == EFBIG;
}

void sync_with_name(const Journal::Options& options, File& file) {
  if (options.fsync != FsyncPolicy::kOff) {
    file.sync();
    options.files->sync_directory(options.directory);
  }
}

}  // namespace

Journal::Journal(Options options) : options_(std::move(options)), file_(open_journal(options_)) {
  file_->lock();
  if (file_->size() < sizeof kMagic) {
    begin();
    return;
  }
  replay();
  // A process that died before its last sync has left records, or the file's name, in the machine's
  // memory alone. What follows relies on them.
  sync_with_name(options_, *file_);
}

// Writes the beginning of a new file. A process that died here before has left less than the magic,
// and no record.
void Journal::begin() {
  truncated_bytes_ = file_->size();
  file_->truncate(0);
  file_->append(std::as_bytes(std::span(kMagic)));
  file_bytes_ = sizeof kMagic;
  write_run_id();
  sync_with_name(options_, *file_);
}

void Journal::replay() {
  char magic[sizeof kMagic] = {};
  file_->read_at(0, std::as_writable_bytes(std::span(magic)));
  if (std::memcmp(magic, kMagic, sizeof kMagic) != 0) {
    throw std::runtime_error(file_->path().string() + ": not a rollout journal (no RSJRNL01)");
  }
  const uint64_t size = file_->size();
  uint64_t at = sizeof kMagic;
  std::vector<std::byte> payload;
  std::vector<Replayed> live;
  while (size - at >= sizeof(RecordHead)) {
    RecordHead head{};
    file_->read_at(at, std::as_writable_bytes(std::span(&head, 1)));
    if (head.payload_bytes > size - at - sizeof head) {
      break;  // torn
    }
    payload.resize(head.payload_bytes);
    file_->read_at(at + sizeof head, payload);
    if (record_hash(head.kind, payload) != head.xxh3) {
      break;  // torn or damaged
    }
    if (at == sizeof kMagic && head.kind != static_cast<uint32_t>(Kind::kRun)) {
      throw std::runtime_error(file_->path().string() + ": the first record is not the run id");
    }
    replay_record(static_cast<Kind>(head.kind), payload, {at, sizeof head + payload.size()}, live);
    at += sizeof head + payload.size();
  }
  if (at == sizeof kMagic) {  // the process died before the first record was complete
    truncated_bytes_ = size - at;
    file_->truncate(at);
    file_bytes_ = at;
    write_run_id();
    return;
  }
  truncated_bytes_ = size - at;
  if (truncated_bytes_ > 0) {
    file_->truncate(at);
  }
  file_bytes_ = at;
  std::erase_if(live,
                [&](const Replayed& r) { return consumed_.contains(r.record.rollout.group_id); });
  for (Replayed& r : live) {
    replayed_at_.emplace_back(r.record.rollout.group_id, r.extent);
    replayed_.push_back(std::move(r.record));
  }
}

void Journal::replay_record(Kind kind, std::span<const std::byte> payload, Extent extent,
                            std::vector<Replayed>& live) {
  if (kind == Kind::kRun) {
    const std::string run_id(reinterpret_cast<const char*>(payload.data()), payload.size());
    if (run_id != options_.run_id) {
      throw std::runtime_error(file_->path().string() + ": belongs to run '" + run_id +
                               "', expected '" + options_.run_id + "'");
    }
    return;
  }
  if (kind == Kind::kRollout) {
    return replay_rollout(payload, extent, live);
  }
  if (kind == Kind::kImage) {
    return replay_image(payload, extent);
  }
  if (kind != Kind::kConsumed && kind != Kind::kReopened && kind != Kind::kGranted) {
    throw std::runtime_error(file_->path().string() + ": record of kind " +
                             std::to_string(static_cast<uint32_t>(kind)) +
                             ", written by a newer version");
  }
  const std::vector<int64_t> ranges = read_ranges(payload);
  if (!are_ranges(payload, ranges)) {
    throw std::runtime_error(file_->path().string() + ": a record of " +
                             std::to_string(payload.size()) + " bytes holds no ranges of groups");
  }
  for (size_t i = 0; i < ranges.size(); i += 2) {
    if (kind == Kind::kReopened) {
      consumed_.erase_range(ranges[i], ranges[i + 1]);
    }
    if (kind == Kind::kGranted) {
      granted_.insert_range(ranges[i], ranges[i + 1]);
    }
    if (kind == Kind::kConsumed) {
      consumed_.insert_range(ranges[i], ranges[i + 1]);
      granted_.erase_range(ranges[i], ranges[i + 1]);
      records_.drop_groups(ranges[i], ranges[i + 1]);
    }
  }
  // Rollouts journalled before this record are dropped, even when the group is reopened later.
  if (kind == Kind::kConsumed) {
    std::erase_if(live,
                  [&](const Replayed& r) { return consumed_.contains(r.record.rollout.group_id); });
  }
}

void Journal::replay_rollout(std::span<const std::byte> payload, Extent extent,
                             std::vector<Replayed>& live) {
  auto rollout = read_rollout(payload, options_.limits);
  if (!rollout) {
    return pass_over(rollout.error(), extent);
  }
  std::vector<std::string> images = image_hashes(rollout.value());
  for (const std::string& hash : images) {
    if (!has_image(hash)) {
      return pass_over(
          {Reason::kInvalidField, "rollout '" + rollout.value().rollout_id + "' names image " +
                                      hash + ", which does not stand before it"},
          extent);
    }
  }
  records_.hold(images);
  records_.add_rollout(rollout.value().group_id, extent, std::move(images));
  const auto* bytes = reinterpret_cast<const uint8_t*>(payload.data());
  live.push_back({{std::move(rollout).value(), {bytes, bytes + payload.size()}}, extent});
}

void Journal::replay_image(std::span<const std::byte> payload, Extent extent) {
  const auto head = bridge::read_image(payload, options_.limits);
  if (!head) {
    return pass_over(head.error(), extent);
  }
  records_.add_image(head.value().hash, extent);
}

void Journal::pass_over(const Error& error, const Extent& extent) {
  if (passed_over_.count++ == 0) {
    passed_over_.first = error.detail;
  }
  records_.add_dead(extent);
}

std::string Journal::unreadable() const {
  if (passed_over_.count == 0) {
    return "";
  }
  return file_->path().string() + ": " + std::to_string(passed_over_.count) +
         " records hold no rollout or image and are passed over, the first: " + passed_over_.first;
}

std::vector<Journal::Record> Journal::take_replayed() { return std::exchange(replayed_, {}); }

void Journal::drop_replayed(std::span<const std::size_t> places) {
  for (const std::size_t place : places) {
    const auto& [group_id, gone] = replayed_at_.at(place);
    records_.drop_rollout(group_id, gone.offset);
  }
  replayed_at_.clear();
}

Status Journal::append(int64_t group_id, std::span<const uint8_t> flat_rollout,
                       std::span<const NamedImage> images) {
  std::vector<std::string> here, fresh;
  uint64_t bytes = sizeof(RecordHead) + flat_rollout.size();
  for (const NamedImage& image : images) {
    (has_image(image.hash) ? here : fresh).push_back(image.hash);
    if (!has_image(image.hash)) {
      bytes += sizeof(RecordHead) + image_message(image).size();
    }
  }
  records_.hold(here);  // room_for() may rewrite the file, which drops what nobody holds
  const auto write = [&]() -> Status {
    if (Status s = room_for(bytes); !s) {
      return s;
    }
    if (Status s = write_deferred(); !s) {
      return s;  // a reopening must precede the group's rollouts
    }
    if (Status s = write_images(images); !s) {
      return s;
    }
    const uint64_t offset = file_bytes_;
    if (Status s = write_record(Kind::kRollout, std::as_bytes(flat_rollout)); !s) {
      return s;
    }
    records_.hold(fresh);
    fresh.insert(fresh.end(), here.begin(), here.end());
    records_.add_rollout(group_id, {offset, file_bytes_ - offset}, fresh);
    return Success{};
  };
  Status written = write();
  if (!written) {
    records_.let_go(here);
  }
  return written;
}

// Those that the file does not have. Each is dead until the rollout is there, too: should the
// rollout not get in, a later one finds them.
Status Journal::write_images(std::span<const NamedImage> images) {
  for (const NamedImage& image : images) {
    if (has_image(image.hash)) {
      continue;
    }
    const uint64_t offset = file_bytes_;
    if (Status s = write_record(Kind::kImage, std::as_bytes(std::span(image_message(image)))); !s) {
      return s;
    }
    records_.add_image(image.hash, {offset, file_bytes_ - offset});
  }
  return Success{};
}

FlatImage Journal::read_image(const std::string& hash) const {
  const Extent& extent = records_.image(hash);
  std::vector<std::byte> record(extent.bytes);
  file_->read_at(extent.offset, record);
  RecordHead head{};
  std::memcpy(&head, record.data(), sizeof head);
  const auto payload = std::span(record).subspan(sizeof head);
  if (head.kind != static_cast<uint32_t>(Kind::kImage) ||
      record_hash(head.kind, payload) != head.xxh3) {
    throw std::runtime_error(file_->path().string() + ": image " + hash + " at byte " +
                             std::to_string(extent.offset) +
                             " is not as it was written; a restart drops what is damaged and has "
                             "it sampled again");
  }
  const auto* bytes = reinterpret_cast<const uint8_t*>(payload.data());
  return {bytes, bytes + payload.size()};
}

Status Journal::room_for(uint64_t record_bytes) {
  const auto fits = [&] {
    return options_.max_bytes == 0 || file_bytes_ + record_bytes <= options_.max_bytes;
  };
  // A rewrite costs the file's length, so it is done only when an eighth of the file is dead.
  if (!fits() && records_.dead_bytes() >= std::max(record_bytes, file_bytes_ / 8)) {
    compact();
  }
  if (fits()) {
    return Success{};
  }
  return Error{Reason::kBusy, file_->path().string() + ": has " + std::to_string(file_bytes_) +
                                  " bytes, limit " + std::to_string(options_.max_bytes) +
                                  "; a checkpoint makes room"};
}

void Journal::consume(std::span<const int64_t> group_ids) {
  IdSet fresh;
  for (const int64_t id : group_ids) {
    if (!consumed_.contains(id)) {
      fresh.insert(id);
    }
  }
  if (fresh.ranges().empty()) {
    return;
  }
  deferred_.emplace_back(Kind::kConsumed, flat_ranges(fresh));
  (void)write_deferred();
  for (const int64_t id : group_ids) {
    consumed_.insert(id);
    granted_.erase(id);
    records_.drop_groups(id, id + 1);
  }
  if (const uint64_t dead = records_.dead_bytes();
      dead >= options_.compact_bytes && dead * 2 >= file_bytes_) {
    compact();
  }
}

void Journal::reopen(int64_t group_id) {
  if (!consumed_.contains(group_id)) {
    return;
  }
  deferred_.emplace_back(Kind::kReopened, std::vector<int64_t>{group_id, group_id + 1});
  (void)write_deferred();
  consumed_.erase(group_id);
}

void Journal::grant(std::span<const int64_t> group_ids) {
  IdSet fresh;
  for (const int64_t id : group_ids) {
    if (!granted_.contains(id)) {
      fresh.insert(id);
    }
  }
  if (fresh.ranges().empty()) {
    return;
  }
  deferred_.emplace_back(Kind::kGranted, flat_ranges(fresh));
  (void)write_deferred();
  for (const auto& [begin, end] : fresh.ranges()) {
    granted_.insert_range(begin, end);
  }
}

Status Journal::write_deferred() {
  for (; !deferred_.empty(); deferred_.pop_front()) {
    const auto& [kind, ranges] = deferred_.front();
    if (Status s = write_record(kind, std::as_bytes(std::span(ranges))); !s) {
      return s;
    }
  }
  return Success{};
}

void Journal::tick(std::chrono::steady_clock::time_point now) {
  if (options_.fsync != FsyncPolicy::kInterval || !unsynced_ ||
      now - last_sync_ < options_.fsync_interval) {
    return;
  }
  file_->sync();
  unsynced_ = false;
  last_sync_ = now;
}

void Journal::write_run_id() {
  const Status written = write_record(Kind::kRun, std::as_bytes(std::span(options_.run_id)));
  if (!written) {
    throw std::runtime_error(written.error().detail);
  }
}

Status Journal::write_record(Kind kind, std::span<const std::byte> payload) {
  const std::vector<std::byte> record = make_record(static_cast<uint32_t>(kind), payload);
  try {
    file_->append(record);
    if (options_.fsync == FsyncPolicy::kEvery) {
      file_->sync();
    }
  } catch (const std::system_error& error) {
    file_->truncate(file_bytes_);  // removes the partial record
    if (!is_no_room(error)) {
      throw;
    }
    return Error{Reason::kBusy, error.what()};
  }
  file_bytes_ += record.size();
  unsynced_ = options_.fsync != FsyncPolicy::kEvery;
  return Success{};
}

// Writes the living records to a new file and renames it over the old one, so a crash leaves one of
// the two. Without room for the new file the old one stays.
void Journal::compact() {
  const std::filesystem::path fresh_path = options_.directory / "journal.new";
  LivingRecords moved;
  try {
    std::unique_ptr<File> fresh = options_.files->create(fresh_path);
    fresh->lock();
    FileCopy copy(*file_, *fresh);
    copy.put(std::as_bytes(std::span(kMagic)));
    copy.put_record(static_cast<uint32_t>(Kind::kRun), std::span(options_.run_id));
    copy.put_record(static_cast<uint32_t>(Kind::kConsumed), flat_ranges(consumed_));
    copy.put_record(static_cast<uint32_t>(Kind::kGranted), flat_ranges(granted_));
    moved = records_.moved([&](const Extent& extent) { return copy.move(extent); });
    fresh->sync();
    options_.files->rename(fresh_path, options_.directory / "journal.bin");
    file_ = std::move(fresh);
    file_bytes_ = copy.bytes();
  } catch (const std::system_error& error) {
    if (!is_no_room(error)) {
      throw;
    }
    options_.files->remove(fresh_path);
    return;
  }
  options_.files->sync_directory(options_.directory);
  records_ = std::move(moved);
  deferred_.clear();  // the new file contains them
}

}  // namespace ringside::bridge
