#include "tests/support/cuda_host/machine.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "tests/support/cuda_host/machine_state.h"

namespace ringside::cuda_host {
namespace {

constexpr uint64_t kMaxThreads = 1024;
constexpr std::size_t kSharedLimit = 48 << 10;  // of static and dynamic together, without asking

uint64_t volume(const dim3& size) { return static_cast<uint64_t>(size.x) * size.y * size.z; }

uint3 index_in(const dim3& size, uint32_t number) {
  return {number % size.x, number / size.x % size.y, number / size.x / size.y};
}

void start_thread(void* of) {
  auto* thread = static_cast<Thread*>(of);
  const Body& body = Machine::instance().body();
  body.call(body.arguments);
  thread->state = State::kDone;
}

std::string lanes_text(unsigned lanes) {
  std::string text;
  for (int lane = 0; lane < kLanes; ++lane) {
    if ((lanes >> lane & 1) != 0) {
      text += (text.empty() ? "" : ", ") + std::to_string(lane);
    }
  }
  return text;
}

const char* name_of(Exchange exchange) {
  switch (exchange) {
    case Exchange::kBarrier:
      return "__syncwarp";
    case Exchange::kBallot:
      return "a vote";
    default:
      return "a shuffle";
  }
}

// The lane that a shuffle reads; the lane itself where its group of `width` lanes has no such one.
int source_of(const LaneCall& call, int lane) {
  const int begin = lane / call.width * call.width, end = begin + call.width;
  switch (call.exchange) {
    case Exchange::kShuffle:
      return begin + (call.argument & (call.width - 1));
    case Exchange::kShuffleUp:
      return lane - call.argument >= begin ? lane - call.argument : lane;
    case Exchange::kShuffleDown:
      return lane + call.argument < end ? lane + call.argument : lane;
    case Exchange::kShuffleXor:
      return (lane ^ call.argument) < end ? lane ^ call.argument : lane;
    default:
      return lane;
  }
}

}  // namespace

Place place;

Thread::Thread(uint32_t number) : number(number), fiber(start_thread, this) {}

Machine& Machine::instance() {
  static Machine machine;
  return machine;
}

cudaError_t Machine::take_error() { return std::exchange(error_, cudaSuccess); }

bool Machine::accepted(const LaunchShape& shape) {
  const uint64_t threads = volume(shape.block);
  if (threads == 0 || threads > kMaxThreads || volume(shape.grid) == 0 || shape.grid.y > 65535 ||
      shape.grid.z > 65535 || shape.grid.x > 0x7fffffff) {
    add_report({Fault::kLaunch,
                shape.kernel,
                "a grid of " + std::to_string(volume(shape.grid)) + " blocks of " +
                    std::to_string(threads) + " threads",
                {},
                {}});
    error_ = cudaErrorInvalidConfiguration;
    return false;
  }
  return true;
}

void Machine::run(const LaunchShape& shape, const Body& body) {
  if (!accepted(shape)) {
    return;
  }
  shape_ = shape;
  body_ = body;
  ++launch_;
  stopped_ = false;
  const auto count = static_cast<uint32_t>(volume(shape.block));
  while (all_.size() < count) {
    all_.push_back(std::make_unique<Thread>(static_cast<uint32_t>(all_.size())));
  }
  threads_.clear();
  for (uint32_t i = 0; i < count; ++i) {
    threads_.push_back(all_[i].get());
    threads_[i]->index = index_in(shape.block, i);
  }
  Region& arguments = memory().add({.name = "the arguments",
                                    .begin = reinterpret_cast<uintptr_t>(body.arguments),
                                    .bytes = body.bytes,
                                    .kind = Kind::kArguments,
                                    .initialised = true});
  place.block_size = shape.block;
  place.grid_size = shape.grid;
  const auto blocks = static_cast<uint32_t>(volume(shape.grid));
  for (uint32_t i = 0; i < blocks && !stopped_; ++i) {
    run_block(order_ == Order::kForward ? i : blocks - 1 - i);
  }
  memory().remove(arguments);
}

void Machine::run_block(uint32_t block) {
  block_ = block;
  barrier_ = 0;
  shared_bytes_ = 0;
  place.block = index_in(shape_.grid, block);
  for (Thread* thread : threads_) {
    thread->state = State::kReady;
    thread->call = 0;
    thread->followed = {};
  }
  for (;;) {
    if (!run_threads()) {
      break;  // stopped
    }
    bool released = false;
    for (std::size_t warp = 0; warp * kLanes < threads_.size(); ++warp) {
      released = release_lanes(warp) || released;
    }
    if (stopped_) {
      break;
    }
    if (!released && !release_block()) {
      const bool ended = std::all_of(threads_.begin(), threads_.end(),
                                     [](Thread* t) { return t->state == State::kDone; });
      if (!ended) {
        report_stuck();
        stopped_ = true;
      }
      break;
    }
  }
  if (stopped_) {
    error_ = error_ == cudaSuccess ? cudaErrorLaunchFailure : error_;
    for (Thread* thread : threads_) {
      thread->fiber.restart();
    }
  }
}

// Runs each thread that is ready until it waits or ends. False when the launch is stopped.
bool Machine::run_threads() {
  const auto count = threads_.size();
  for (std::size_t i = 0; i < count; ++i) {
    Thread* thread = threads_[order_ == Order::kForward ? i : count - 1 - i];
    if (thread->state != State::kReady) {
      continue;
    }
    running_ = thread;
    place.thread = thread->index;
    thread->fiber.resume();
    running_ = nullptr;
    if (stopped_) {
      return false;
    }
  }
  return true;
}

// Resumes the lanes of a warp whose partners have all come. False when there are none.
bool Machine::release_lanes(std::size_t warp) {
  bool released = false;
  const std::size_t end = std::min((warp + 1) * kLanes, threads_.size());
  for (std::size_t i = warp * kLanes; i < end && !stopped_; ++i) {
    if (threads_[i]->state == State::kAtLanes) {
      released = release_group(warp, *threads_[i]) || released;
    }
  }
  return released;
}

// The same for the lanes that `first` waits for.
bool Machine::release_group(std::size_t warp, const Thread& first) {
  const LaneCall call = first.brought;
  const std::size_t begin = warp * kLanes;
  std::vector<Thread*> group;
  unsigned ended = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    if ((call.mask >> lane & 1) == 0) {
      continue;
    }
    Thread* thread = begin + lane < threads_.size() ? threads_[begin + lane] : nullptr;
    if (thread == nullptr || thread->state == State::kDone) {
      ended |= 1u << lane;
      continue;
    }
    // Barriers of a warp may meet from different places of the code, exchanges may not.
    if (thread->state != State::kAtLanes || thread->brought.exchange != call.exchange ||
        thread->brought.mask != call.mask ||
        (call.exchange != Exchange::kBarrier && thread->call != first.call)) {
      return false;
    }
    group.push_back(thread);
  }
  if (ended != 0) {
    report_of(first, Fault::kLanes,
              std::string(name_of(call.exchange)) + " of lane " + std::to_string(first.lane()) +
                  " names lanes that have ended or do not exist: " + lanes_text(ended));
    stopped_ = true;
    return false;
  }
  uint64_t ballot = 0;
  std::array<uint32_t, kLanes> joined{};
  for (Thread* thread : group) {
    ballot |= static_cast<uint64_t>(thread->brought.bits & 1) << thread->lane();
    ++thread->followed[thread->lane()];
    for (int lane = 0; lane < kLanes; ++lane) {
      joined[lane] = std::max(joined[lane], thread->followed[lane]);
    }
  }
  for (Thread* thread : group) {
    const int source = source_of(thread->brought, static_cast<int>(thread->lane()));
    if ((call.mask >> source & 1) == 0) {
      report_of(*thread, Fault::kLanes,
                "lane " + std::to_string(thread->lane()) + " reads a shuffle of lane " +
                    std::to_string(source) + ", which its mask does not name");
    }
    thread->received = call.exchange == Exchange::kBallot
                           ? ballot
                           : threads_[std::min(begin + source, threads_.size() - 1)]->brought.bits;
  }
  for (Thread* thread : group) {
    if (call.exchange == Exchange::kBarrier) {
      thread->followed = joined;
    }
    thread->state = State::kReady;
  }
  return true;
}

