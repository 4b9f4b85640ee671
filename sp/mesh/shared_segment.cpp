#include "sp/mesh/shared_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <fstream>
#include <stdexcept>
#include <system_error>

namespace ringside::sp {
namespace {

[[noreturn]] void fail(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

struct flock lock_of(int64_t place, short type) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = place;
  lock.l_len = 1;
  return lock;
}

}  // namespace

std::string machine_place() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  std::array<char, 64> space{};
  const ssize_t length = readlink("/proc/self/ns/pid", space.data(), space.size());
  if (boot.empty() || length <= 0) {
    return "";
  }
  return boot + " " + std::string(space.data(), static_cast<std::size_t>(length)) + " user " +
         std::to_string(geteuid());
}

SharedSegment::SharedSegment(int file, int64_t bytes) : file_(file), bytes_(bytes) {
  void* const memory = mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE,
                            MAP_SHARED, file, /*offset=*/0);
  if (memory == MAP_FAILED) {
    const int error = errno;
    close(file);
    errno = error;
    fail("shared memory: cannot map " + std::to_string(bytes) + " bytes");
  }
  data_ = static_cast<std::byte*>(memory);
}

SharedSegment::~SharedSegment() {
  munmap(data_, static_cast<std::size_t>(bytes_));
  close(file_);
}

std::unique_ptr<SharedSegment> SharedSegment::create(int64_t bytes) {
  const int file = memfd_create("ringside-ranks", MFD_CLOEXEC);
  if (file < 0) {
    fail("shared memory: cannot make a segment");
  }
  if (ftruncate(file, bytes) != 0) {
    const int error = errno;
    close(file);
    errno = error;
    fail("shared memory: cannot make a segment of " + std::to_string(bytes) + " bytes");
  }
  return std::unique_ptr<SharedSegment>(new SharedSegment(file, bytes));
}

std::unique_ptr<SharedSegment> SharedSegment::open(const std::string& address, int64_t bytes) {
  if (!address.starts_with("/proc/")) {
    throw std::invalid_argument("shared memory: the address of a segment is '" + address +
                                "', expected a file of /proc");
  }
  const int file = ::open(address.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) {
    fail("shared memory: cannot open the segment " + address);
  }
  struct stat status = {};
  if (fstat(file, &status) != 0 || status.st_size != bytes) {
    close(file);
    throw std::invalid_argument("shared memory: the segment " + address + " has " +
                                std::to_string(status.st_size) + " bytes, expected " +
                                std::to_string(bytes));
  }
  return std::unique_ptr<SharedSegment>(new SharedSegment(file, bytes));
}

std::string SharedSegment::address() const {
  return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(file_);
}

void SharedSegment::occupy(int64_t place) const {
  struct flock lock = lock_of(place, F_WRLCK);
  if (fcntl(file_, F_OFD_SETLK, &lock) != 0) {
    fail("shared memory: cannot take place " + std::to_string(place) + " of a segment");
  }
}

bool SharedSegment::occupied_by_other(int64_t place) const {
  struct flock lock = lock_of(place, F_WRLCK);
  if (fcntl(file_, F_OFD_GETLK, &lock) != 0) {
    fail("shared memory: cannot read the users of a segment");
  }
  return lock.l_type != F_UNLCK;
}

}  // namespace ringside::sp
