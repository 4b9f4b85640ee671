// Streams, events and child processes of the stand-in's tests.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>

#include "tests/support/standin/standin.h"

namespace ringside::standin {

inline const c10::impl::DeviceGuardImplInterface& device_guard() {
  return *c10::impl::getDeviceGuardImpl(c10::kPrivateUse1);
}

inline c10::Stream main_stream(int index = 0) {
  return device_guard().getDefaultStream(device(index));
}

inline c10::Stream side_stream(int index = 0) { return device_guard().getNewStream(device(index)); }

inline c10::Event event_on(const c10::Stream& stream) {
  c10::Event event(c10::kPrivateUse1);
  event.record(stream);
  return event;
}

// What `later` launches from now on comes after what `earlier` has launched.
inline void order(const c10::Stream& earlier, const c10::Stream& later) {
  event_on(earlier).block(later);
}

inline at::TensorOptions on_device(int index = 0) {
  return at::TensorOptions().device(device(index)).dtype(at::kFloat);
}

inline at::Tensor pinned(at::IntArrayRef size) {
  return at::empty(size, at::TensorOptions().dtype(at::kFloat).pinned_memory(true));
}

struct ChildEnd {
  int status = -1;  // exit status; -1 when it did not exit
  std::string error_output;
};

// Runs `body` in a child process, for what ends a process.
inline ChildEnd run_in_child(const std::function<void()>& body) {
  char path[] = "/tmp/standin-child-XXXXXX";
  const int file = mkstemp(path);
  const pid_t child = fork();
  if (child == 0) {
    dup2(file, STDERR_FILENO);
    dup2(file, STDOUT_FILENO);  // a test framework may write its own words
    try {
      body();
    } catch (...) {
      _exit(1);
    }
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  close(file);
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  std::remove(path);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, text.str()};
}

// The message of what `body` throws; "" when it does not.
inline std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace ringside::standin
