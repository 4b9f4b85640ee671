#include "rl/rewards/sandbox.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "rl/rewards/sandbox_child.h"
#include "rl/rewards/sandbox_view.h"

namespace ringside::rl {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kEndBytes = 4096;
constexpr uint32_t kFirstUser = 0x6FFF0000;  // far above the ids that systems assign
constexpr uint32_t kFewUsers = 60000;        // if ids end at 65535
constexpr uint32_t kUsers = 5000;

[[noreturn]] void fail(const std::string& what) {
  throw std::runtime_error(what + ": " + std::strerror(errno));
}

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { close(); }
  int get() const { return fd_; }
  void close() {
    if (fd_ >= 0) {
      ::close(std::exchange(fd_, -1));
    }
  }

 private:
  int fd_;
};

struct Pipe {
  Descriptor read;
  Descriptor write;
};

// The reading end does not block.
Pipe make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    fail("sandbox: no pipe");
  }
  Pipe pipe{Descriptor(ends[0]), Descriptor(ends[1])};
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return pipe;
}

// Two connected ends; the first is ours and does not block.
std::pair<Descriptor, Descriptor> make_socket() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    fail("sandbox: no socket pair");
  }
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

Descriptor memory_file(std::string_view content) {
  Descriptor file(::memfd_create("input", MFD_CLOEXEC));
  if (file.get() < 0) {
    fail("sandbox: no memory file");
  }
  while (!content.empty()) {
    const ssize_t written = ::write(file.get(), content.data(), content.size());
    if (written < 0) {
      fail("sandbox: cannot write the input");
    }
    content.remove_prefix(static_cast<std::size_t>(written));
  }
  ::lseek(file.get(), 0, SEEK_SET);
  return file;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) {
    result.push_back(text.data());
  }
  result.push_back(nullptr);
  return result;
}

// Whether user ids [first, first + kUsers) exist here: a container may map only a few.
bool are_mapped(uint32_t first) {
  std::ifstream map("/proc/self/uid_map");
  for (uint64_t begin = 0, outside = 0, count = 0; map >> begin >> outside >> count;) {
    if (begin <= first && first + kUsers <= begin + count) {
      return true;
    }
  }
  return false;
}

// The user id of the next program: a separate one for each if run by root, else the caller's.
uint32_t next_user() {
  if (::geteuid() != 0) {
    return ::geteuid();
  }
  static const uint32_t first = are_mapped(kFirstUser)  ? kFirstUser
                                : are_mapped(kFewUsers) ? kFewUsers
                                                        : 0;
  static std::atomic<uint32_t> count{0};
  // Processes of one machine start at different ids.
  return first == 0 ? ::geteuid()
                    : first + (static_cast<uint32_t>(::getpid()) * 977 + count++) % kUsers;
}

// Blocks read at once; limited so that a program that never stops writing cannot hold the reader.
constexpr int kMostBlocks = 16;

// Reads the available output; false at the end of the stream.
bool take_output(int fd, const SandboxLimits& limits, SandboxResult& result) {
  std::array<char, 65536> block;
  for (int i = 0; i < kMostBlocks; ++i) {
    const ssize_t got = ::read(fd, block.data(), block.size());
    if (got <= 0) {
      return got < 0 && (errno == EAGAIN || errno == EINTR);
    }
    const std::string_view bytes(block.data(), static_cast<std::size_t>(got));
    const std::size_t kept = std::min(bytes.size(), limits.output_bytes - result.output.size());
    result.output.append(bytes.substr(0, kept));
    result.output_cut |= kept < bytes.size();
    result.output_end.append(bytes.substr(bytes.size() - std::min(bytes.size(), kEndBytes)));
    result.output_end.erase(
        0, result.output_end.size() - std::min(result.output_end.size(), kEndBytes));
  }
  return true;
}

// Our end of an exchange. It does not block.
class ExchangeEnd {
 public:
  // exchange: nullptr for none. `fd` is closed with it.
  ExchangeEnd(const SandboxExchange* exchange, Descriptor fd)
      : exchange_(exchange), fd_(std::move(fd)) {
    if (exchange_ != nullptr) {
      pending_ = exchange_->first;
    }
  }

