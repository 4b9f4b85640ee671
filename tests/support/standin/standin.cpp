#include "tests/support/standin/standin.h"

#include <ATen/ATen.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <mutex>
#include <utility>

#include "tests/support/standin/allocators.h"
#include "tests/support/standin/guard.h"
#include "tests/support/standin/hooks.h"
#include "tests/support/standin/machine.h"

namespace ringside::standin {
namespace {

std::atomic<bool> scope_open{false};

}  // namespace

void install() {
  static std::once_flag once;
  std::call_once(once, [] {
    machine();
    c10::register_privateuse1_backend("standin");
    register_guard();
    register_allocators();
    register_hooks();
  });
}

c10::Device device(int index) {
  TORCH_CHECK(index >= 0 && index < kDevices, "no stand-in device ", index, "; there are ",
              kDevices);
  return c10::Device(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(index));
}

Scope::Scope() {
  TORCH_CHECK(!scope_open.exchange(true), "a Scope of the stand-in is open already");
  install();
  handler_ = std::make_unique<FaultHandler>();
  machine().reports.clear();
  reset_counts();
  for (int index = 0; index < kDevices; ++index) {
    reset_peak(index);
  }
}

Scope::~Scope() {
  machine().in_flight.drop_all();
  machine().pinned.release_all();
  scope_open = false;
}

std::vector<Report> Scope::reports() const { return machine().reports.all(); }

std::vector<Report> Scope::finish() {
  for (const std::string& name : machine().in_flight.drop_all()) {
    machine().reports.add(Fault::kUnfinishedCollective,
                          name + " was launched and never completed by all ranks");
  }
  return reports();
}

std::string Scope::text() const {
  std::string text;
  for (const Report& report : reports()) {
    text += std::string(to_string(report.fault)) + ": " + report.text + "\n";
  }
  return text;
}

Counts Scope::counts(int device_index) const { return machine().counters.of(device_index); }

int64_t Scope::current_bytes(int device_index) const {
  return machine().memory.use(device_index).current_bytes;
}

int64_t Scope::peak_bytes(int device_index) const {
  return machine().memory.use(device_index).peak_bytes;
}

void Scope::reset_peak(int device_index) { machine().memory.reset_peak(device_index); }

void Scope::reset_counts() { machine().counters.reset(); }

NoHostWaits::NoHostWaits(int device_index, std::string region) : device_(device_index) {
  machine().counters.enter_region(device_, std::move(region));
}

NoHostWaits::~NoHostWaits() { machine().counters.leave_region(device_); }

}  // namespace ringside::standin
