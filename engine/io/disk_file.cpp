#include "engine/io/disk_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

namespace ringside::engine {
namespace {

[[noreturn]] void fail(const char* what, const std::filesystem::path& path) {
  throw std::system_error(errno, std::generic_category(), what + (" " + path.string()));
}

// File descriptor that is closed at the end of the scope.
class ScopedFd {
 public:
  ScopedFd(const std::filesystem::path& path, int flags)
      : fd_(::open(path.c_str(), flags | O_CLOEXEC)) {
    if (fd_ < 0) {
      fail("cannot open", path);
    }
  }
  ~ScopedFd() { ::close(fd_); }
  ScopedFd(const ScopedFd&) = delete;
  ScopedFd& operator=(const ScopedFd&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

OutputFile::OutputFile(std::filesystem::path path)
    : path_(std::move(path)),
      fd_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)) {
  if (fd_ < 0) {
    fail("cannot create", path_);
  }
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
}

void OutputFile::write(const void* data, std::size_t size) {
  const auto* bytes = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t written = ::write(fd_, bytes, size);
    if (written < 0 && errno != EINTR) {
      fail("cannot write", path_);
    }
    if (written > 0) {
      bytes += written;
      size -= static_cast<std::size_t>(written);
    }
  }
}

void OutputFile::close() {
  // close() releases the descriptor even when it fails; a second call would close another file's.
  if (::close(std::exchange(fd_, -1)) != 0) {
    fail("cannot close", path_);
  }
}

MappedFile::MappedFile(const std::filesystem::path& path) {
  const ScopedFd fd(path, O_RDONLY);
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) {
    fail("cannot stat", path);
  }
  size_ = static_cast<uint64_t>(status.st_size);
  if (size_ == 0) {
    return;  // mmap refuses empty mappings
  }
  void* mapped = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd.get(), 0);
  if (mapped == MAP_FAILED) {
    fail("cannot map", path);
  }
  data_ = static_cast<std::byte*>(mapped);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    ::munmap(data_, size_);
  }
}

void write_text(const std::filesystem::path& path, std::string_view text) {
  OutputFile file(path);
  file.write(text.data(), text.size());
  file.close();
}

void sync_path(const std::filesystem::path& path) {
  const ScopedFd fd(path, O_RDONLY);
  if (::fsync(fd.get()) != 0) {
    fail("cannot sync", path);
  }
}

}  // namespace ringside::engine