  struct pollfd poll_entry() const {
    const auto events = static_cast<short>(POLLIN | (pending_.empty() ? 0 : POLLOUT));
    return {fd_.get(), events, 0};
  }

  void handle(short events, std::string& received) {
    if ((events & POLLIN) != 0) {
      receive(received);
    } else if ((events & (POLLHUP | POLLERR)) != 0) {
      fd_.close();
    }
    if ((events & POLLOUT) != 0 && !pending_.empty()) {
      const ssize_t sent = ::send(fd_.get(), pending_.data(), pending_.size(), MSG_NOSIGNAL);
      pending_.erase(0, sent > 0 ? static_cast<std::size_t>(sent) : 0);
    }
  }

  // What has come and not been read yet.
  void receive(std::string& received) {
    std::array<char, kEndBytes> block;
    for (int i = 0; i < kMostBlocks; ++i) {
      const ssize_t got = ::recv(fd_.get(), block.data(), block.size(), MSG_DONTWAIT);
      if (got == 0) {
        fd_.close();
      }
      if (got <= 0) {
        break;
      }
      received.append(block.data(),
                      std::min(static_cast<std::size_t>(got), kEndBytes - received.size()));
    }
    if (!replied_ && exchange_ != nullptr && received.starts_with(exchange_->request)) {
      replied_ = true;
      pending_ += exchange_->reply;
    }
  }

 private:
  const SandboxExchange* exchange_;
  Descriptor fd_;
  std::string pending_;
  bool replied_ = false;
};

// Reads output and exchanges messages until the keeper's report or its death. Kills the keeper when
// it is overdue.
ChildReport watch(pid_t keeper, int output, int report_fd, ExchangeEnd& exchange,
                  const SandboxLimits& limits, SandboxResult& result) {
  const auto overdue =
      Clock::now() + std::chrono::milliseconds(static_cast<int64_t>(limits.seconds * 1000) + 2000);
  ChildReport report{1, 0};
  bool killed = false;
  bool open = true;
  for (;;) {
    std::array<struct pollfd, 3> fds = {
        {{report_fd, POLLIN, 0}, {open ? output : -1, POLLIN, 0}, exchange.poll_entry()}};
    ::poll(fds.data(), fds.size(), 100);
    if (fds[2].revents != 0) {
      exchange.handle(fds[2].revents, result.received);
    }
    if (fds[1].revents != 0) {
      open = take_output(output, limits, result);
    }
    if (fds[0].revents != 0) {
      ChildReport read{};
      if (::read(report_fd, &read, sizeof read) == static_cast<ssize_t>(sizeof read)) {
        report = read;
      } else if (!killed) {
        report = {0, SIGKILL};  // the keeper was killed too: how the program ended is unknown
      }
      break;
    }
    if (!killed && Clock::now() > overdue) {
      ::kill(keeper, SIGKILL);
      killed = true;
    }
  }
  while (::waitpid(keeper, nullptr, __WALL) < 0 && errno == EINTR) {
  }
  take_output(output, limits, result);
  exchange.receive(result.received);
  return report;
}

// How the program ended.
SandboxResult with_end(SandboxResult result, const ChildReport& end, bool change_user) {
  result.files = end.files;
  if (end.files == SandboxFiles::kOpen && !change_user && end.timed_out == 0 &&
      WIFEXITED(end.status) && WEXITSTATUS(end.status) == kSandboxCannotStart) {
    throw std::runtime_error(
        "sandbox: the kernel permits neither mount namespaces nor Landlock, without which a "
        "program could read and change all files of this user");
  }
  if (end.timed_out != 0) {
    result.end = SandboxResult::End::kTimedOut;
  } else if (WIFEXITED(end.status)) {
    result.end = SandboxResult::End::kExited;
    result.code = WEXITSTATUS(end.status);
  } else {
    result.code = WTERMSIG(end.status);
  }
  return result;
}

}  // namespace

