#include "tests/support/cuda_host/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace ringside::cuda_host {
namespace {

constexpr std::size_t kPage = 4096;
// Of addresses on both sides of a buffer: a wrong index must not end in the next buffer.
constexpr std::size_t kGap = std::size_t{64} << 20;

int lane_of(uint32_t thread) { return static_cast<int>(thread % kLanes); }

// Whether a barrier orders the noted access before this moment.
bool ordered(const Touch& earlier, const Moment& now) {
  if (earlier.launch != now.launch) {
    return true;
  }
  if (earlier.block != now.block) {
    return false;
  }
  if (earlier.thread == now.thread || earlier.barrier < now.barrier) {
    return true;
  }
  return earlier.thread / kLanes == now.thread / kLanes &&
         earlier.lane_barrier < (*now.followed)[lane_of(earlier.thread)];
}

// Whether two touches of one launch are of one block and warp.
bool same_block(const Touch& a, const Touch& b) {
  return a.launch == b.launch && a.block == b.block;
}
bool same_warp(const Touch& a, const Touch& b) {
  return same_block(a, b) && a.thread / kLanes == b.thread / kLanes;
}

// The largest power of two that divides all of them, at most `most`.
std::size_t common_power(std::size_t a, std::size_t b, std::size_t most) {
  while (a % most != 0 || b % most != 0) {
    most /= 2;
  }
  return most;
}

std::string bytes_text(std::size_t bytes) {
  return std::to_string(bytes) + (bytes == 1 ? " byte" : " bytes");
}

// "bytes 8 to 11 of x"
std::string place_text(const Region& region, const Access& access) {
  const std::size_t offset = access.address - region.begin;
  return "bytes " + std::to_string(offset) + " to " + std::to_string(offset + access.bytes - 1) +
         " of " + region.name;
}

}  // namespace

Region& Memory::add(Region region) {
  const uintptr_t begin = region.begin;
  region.cells.resize((region.bytes + region.cell_bytes - 1) / region.cell_bytes);
  auto& place = regions_[begin];
  if (place != nullptr) {
    throw std::logic_error("two regions begin at one address: " + region.name);
  }
  place = std::make_unique<Region>(std::move(region));
  return *place;
}

void Memory::remove(const Region& region) {
  recent_ = {};
  regions_.erase(region.begin);
}

Region* Memory::find(uintptr_t address) {
  const auto holds = [address](const Region* region) {
    return region != nullptr && address - region->begin < region->bytes;
  };
  for (Region* region : recent_) {
    if (holds(region)) {
      return region;
    }
  }
  auto after = regions_.upper_bound(address);
  if (after == regions_.begin() || !holds(std::prev(after)->second.get())) {
    return nullptr;
  }
  Region* found = std::prev(after)->second.get();
  std::move_backward(recent_.begin(), recent_.end() - 1, recent_.end());
  recent_[0] = found;
  return found;
}

std::string Memory::nearest(const Access& access) const {
  const Region* best = nullptr;
  std::size_t distance = 0;
  for (const auto& [begin, region] : regions_) {
    const std::size_t away =
        access.address < begin ? begin - access.address : access.address - region->begin;
    if (best == nullptr || away < distance) {
      best = region.get();
      distance = away;
    }
  }
  const std::string what = (access.write ? "a write of " : "a read of ") + bytes_text(access.bytes);
  if (best == nullptr || distance > best->bytes + kGap) {
    return what + " far from every buffer";
  }
  const auto size = " (" + bytes_text(best->bytes) + ")";
  return access.address < best->begin ? what + " " + bytes_text(best->begin - access.address) +
                                            " before " + best->name + size
                                      : what + " at " + bytes_text(access.address - best->begin) +
                                            " of " + best->name + size;
}

void Memory::split(Region& region, std::size_t cell_bytes) {
  const std::size_t parts = region.cell_bytes / cell_bytes;
  std::vector<Region::Cell> cells;
  cells.reserve(region.cells.size() * parts);
  for (const Region::Cell& cell : region.cells) {
    cells.insert(cells.end(), parts, cell);
  }
  region.cells = std::move(cells);
  region.cell_bytes = cell_bytes;
}

