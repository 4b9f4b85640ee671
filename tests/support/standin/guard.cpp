#include "tests/support/standin/guard.h"

#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "tests/support/standin/machine.h"
#include "tests/support/standin/streams.h"

namespace ringside::standin {
namespace {

struct RecordedEvent {
  Clock clock;
  int device = 0;
};

int index_of(c10::Device device) { return device.has_index() ? device.index() : current_device(); }

c10::Device device_at(int index) {
  return c10::Device(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(index));
}

StreamKey key_of(const c10::Stream& stream) { return {stream.device_index(), stream.id()}; }

c10::Stream stream_of(StreamKey key) {
  return c10::Stream(c10::Stream::UNSAFE, device_at(key.device), key.id);
}

// A query tells the host what a wait would; it is true where the work is done.
bool query(int device, const Clock& clock) {
  if (!machine().in_flight.all_done_before(clock)) {
    return false;
  }
  machine().host_knows(device, clock);
  return true;
}

class StandinGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::kPrivateUse1; }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  c10::Device getDevice() const override { return device_at(current_device()); }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.is_privateuseone() && device.index() < kDevices, "no stand-in device ",
                device, "; there are ", kDevices);
    uncheckedSetDevice(device);
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) {
      set_current_device(device.index());
    }
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }

  c10::Stream getStream(c10::Device device) const override {
    return stream_of(current_stream(index_of(device)));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream_of({index_of(device), 0});
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return stream_of(new_stream(index_of(device)));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return stream_of(new_stream(index_of(device)));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = getStream(stream.device());
    set_current_stream(key_of(stream));
    return before;
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex,
              c10::EventFlag) const override {
    if (*event == nullptr) {
      *event = new RecordedEvent;
    }
    auto* recorded = static_cast<RecordedEvent*>(*event);
    recorded->clock = machine().accesses.snapshot(key_of(stream));
    recorded->device = stream.device_index();
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) {
      machine().accesses.join(key_of(stream), static_cast<RecordedEvent*>(event)->clock);
    }
  }
  bool queryEvent(void* event) const override {
    const auto* recorded = static_cast<RecordedEvent*>(event);
    return recorded == nullptr || query(recorded->device, recorded->clock);
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) {
      const auto* recorded = static_cast<RecordedEvent*>(event);
      machine().host_waits(recorded->device, recorded->clock, "synchronize event");
    }
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<RecordedEvent*>(event);
  }

  bool queryStream(const c10::Stream& stream) const override {
    return query(stream.device_index(), machine().accesses.snapshot(key_of(stream)));
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    machine().host_waits(stream.device_index(), machine().accesses.snapshot(key_of(stream)),
                         "synchronize stream");
  }
  void synchronizeDevice(c10::DeviceIndex index) const override {
    const int device = index < 0 ? current_device() : index;
    machine().host_waits(device, machine().accesses.device_snapshot(device), "synchronize device");
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    machine().accesses.record_use(reinterpret_cast<uintptr_t>(data.get()), key_of(stream));
  }
};

}  // namespace

void register_guard() {
  static const c10::impl::DeviceGuardImplRegistrar registrar(c10::kPrivateUse1, new StandinGuard);
}

}  // namespace ringside::standin