SandboxDirectory::SandboxDirectory(const std::string& name, std::string_view content)
    : user_(next_user()) {
  std::string pattern = (fs::temp_directory_path() / "ringside-code-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) {
    fail("cannot make " + pattern);
  }
  base_ = pattern;
  path_ = base_ / "work";
  root_ = base_ / "root";
  std::error_code made;
  fs::create_directory(path_, made);
  fs::create_directory(root_, made);
  const fs::path file = path_ / name;
  std::ofstream stream(file, std::ios::binary);
  stream.write(content.data(), static_cast<std::streamsize>(content.size()));
  stream.close();
  bool ready = stream.good();
  if (user_ != ::geteuid()) {
    ready = ready && ::chown(base_.c_str(), user_, user_) == 0 &&
            ::chown(path_.c_str(), user_, user_) == 0 && ::chown(file.c_str(), user_, user_) == 0;
  }
  if (!ready) {
    std::error_code ignored;
    fs::remove_all(base_, ignored);
    throw std::runtime_error("cannot write " + file.string());
  }
}

SandboxDirectory::~SandboxDirectory() {
  std::error_code error;
  fs::remove_all(base_, error);
  if (!error) {
    return;
  }
  // A program may have removed permissions of its own folders.
  for (auto it = fs::recursive_directory_iterator(
           base_, fs::directory_options::skip_permission_denied, error);
       !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
    std::error_code ignored;
    if (it->is_directory(ignored) && !it->is_symlink(ignored)) {
      fs::permissions(it->path(), fs::perms::owner_all, ignored);
    }
  }
  fs::remove_all(base_, error);
}

std::vector<std::string> find_executables(const std::string& command) {
  std::vector<std::string> found;
  const auto add = [&](const fs::path& path) {
    std::error_code ignored;
    if (fs::is_regular_file(path, ignored) && ::access(path.c_str(), X_OK) == 0) {
      found.push_back(fs::absolute(path).string());
    }
  };
  if (command.find('/') != std::string::npos) {
    add(command);
    return found;
  }
  const char* path = ::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "/usr/local/bin:/usr/bin:/bin");
  for (std::string folder; !command.empty() && std::getline(folders, folder, ':');) {
    add(fs::path(folder.empty() ? "." : folder) / command);
  }
  return found;
}

SandboxResult run_sandboxed(const std::vector<std::string>& argv, const SandboxDirectory& directory,
                            std::string_view input, const SandboxLimits& limits,
                            const SandboxExchange* exchange) {
  std::vector<std::string> words = argv;
  const std::string home = directory.path().string();
  std::vector<std::string> environment = {"PATH=/usr/local/bin:/usr/bin:/bin",
                                          "HOME=" + home,
                                          "TMPDIR=" + home,
                                          "LANG=C.UTF-8",
                                          "OMP_NUM_THREADS=1",
                                          "OPENBLAS_NUM_THREADS=1"};
  const auto argv_pointers = pointers(words);
  const auto environment_pointers = pointers(environment);
  const Descriptor stdin_file = memory_file(input);
  const Descriptor null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  const SandboxView view(words.front(), home, directory.root().string());
  Pipe output = make_pipe();
  Pipe report = make_pipe();
  auto [ours, theirs] = exchange == nullptr ? std::pair<Descriptor, Descriptor>() : make_socket();
  ChildPlan plan;
  plan.argv = argv_pointers.data();
  plan.environment = environment_pointers.data();
  plan.directory = home.c_str();
  plan.input = stdin_file.get();
  plan.output = output.write.get();
  plan.null = null.get();
  plan.report = report.write.get();
  plan.exchange = theirs.get();
  plan.view = &view;
  plan.permit_view = limits.private_files;
  plan.user = directory.user();
  plan.change_user = directory.user() != ::geteuid();
  plan.processes = limits.processes;
  plan.memory_bytes = limits.memory_bytes;
  plan.file_bytes = limits.file_bytes;
  plan.milliseconds = std::max<int64_t>(1, static_cast<int64_t>(limits.seconds * 1000));
  const pid_t keeper = start_keeper(plan);
  if (keeper < 0) {
    fail(
        "sandbox: no process in a namespace of its own (user namespaces, or root), without which a "
        "program could start "
        "processes without limit and signal ours");
  }
  output.write.close();
  report.write.close();
  theirs.close();
  ExchangeEnd exchange_end(exchange, std::move(ours));
  SandboxResult result;
  const ChildReport end =
      watch(keeper, output.read.get(), report.read.get(), exchange_end, limits, result);
  return with_end(std::move(result), end, plan.change_user);
}

}  // namespace ringside::rl
