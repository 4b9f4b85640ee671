#include "tests/support/standin/fabric.h"

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <utility>

namespace ringside::standin {
namespace {

constexpr size_t kNamedInReport = 4;

std::string device_name(int device) { return "standin:" + std::to_string(device); }

std::string describe(const Fabric::Part& part) {
  std::string text = part.call;
  if (part.kind == Fabric::Kind::kSend) {
    text += " to " + device_name(part.devices.front());
  } else if (part.kind == Fabric::Kind::kReceive) {
    text += " from " + device_name(part.devices.front());
  }
  return text + " [" + part.group + "]";
}

}  // namespace

std::shared_ptr<Fabric::Launch> Fabric::launch(int device, std::vector<Part> parts) {
  const std::lock_guard lock(mutex_);
  for (const Part& part : parts) {
    for (const int member : part.devices) {
      queues_[member];  // so that reports name a device that has launched nothing
    }
  }
  auto launch = std::make_shared<Launch>();
  launch->device = device;
  launch->matched.resize(parts.size());
  launch->parts = std::move(parts);
  queues_[device].push_back(launch);
  progress();
  changed_.notify_all();
  return launch;
}

void Fabric::wait(const Launch& launch) {
  std::unique_lock lock(mutex_);
  const bool ended =
      changed_.wait_for(lock, deadline_, [&] { return launch.complete || !failure_.empty(); });
  if (!ended) {
    fail(Fault::kCollectiveDeadline, "no match within " + std::to_string(deadline_.count()) +
                                         " ms, waited for by " + device_name(launch.device));
  }
  if (!launch.complete) {
    throw std::runtime_error(failure_);
  }
}

bool Fabric::complete(const Launch& launch) const {
  const std::lock_guard lock(mutex_);
  return launch.complete;
}

void Fabric::progress() {
  bool moved = failure_.empty();
  while (moved) {
    moved = false;
    for (auto& [device, queue] : queues_) {
      if (queue.empty()) {
        continue;
      }
      const std::shared_ptr<Launch> active = queue.front();
      for (size_t part = 0; part < active->parts.size(); ++part) {
        moved = (!active->matched[part] && progress(*active, part)) || moved;
        if (!failure_.empty()) {
          return;
        }
      }
      if (std::find(active->matched.begin(), active->matched.end(), false) ==
          active->matched.end()) {
        active->complete = true;
        queue.pop_front();
        moved = true;
      }
    }
  }
}

bool Fabric::progress(Launch& launch, size_t part) {
  return launch.parts[part].kind == Kind::kCollective ? match_collective(launch, part)
                                                      : match_transfer(launch, part);
}

bool Fabric::match_collective(Launch& launch, size_t part) {
  const Part& own = launch.parts[part];
  std::vector<Place> places;
  for (const int device : own.devices) {
    const Place place = find_active(device, [&](const Part& other) {
      return other.kind == Kind::kCollective && other.group == own.group;
    });
    if (place.launch == nullptr) {
      return false;
    }
    places.push_back(place);
  }
  for (const Place& place : places) {
    const Part& other = place.launch->parts[place.part];
    if (other.call != own.call) {
      fail(Fault::kCollectiveMismatch, "on [" + own.group + "] " + device_name(launch.device) +
                                           " launched " + own.call + " and " +
                                           device_name(place.launch->device) + " " + other.call);
      return false;
    }
  }
  start(places);
  return true;
}

bool Fabric::match_transfer(Launch& launch, size_t part) {
  const Part& own = launch.parts[part];
  const Kind wanted = own.kind == Kind::kSend ? Kind::kReceive : Kind::kSend;
  const Place peer = find_active(own.devices.front(), [&](const Part& other) {
    return other.kind == wanted && other.group == own.group &&
           other.devices.front() == launch.device;
  });
  if (peer.launch == nullptr) {
    return false;
  }
  const Part& other = peer.launch->parts[peer.part];
  if (other.bytes != own.bytes) {
    fail(Fault::kCollectiveMismatch, device_name(launch.device) + " launched " + describe(own) +
                                         " and " + device_name(peer.launch->device) + " " +
                                         describe(other));
    return false;
  }
  start({{&launch, part}, peer});
  return true;
}

Fabric::Place Fabric::find_active(int device,
                                  const std::function<bool(const Part&)>& wanted) const {
  const auto found = queues_.find(device);
  if (found == queues_.end() || found->second.empty()) {
    return {};
  }
  Launch& active = *found->second.front();
  for (size_t part = 0; part < active.parts.size(); ++part) {
    if (!active.matched[part] && wanted(active.parts[part])) {
      return {&active, part};
    }
  }
  return {};
}

void Fabric::start(const std::vector<Place>& places) {
  for (const Place& place : places) {
    place.launch->matched[place.part] = true;
    const Part& part = place.launch->parts[place.part];
    try {
      part.start();
    } catch (const std::exception& error) {
      fail(Fault::kCollectiveMismatch,
           describe(part) + " on " + device_name(place.launch->device) + ": " + error.what());
      return;
    }
  }
}

void Fabric::fail(Fault fault, const std::string& text) {
  if (failure_.empty()) {
    failure_ = text + "\n" + pending();
    reports_.add(fault, failure_);
  }
  changed_.notify_all();
}

std::string Fabric::pending() const {
  std::string text;
  for (const auto& [device, queue] : queues_) {
    text += "  " + device_name(device) + ": ";
    if (queue.empty()) {
      text += "nothing pending\n";
      continue;
    }
    for (size_t i = 0; i < std::min(queue.size(), kNamedInReport); ++i) {
      const Launch& launch = *queue[i];
      text += i == 0 ? "in " : ", then ";
      for (size_t part = 0; part < launch.parts.size(); ++part) {
        text += (part == 0 ? "" : " + ") + describe(launch.parts[part]);
        text += launch.matched[part] ? " (matched)" : "";
      }
    }
    text += queue.size() > kNamedInReport
                ? ", then " + std::to_string(queue.size() - kNamedInReport) + " more\n"
                : "\n";
  }
  return text;
}

}  // namespace ringside::standin
