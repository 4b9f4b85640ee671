#include "rollout_bridge/weights/shared_block.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <system_error>
#include <utility>
#include <vector>

namespace ringside::bridge {
namespace {

constexpr std::size_t kKeptViews = 4;  // one being written, two served, one as the delta's base
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;

// Owning file descriptor.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) {
      ::close(fd_);
    }
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

[[noreturn]] void fail(int error, std::size_t bytes) {
  throw std::system_error(error, std::generic_category(),
                          "shared memory of " + std::to_string(bytes) + " bytes");
}

}  // namespace

std::string host_id() {
  static const std::string id = [] {
    std::string boot;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
    std::error_code error;
    const auto space = std::filesystem::read_symlink("/proc/self/ns/pid", error);
    return boot.empty() || error ? "" : boot + " " + space.string();
  }();
  return id;
}

SharedBlock::SharedBlock(std::size_t bytes) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0) {
    fail(errno, bytes);
  }
  if (limit.rlim_cur < bytes) {
    fail(EFBIG, bytes);  // exceeding the limit would send SIGXFSZ
  }
  Descriptor memory(::memfd_create("ringside-weights", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (memory.get() < 0 || ::ftruncate(memory.get(), static_cast<off_t>(bytes)) != 0 ||
      ::fcntl(memory.get(), F_ADD_SEALS, kSeals) != 0) {
    fail(errno, bytes);
  }
  if (bytes > 0) {
    void* mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
    if (mapped == MAP_FAILED) {
      fail(errno, bytes);
    }
    bytes_ = {static_cast<std::byte*>(mapped), bytes};
  }
  fd_ = memory.release();
}

SharedBlock::~SharedBlock() {
  if (!bytes_.empty()) {
    ::munmap(bytes_.data(), bytes_.size());
  }
  ::close(fd_);
}

SharedPlace SharedBlock::place() const { return {host_id(), ::getpid(), fd_, bytes_.size()}; }

class SharedBlocks::FreeList {
 public:
  std::unique_ptr<SharedBlock> take(std::size_t bytes) {
    std::vector<std::unique_ptr<SharedBlock>> other;  // freed after the unlock
    const std::lock_guard lock(mutex_);
    std::unique_ptr<SharedBlock> found;
    for (auto& block : idle_) {
      auto& to = !found && block->bytes().size() == bytes ? found : other.emplace_back();
      to = std::move(block);
    }
    idle_.clear();
    return found;
  }
  void reopen(std::unique_ptr<SharedBlock> block) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(block));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<SharedBlock>> idle_;
};

SharedBlocks::SharedBlocks() : free_list_(std::make_shared<FreeList>()) {}

std::shared_ptr<SharedBlock> SharedBlocks::take(std::size_t bytes) {
  auto block = free_list_->take(bytes);
  if (!block) {
    block = std::make_unique<SharedBlock>(bytes);
  }
  return {block.release(), [weak = std::weak_ptr(free_list_)](SharedBlock* released) {
            std::unique_ptr<SharedBlock> owned(released);
            if (const auto shelf = weak.lock()) {
              shelf->reopen(std::move(owned));
            }
          }};
}

Result<std::shared_ptr<const SharedView>> SharedViews::open(const SharedPlace& place) {
  if (place.host.empty() || place.host != host_id()) {
    return Error{Reason::kUnsupported, "shared weights of another machine"};
  }
  if (place.pid < 1 || place.fd < 0 || place.bytes < 1) {
    return Error{Reason::kInvalidField, "shared weights of " + std::to_string(place.bytes) +
                                            " bytes at process " + std::to_string(place.pid) +
                                            ", file " + std::to_string(place.fd)};
  }
  const std::string path = "/proc/" + std::to_string(place.pid) + "/fd/" + std::to_string(place.fd);
  const Descriptor memory(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (memory.get() < 0) {
    return Error{Reason::kGone, path + ": " + std::generic_category().message(errno)};
  }
  struct stat status {};
  const int seals = ::fcntl(memory.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || ::fstat(memory.get(), &status) != 0 ||
      static_cast<uint64_t>(status.st_size) != place.bytes) {
    return Error{Reason::kInvalidField,
                 path + " is no sealed memory of " + std::to_string(place.bytes) + " bytes"};
  }
  for (const auto& view : kept_) {
    if (view->device_ == status.st_dev && view->inode_ == status.st_ino) {
      return view;
    }
  }
  void* mapped = ::mmap(nullptr, place.bytes, PROT_READ, MAP_SHARED, memory.get(), 0);
  if (mapped == MAP_FAILED) {
    return Error{Reason::kGone, path + ": " + std::generic_category().message(errno)};
  }
  kept_.emplace_back(new SharedView({static_cast<const std::byte*>(mapped), place.bytes},
                                    status.st_dev, status.st_ino));
  if (kept_.size() > kKeptViews) {
    kept_.pop_front();
  }
  return kept_.back();
}

SharedView::~SharedView() { ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size()); }

}  // namespace ringside::bridge