// Resumes all threads that wait for the block. False when some do not wait for it.
bool Machine::release_block() {
  const Thread* first = nullptr;
  const Thread* ended = nullptr;
  int count = 0, waiting = 0;
  for (const Thread* thread : threads_) {
    if (thread->state == State::kDone) {
      ended = thread;
      continue;
    }
    if (thread->state != State::kAtBlockBarrier) {
      return false;
    }
    ++waiting;
    count += thread->predicate != 0;
    if (first == nullptr) {
      first = thread;
    } else if (thread->call != first->call) {
      report_of(*first, Fault::kDivergentBarrier,
                "thread " + std::to_string(first->number) + " waits at one barrier, thread " +
                    std::to_string(thread->number) + " at another",
                thread->call);
    }
  }
  if (first == nullptr) {
    return false;
  }
  if (ended != nullptr) {
    report_of(*first, Fault::kDivergentBarrier,
              "thread " + std::to_string(first->number) + " waits at a barrier, thread " +
                  std::to_string(ended->number) + " has ended");
  }
  ++barrier_;
  for (Thread* thread : threads_) {
    if (thread->state == State::kAtBlockBarrier) {
      const int all = count == waiting, any = count != 0;
      thread->received = thread->count == Count::kCount ? count
                         : thread->count == Count::kAll ? all
                                                        : any;
      thread->state = State::kReady;
    }
  }
  return true;
}

