#include "rl/rewards/sandbox_child.h"

#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>

#include "rl/rewards/sandbox.h"

namespace ringside::rl {
namespace {

// fork without the C library's handlers, which take locks that another thread may hold.
pid_t raw_clone(uint64_t flags) {
  return static_cast<pid_t>(
      ::syscall(SYS_clone, flags | SIGCHLD, nullptr, nullptr, nullptr, nullptr));
}

void limit(int resource, int64_t value) {
  const struct rlimit both = {static_cast<rlim_t>(value), static_cast<rlim_t>(value)};
  ::setrlimit(static_cast<__rlimit_resource_t>(resource), &both);
}

// Sets ids by system call: the C library's functions would synchronise with all threads, which do
// not exist here.
bool become(uint32_t user) {
  return ::syscall(SYS_setgroups, 0, nullptr) == 0 &&
         ::syscall(SYS_setresgid, user, user, user) == 0 &&
         ::syscall(SYS_setresuid, user, user, user) == 0;
}

// Resets the parent's signal handlers and mask; exec would keep ignored signals ignored.
void reset_signals() {
  for (int signal = 1; signal < NSIG; ++signal) {
    ::signal(signal, SIG_DFL);
  }
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

// Makes the plan's descriptors 0 to 2, or to 3, and closes the others.
bool wire(const ChildPlan& plan) {
  bool wired =
      ::dup2(plan.input, 0) >= 0 && ::dup2(plan.output, 1) >= 0 && ::dup2(plan.null, 2) >= 0;
  unsigned first_closed = 3;
  if (plan.exchange >= 0) {
    wired = wired && ::dup2(plan.exchange, 3) >= 0 && ::fcntl(3, F_SETFD, 0) == 0;
    first_closed = 4;
  }
  ::syscall(SYS_close_range, first_closed, ~0U, 0U);
  return wired;
}

[[noreturn]] void run_program(const ChildPlan& plan, SandboxFiles files) {
  ::setsid();
  const bool wired = wire(plan);
  if (!wired || ::chdir(plan.directory) != 0) {
    ::_exit(kSandboxCannotStart);
  }
  limit(RLIMIT_CORE, 0);
  limit(RLIMIT_NOFILE, 64);
  limit(RLIMIT_FSIZE, plan.file_bytes);
  limit(RLIMIT_CPU, plan.milliseconds / 1000 + 1);
  limit(RLIMIT_AS, plan.memory_bytes);
  limit(RLIMIT_NPROC, plan.processes);  // counted by user, or within the user namespace
  ::setpriority(PRIO_PROCESS, 0, 10);
  if (plan.change_user && !become(plan.user)) {
    ::_exit(kSandboxCannotStart);
  }
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (files == SandboxFiles::kLandlock && !plan.view->restrict_files()) {
    ::_exit(kSandboxCannotStart);
  }
  ::execve(plan.argv[0], plan.argv, plan.environment);
  ::_exit(kSandboxCannotStart);
}

int64_t now_ms() {
  struct timespec now {};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

// Kills every current child listed in /proc. Orphans become children of this process
// (PR_SET_CHILD_SUBREAPER), so repeated calls until no child is left reach all descendants.
void kill_children() {
  const int file = ::open("/proc/thread-self/children", O_RDONLY | O_CLOEXEC);
  if (file < 0) {
    return;
  }
  char text[4096];
  const ssize_t length = ::read(file, text, sizeof text);
  ::close(file);
  pid_t child = 0;
  for (ssize_t i = 0; i < length; ++i) {
    if (text[i] >= '0' && text[i] <= '9') {
      child = child * 10 + (text[i] - '0');
    } else if (child > 0) {
      ::kill(child, SIGKILL);
      child = 0;
    }
  }
}

// Kills all processes of the program's user with one signal, sent from a process of that user.
// Killing them one by one may lose against a program that forks as fast.
void kill_user(uint32_t user) {
  const pid_t killer = raw_clone(0);
  if (killer == 0) {
    ::_exit(become(user) && ::kill(-1, SIGKILL) == 0 ? 0 : 1);
  }
  if (killer > 0) {
    ::waitpid(killer, nullptr, __WALL);
  }
}

// Kills the program's remaining processes. In a namespace the end of process 1 kills all of them;
// elsewhere they are killed one by one for a short time.
void kill_descendants(const ChildPlan& plan) {
  const int64_t until = now_ms() + 1500;
  const struct timespec pause = {0, 1000000};
  while (::waitpid(-1, nullptr, WNOHANG | __WALL) >= 0 && now_ms() < until) {
    if (plan.change_user) {
      kill_user(plan.user);
    }
    kill_children();
    ::nanosleep(&pause, nullptr);
  }
}

// How the program's files are limited. Enters the view where that is possible.
SandboxFiles limit_files(const ChildPlan& plan, uint64_t apart) {
  if ((apart & CLONE_NEWNS) != 0 && plan.view->enter((apart & CLONE_NEWUSER) != 0)) {
    return SandboxFiles::kPrivate;
  }
  return has_landlock() ? SandboxFiles::kLandlock : SandboxFiles::kOpen;
}

[[noreturn]] void end_with(const ChildPlan& plan, const ChildReport& report) {
  [[maybe_unused]] const ssize_t written = ::write(plan.report, &report, sizeof report);
  ::_exit(0);
}

[[noreturn]] void keep(const ChildPlan& plan, uint64_t apart) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
  ::setsid();
  reset_signals();
  ChildReport report;
  report.files = limit_files(plan, apart);
  if (report.files == SandboxFiles::kOpen && !plan.change_user) {
    report.status = kSandboxCannotStart << 8;  // as of a process that exits with it
    end_with(plan, report);
  }
  const int64_t until = now_ms() + plan.milliseconds;
  const pid_t program = raw_clone(0);
  if (program == 0) {
    run_program(plan, report.files);
  }
  if (program < 0) {
    ::_exit(kSandboxCannotStart);
  }
  const struct timespec pause = {0, 1000000};
  for (;;) {
    const pid_t ended = ::waitpid(-1, &report.status, WNOHANG | __WALL);
    if (ended == program) {
      break;
    }
    if (ended > 0) {
      continue;  // an orphan
    }
    if (now_ms() >= until) {
      report.timed_out = 1;
      ::kill(program, SIGKILL);
      break;
    }
    ::nanosleep(&pause, nullptr);
  }
  if ((apart & CLONE_NEWPID) == 0) {
    kill_descendants(plan);
  }
  end_with(plan, report);
}

}  // namespace

pid_t start_keeper(const ChildPlan& plan) {
  const uint64_t user = plan.change_user ? 0 : CLONE_NEWUSER;
  constexpr uint64_t kNetwork = CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWNET;
  const std::array<uint64_t, 5> tries = {kNetwork | CLONE_NEWNS, CLONE_NEWPID | CLONE_NEWNS,
                                         kNetwork, CLONE_NEWPID, 0};
  pid_t keeper = -1;
  for (const uint64_t apart : tries) {
    if (apart == 0 && !plan.change_user) {
      break;
    }
    if ((apart & CLONE_NEWNS) != 0 && !plan.permit_view) {
      continue;
    }
    const uint64_t flags = apart == 0 ? 0 : apart | user;
    keeper = raw_clone(flags);
    if (keeper == 0) {
      keep(plan, flags);
    }
    if (keeper > 0) {
      break;
    }
  }
  return keeper;
}

}  // namespace ringside::rl