const Touch* Memory::conflict(const Region::Cell& cell, const Access& access, const Moment& now) {
  const auto apart = [&](const Touch& touch) {
    return touch.launch != 0 && !(touch.atomic && access.atomic) && !ordered(touch, now);
  };
  if (apart(cell.written)) {
    return &cell.written;
  }
  if (access.write) {
    const auto* read = std::find_if(cell.read.begin(), cell.read.end(), apart);
    return read == cell.read.end() ? nullptr : read;
  }
  return nullptr;
}

// A later write conflicts with some earlier read exactly if it conflicts with one of these: the
// last read; the last one of another block than that; the last one of the same block but another
// warp; the last one of the same warp but another lane. (With barriers of a part of a warp that is
// not exact: a race between its lanes may be missed.)
void Memory::note_read(Region::Cell& cell, const Touch& touch) {
  Touch& last = cell.read[0];
  if (last.launch == touch.launch) {
    if (!same_block(last, touch)) {
      cell.read[1] = last;
    } else if (!same_warp(last, touch)) {
      cell.read[2] = last;
    } else if (last.thread != touch.thread) {
      cell.read[3] = last;
    }
  }
  last = touch;
}

std::optional<Memory::Trouble> Memory::touch(const Access& access, const Moment& now) {
  Region* region = find(access.address);
  if (region == nullptr || access.address + access.bytes > region->end()) {
    return Trouble{Trouble::Kind::kOutOfBounds, nearest(access)};
  }
  if (region->kind == Kind::kArguments) {
    return access.write ? std::optional(Trouble{Trouble::Kind::kOutOfBounds,
                                                "a write to the arguments of the launch"})
                        : std::nullopt;
  }
  const std::size_t offset = access.address - region->begin;
  const std::size_t fits = common_power(offset, access.bytes, region->cell_bytes);
  if (fits < region->cell_bytes) {
    split(*region, fits);
  }
  const Touch touch{now.launch,  now.block,  now.barrier,  (*now.followed)[lane_of(now.thread)],
                    access.call, now.thread, access.atomic};
  std::optional<Trouble> trouble;
  const std::size_t end = (offset + access.bytes) / region->cell_bytes;
  for (std::size_t i = offset / region->cell_bytes; i < end; ++i) {
    Region::Cell& cell = region->cells[i];
    if (region->kind == Kind::kShared && !same_block(cell.written, touch)) {
      cell.written = {};
      if (!same_block(cell.read[0], touch)) {
        cell.read = {};
      }
    }
    if ((!access.write || access.atomic) && cell.written.launch == 0 && !region->initialised) {
      trouble = Trouble{Trouble::Kind::kUnwritten, "a read of " + place_text(*region, access)};
    }
    if (const Touch* other = conflict(cell, access, now); other != nullptr && !trouble) {
      const bool one_block = other->block == now.block;
      trouble =
          Trouble{Trouble::Kind::kRace,
                  std::string(access.write ? "a write to " : "a read of ") +
                      place_text(*region, access) + " by thread " + std::to_string(now.thread) +
                      (one_block ? " and by thread "
                                 : " of block " + std::to_string(now.block) + " and by thread ") +
                      std::to_string(other->thread) +
                      (one_block ? "" : " of block " + std::to_string(other->block)),
                  other->call};
    }
    if (access.write) {
      cell.written = touch;
    } else {
      note_read(cell, touch);
    }
  }
  return trouble;
}

Memory& memory() {
  static Memory all;
  return all;
}

Buffer::Buffer(std::string name, std::size_t bytes, bool initialised, std::size_t offset) {
  const std::size_t used = (offset + bytes + kPage - 1) / kPage * kPage;
  mapped_bytes_ = used + 2 * kGap;
  mapped_ =
      mmap(nullptr, mapped_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped_ == MAP_FAILED) {
    throw std::bad_alloc();
  }
  char* begin = static_cast<char*>(mapped_) + kGap;
  if (mprotect(begin, used, PROT_READ | PROT_WRITE) != 0) {
    throw std::bad_alloc();
  }
  // NaN in every floating type: an element that no kernel wrote shows in results.
  std::memset(begin, 0xff, used);
  region_ = &memory().add({.name = std::move(name),
                           .begin = reinterpret_cast<uintptr_t>(begin) + offset,
                           .bytes = bytes,
                           .kind = Kind::kGlobal,
                           .initialised = initialised});
}

Buffer::~Buffer() {
  memory().remove(*region_);
  munmap(mapped_, mapped_bytes_);
}

}  // namespace ringside::cuda_host
