// Memory that processes of one machine share, and which of its users are still there. Torch-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace ringside::sp {

// Where this process runs: the start of the machine, the process namespace and the user. Processes
// of equal places can open each other's segments. Empty when the system does not tell.
std::string machine_place();

// A segment without a name in the file system: the kernel frees it with its last user, however that
// one ends, and the size of /dev/shm does not bound it. Pages are taken when they are first
// written, and are zero before.
//
// Each user occupies a place by a lock of its own open file. The kernel releases the lock when the
// process ends.
// Thread safety: const functions from any thread; construction and occupy() from one.
class SharedSegment {
 public:
  // A new segment.
  // Throws: std::system_error when the system refuses it.
  static std::unique_ptr<SharedSegment> create(int64_t bytes);
  // A segment of another user of this machine, or of this process. address: of its address().
  // Throws: std::system_error when it cannot be opened; std::invalid_argument on a bad address or
  // when its size is not `bytes`.
  static std::unique_ptr<SharedSegment> open(const std::string& address, int64_t bytes);

  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;
  ~SharedSegment();

  // How others open it, while this process has it.
  std::string address() const;
  // The first byte, at the start of a page, and the number of bytes.
  std::byte* data() const { return data_; }
  int64_t size() const { return bytes_; }

  // Takes a place, from 0, until this object or the process ends.
  // Throws: std::system_error when somebody has it.
  void occupy(int64_t place) const;
  // Whether another user has the place.
  // Throws: std::system_error when the system does not tell.
  bool occupied_by_other(int64_t place) const;

 private:
  SharedSegment(int file, int64_t bytes);

  int file_;
  int64_t bytes_;
  std::byte* data_ = nullptr;
};

}  // namespace ringside::sp
