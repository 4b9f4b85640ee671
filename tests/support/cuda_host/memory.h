// The memory of kernels on the host: buffers and shared arrays with a record of who touched what.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace ringside::cuda_host {

constexpr int kLanes = 32;

// A thread at one moment: what orders its accesses.
struct Moment {
  uint32_t launch = 0;
  uint32_t block = 0;
  uint32_t thread = 0;   // of the block
  uint32_t barrier = 0;  // barriers of the block so far
  // Of each lane of its warp: how far this thread has followed it, in barriers of the lane.
  const std::array<uint32_t, kLanes>* followed = nullptr;
};

// One load or store.
struct Access {
  uintptr_t address = 0;
  std::size_t bytes = 0;
  bool write = false;
  bool atomic = false;
  uint32_t call = 0;  // of the call tree
};

// Who touched a cell.
struct Touch {
  uint32_t launch = 0;  // 0: nobody
  uint32_t block = 0;
  uint32_t barrier = 0;
  uint32_t lane_barrier = 0;  // of its own lane
  uint32_t call = 0;
  uint32_t thread : 31 = 0;
  uint32_t atomic : 1 = 0;
};

enum class Kind { kGlobal, kShared, kArguments };

// A run of bytes that kernels may use.
struct Region {
  std::string name;
  uintptr_t begin = 0;
  std::size_t bytes = 0;
  Kind kind = Kind::kGlobal;
  bool initialised = false;  // before any kernel wrote
  std::size_t cell_bytes = 8;

  // Bytes that were always touched together.
  struct Cell {
    Touch written;
    std::array<Touch, 4> read;  // the last, and the last ones unlike it: see Memory::note_read
  };
  std::vector<Cell> cells{};

  uintptr_t end() const { return begin + bytes; }
};

// All regions. Thread safety: none.
class Memory {
 public:
  // What is wrong with an access.
  struct Trouble {
    enum class Kind { kRace, kOutOfBounds, kUnwritten } kind;
    std::string what;
    uint32_t other = 0;  // a race's other call
  };

  // No two regions overlap. The reference stays good until remove().
  Region& add(Region region);
  void remove(const Region& region);

  // Checks the access and notes it. One that is out of bounds must not happen.
  std::optional<Trouble> touch(const Access& access, const Moment& now);

 private:
  Region* find(uintptr_t address);
  std::string nearest(const Access& access) const;
  static void split(Region& region, std::size_t cell_bytes);
  static const Touch* conflict(const Region::Cell& cell, const Access& access, const Moment& now);
  static void note_read(Region::Cell& cell, const Touch& touch);

  std::map<uintptr_t, std::unique_ptr<Region>> regions_;  // by their begin
  std::array<Region*, 4> recent_{};
};

// The memory that all launches use.
Memory& memory();

// Memory of the device for a test: bytes between wide gaps that belong to no buffer.
class Buffer {
 public:
  // initialised: false for memory that no kernel may read before one has written it. It begins at
  // `offset` bytes behind an address that 256 divides.
  Buffer(std::string name, std::size_t bytes, bool initialised, std::size_t offset = 0);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  void* data() const { return reinterpret_cast<void*>(region_->begin); }

 private:
  void* mapped_ = nullptr;
  std::size_t mapped_bytes_ = 0;
  const Region* region_ = nullptr;
};

}  // namespace ringside::cuda_host
