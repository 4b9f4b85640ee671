#include "rollout_bridge/base/posix_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

namespace ringside::bridge {

PosixFile::PosixFile(std::filesystem::path path, int flags) : path_(std::move(path)) {
  fd_ = ::open(path_.c_str(), flags | O_CLOEXEC, 0600);
  if (fd_ < 0) {
    fail("open");
  }
}

PosixFile::~PosixFile() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
}

PosixFile::PosixFile(PosixFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

PosixFile& PosixFile::operator=(PosixFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  return *this;
}

void PosixFile::lock() {
  if (::flock(fd_, LOCK_EX | LOCK_NB) == 0) {
    return;
  }
  if (errno == EWOULDBLOCK) {
    throw std::runtime_error(path_.string() + ": held by another process of this run");
  }
  fail("flock");
}

uint64_t PosixFile::size() const {
  struct stat info {};
  if (::fstat(fd_, &info) != 0) {
    fail("fstat");
  }
  return static_cast<uint64_t>(info.st_size);
}

void PosixFile::append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written < 0) {
      fail("write");
    }
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

std::size_t PosixFile::read_at(uint64_t offset, std::span<std::byte> out) const {
  std::size_t done = 0;
  while (done < out.size()) {
    const ssize_t got =
        ::pread(fd_, out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      fail("pread");
    }
    if (got == 0) {
      break;
    }
    done += static_cast<std::size_t>(got);
  }
  return done;
}

void PosixFile::truncate(uint64_t size) {
  if (::ftruncate(fd_, static_cast<off_t>(size)) != 0) {
    fail("ftruncate");
  }
}

void PosixFile::sync() {
  if (::fdatasync(fd_) != 0) {
    fail("fdatasync");
  }
}

void PosixFile::fail(const char* what) const {
  throw std::system_error(errno, std::generic_category(), path_.string() + ": " + what);
}

void sync_directory(const std::filesystem::path& directory) {
  PosixFile(directory, O_RDONLY | O_DIRECTORY).sync();
}

namespace {

class PosixFileSystem final : public FileSystem {
 public:
  std::unique_ptr<File> open(const std::filesystem::path& path) override {
    return std::make_unique<PosixFile>(path, O_RDWR | O_CREAT | O_APPEND);
  }
  std::unique_ptr<File> create(const std::filesystem::path& path) override {
    return std::make_unique<PosixFile>(path, O_RDWR | O_CREAT | O_TRUNC | O_APPEND);
  }
  void create_directories(const std::filesystem::path& directory) override {
    std::filesystem::create_directories(directory);
  }
  void rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
    std::filesystem::rename(from, to);
  }
  void remove(const std::filesystem::path& path) override { std::filesystem::remove(path); }
  void sync_directory(const std::filesystem::path& directory) override {
    bridge::sync_directory(directory);
  }
};

}  // namespace

std::shared_ptr<FileSystem> posix_file_system() { return std::make_shared<PosixFileSystem>(); }

}  // namespace ringside::bridge