// Some threads wait for what will not happen.
void Machine::report_stuck() {
  for (const Thread* thread : threads_) {
    if (thread->state != State::kAtLanes) {
      continue;
    }
    unsigned elsewhere = 0;
    const std::size_t begin = thread->number / kLanes * kLanes;
    for (std::size_t i = begin; i < std::min(begin + kLanes, threads_.size()); ++i) {
      const Thread& other = *threads_[i];
      const bool named = (thread->brought.mask >> other.lane() & 1) != 0;
      if (named && (other.state != State::kAtLanes || other.call != thread->call ||
                    other.brought.mask != thread->brought.mask)) {
        elsewhere |= 1u << other.lane();
      }
    }
    report_of(*thread, Fault::kLanes,
              std::string(name_of(thread->brought.exchange)) + " of lane " +
                  std::to_string(thread->lane()) +
                  " names lanes that wait elsewhere: " + lanes_text(elsewhere));
    return;
  }
}

void Machine::access(const Access& access) {
  Thread& thread = *running_;
  const Moment now{launch_, block_, thread.number, barrier_, &thread.followed};
  const auto trouble = memory().touch(access, now);
  if (!trouble) {
    return;
  }
  const uint32_t outer = std::exchange(thread.call, access.call);
  switch (trouble->kind) {
    case Memory::Trouble::Kind::kRace:
      report(Fault::kRace, trouble->what, trouble->other);
      break;
    case Memory::Trouble::Kind::kUnwritten:
      report(Fault::kUnwritten, trouble->what);
      break;
    case Memory::Trouble::Kind::kOutOfBounds:
      stop(Fault::kOutOfBounds, trouble->what);
  }
  thread.call = outer;
}

uint64_t Machine::wait(State state) {
  Thread* thread = running_;
  thread->state = state;
  thread->fiber.pause();
  return thread->received;
}

void Machine::report_of(const Thread& thread, Fault fault, const std::string& what,
                        uint32_t other_call) {
  add_report({fault, shape_.kernel,
              what + " (block " + std::to_string(block_) + ", thread " +
                  std::to_string(thread.number) + ")",
              calls_.addresses(thread.call), calls_.addresses(other_call)});
}

