#include "tests/support/standin/access_log.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace ringside::standin {

void AccessLog::name_stream(StreamKey stream, std::string name) {
  const std::lock_guard lock(mutex_);
  names_[stream] = std::move(name);
}

void AccessLog::add_device_block(Bytes bytes, StreamKey owner) {
  const std::lock_guard lock(mutex_);
  Block block;
  block.bytes = bytes;
  block.owner = owner;
  blocks_[bytes.begin] = std::move(block);
}

void AccessLog::add_pinned_block(Bytes bytes) {
  const std::lock_guard lock(mutex_);
  Block block;
  block.bytes = bytes;
  block.pinned = true;
  blocks_[bytes.begin] = std::move(block);
}

void AccessLog::remove_block(uintptr_t begin) {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(begin);
  if (found == blocks_.end()) {
    return;
  }
  const Block& block = found->second;
  // torch's host allocator keeps a freed pinned block until the copies that use it are done.
  if (!block.pinned) {
    const Clock& owner = current(block.owner);
    for (const Access& access : block.accesses) {
      const StreamKey user = access.moment.stream;
      if (user != block.owner && !owner.covers(access.moment) && !block.recorded.contains(user)) {
        reports_.add(Fault::kFreedInUse, "memory of " + describe(block.owner) + " is freed while " +
                                             access.op + " on " + describe(user) +
                                             " may still use it; let the owner wait for " +
                                             "that stream or record the use");
        break;
      }
    }
  }
  blocks_.erase(found);
}

void AccessLog::record_use(uintptr_t begin, StreamKey stream) {
  const std::lock_guard lock(mutex_);
  if (const auto found = blocks_.find(begin); found != blocks_.end()) {
    found->second.recorded.insert(stream);
  }
}

void AccessLog::copy_written(Bytes from, uintptr_t to) {
  const std::lock_guard lock(mutex_);
  const Block* source = find(from);
  if (const auto target = blocks_.find(to); source != nullptr && target != blocks_.end()) {
    target->second.written = source->written.moved(from, to);
  }
}

Clock AccessLog::snapshot(StreamKey stream) const {
  const std::lock_guard lock(mutex_);
  Clock clock = host_[stream.device];
  if (const auto found = streams_.find(stream); found != streams_.end()) {
    clock.join(found->second);
  }
  return clock;
}

Clock AccessLog::device_snapshot(int device) const {
  const std::lock_guard lock(mutex_);
  Clock clock = host_[device];
  for (const auto& [stream, seen] : streams_) {
    if (stream.device == device) {
      clock.join(seen);
    }
  }
  return clock;
}

void AccessLog::join(StreamKey stream, const Clock& clock) {
  const std::lock_guard lock(mutex_);
  streams_[stream].join(clock);
}

void AccessLog::host_learns(int device, const Clock& clock) {
  const std::lock_guard lock(mutex_);
  host_[device].join(clock);
}

bool AccessLog::host_knows(Moment moment) const {
  const std::lock_guard lock(mutex_);
  return host_[moment.stream.device].covers(moment);
}

Moment AccessLog::launch(StreamKey stream, const std::string& op, const std::vector<Use>& reads,
                         const std::vector<Use>& writes) {
  const std::lock_guard lock(mutex_);
  const Moment moment{stream, ++launched_[stream]};
  current(stream);
  streams_[stream].advance_to(moment);
  for (const Use& use : reads) {
    if (Block* block = find(use.bytes)) {
      check(*block, use.bytes, moment, op, /*write=*/false);
      check_written(*block, use, op);
    }
  }
  for (const Use& use : writes) {
    if (Block* block = find(use.bytes)) {
      check(*block, use.bytes, moment, op, /*write=*/true);
    }
  }
  // Recorded after all checks: an operator does not conflict with itself.
  for (const Use& use : reads) {
    if (Block* block = find(use.bytes)) {
      record(*block, {use.bytes, moment, op, /*write=*/false});
    }
  }
  for (const Use& use : writes) {
    if (Block* block = find(use.bytes)) {
      record(*block, {use.bytes, moment, op, /*write=*/true});
      block->written.add(use.bytes);
    }
  }
  return moment;
}

AccessLog::Block* AccessLog::find(Bytes bytes) {
  if (bytes.empty()) {
    return nullptr;
  }
  const auto next = blocks_.upper_bound(bytes.begin);
  if (next == blocks_.begin()) {
    return nullptr;
  }
  Block& block = std::prev(next)->second;
  return block.bytes.overlaps(bytes) ? &block : nullptr;
}

// The clock of a stream, with what the host knew before its next launch.
const Clock& AccessLog::current(StreamKey stream) {
  Clock& clock = streams_[stream];
  clock.join(host_[stream.device]);
  return clock;
}

std::string AccessLog::describe(StreamKey stream) const {
  const auto found = names_.find(stream);
  return found == names_.end() ? to_string(stream)
                               : "standin:" + std::to_string(stream.device) + " " + found->second;
}

void AccessLog::check(const Block& block, Bytes bytes, Moment moment, const std::string& op,
                      bool write) {
  const Clock& clock = streams_[moment.stream];
  for (const Access& before : block.accesses) {
    const bool conflict = (write || before.write) && before.bytes.overlaps(bytes);
    if (!conflict || before.moment.stream == moment.stream || clock.covers(before.moment)) {
      continue;
    }
    reports_.add(write ? Fault::kUnorderedWrite : Fault::kUnorderedRead,
                 op + " on " + describe(moment.stream) + (write ? " writes" : " reads") +
                     " memory and is not ordered after " + before.op + " on " +
                     describe(before.moment.stream) + ", which " +
                     (before.write ? "writes" : "reads") + " it");
  }
}

void AccessLog::check_written(const Block& block, const Use& use, const std::string& op) {
  if (block.pinned) {
    return;
  }
  const Bytes first{use.bytes.begin, use.bytes.begin + use.element};
  const Bytes last{use.bytes.end - use.element, use.bytes.end};
  const bool written = use.dense ? block.written.covers(use.bytes)
                                 : block.written.covers(first) && block.written.covers(last);
  if (!written) {
    reports_.add(Fault::kUninitialisedRead, op + " reads device memory that nothing has written (" +
                                                std::to_string(use.bytes.size()) + " bytes)");
  }
}

// Drops what a later check no longer needs: being ordered after the new access implies being
// ordered after the dropped one.
void AccessLog::record(Block& block, Access access) {
  std::erase_if(block.accesses, [&](const Access& before) {
    const bool replaced =
        access.write || (!before.write && before.moment.stream == access.moment.stream);
    return replaced && access.bytes.contains(before.bytes);
  });
  block.accesses.push_back(std::move(access));
}

}  // namespace ringside::standin