void Machine::report(Fault fault, const std::string& what, uint32_t other_call) {
  report_of(*running_, fault, what, other_call);
}

void Machine::stop(Fault fault, const std::string& what) {
  report(fault, what);
  stopped_ = true;
  running_->fiber.pause();
  std::abort();  // a stopped thread is not resumed
}

void* Machine::shared_array(SharedArray& array, std::size_t bytes, const std::string& name) {
  if (array.region == nullptr) {
    // Two doubles more: to an address that 16 divides.
    array.bytes = std::make_unique<double[]>(bytes / sizeof(double) + 4);
    array.size = bytes;
    auto begin = reinterpret_cast<uintptr_t>(array.bytes.get());
    begin += 15;
    begin -= begin % 16;
    array.region = &memory().add(
        {.name = "shared " + name, .begin = begin, .bytes = bytes, .kind = Kind::kShared});
  }
  void* data = reinterpret_cast<void*>(array.region->begin);
  if (array.block != block_ || array.launch != launch_) {
    array.block = block_;
    array.launch = launch_;
    shared_bytes_ += bytes;
    if (shared_bytes_ > kSharedLimit) {
      error_ = cudaErrorInvalidValue;
      stop(Fault::kLaunch, "static and dynamic shared memory take " +
                               std::to_string(shared_bytes_) + " bytes of a block, more than " +
                               std::to_string(kSharedLimit));
    }
    std::memset(data, 0xff, bytes);  // NaN: what a thread reads without a write shows
  }
  return data;
}

void* Machine::shared(const void* key, std::size_t bytes, const std::string& name) {
  return shared_array(shared_[{key, bytes}], bytes, name);
}

void* Machine::dynamic_shared() {
  return shared(nullptr, shape_.shared_bytes, "memory of the launch");
}

// What kernels call. ----------------------------------------------------------

void set_order(Order order) { Machine::instance().set_order(order); }

void run(const LaunchShape& shape, const Body& body) { Machine::instance().run(shape, body); }

int wait_for_block(Count count, int predicate) {
  Machine& machine = Machine::instance();
  machine.running()->count = count;
  machine.running()->predicate = predicate;
  return static_cast<int>(machine.wait(State::kAtBlockBarrier));
}

uint64_t wait_for_lanes(const LaneCall& call) {
  Machine& machine = Machine::instance();
  Thread& thread = *machine.running();
  if ((call.mask >> thread.lane() & 1) == 0) {
    machine.stop(Fault::kLanes, "lane " + std::to_string(thread.lane()) + " calls " +
                                    name_of(call.exchange) + " whose mask does not name it");
  }
  thread.brought = call;
  return machine.wait(State::kAtLanes);
}

void* shared_memory(const void* key, std::size_t bytes, const char* name) {
  return Machine::instance().shared(key, bytes, name);
}

void* dynamic_shared_memory() { return Machine::instance().dynamic_shared(); }

uint64_t atomic_read(const void* from, std::size_t bytes) {
  Machine& machine = Machine::instance();
  const auto address = reinterpret_cast<uintptr_t>(from);
  if (address % bytes != 0) {
    machine.stop(Fault::kMisaligned, "an atomic of " + std::to_string(bytes) + " bytes");
  }
  machine.access({address, bytes, true, true, machine.running()->call});
  uint64_t bits = 0;
  std::memcpy(&bits, from, bytes);
  return bits;
}

void atomic_write(void* to, std::size_t bytes, uint64_t bits) { std::memcpy(to, &bits, bytes); }

void failed_assertion(const char* condition) {
  Machine::instance().stop(Fault::kAssertion, std::string("not so: ") + condition);
}

}  // namespace ringside::cuda_host

cudaError_t cudaGetLastError() { return ringside::cuda_host::Machine::instance().take_error(); }
