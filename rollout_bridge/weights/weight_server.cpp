#include "rollout_bridge/weights/weight_server.h"

#include <algorithm>

#include "rollout_bridge/protocol/messages.h"

namespace ringside::bridge {
namespace {

constexpr std::size_t kHeldVersions = 2;
constexpr std::chrono::milliseconds kPoll{500};

// Adds the whole payloads of body.tensors tensors, one after another; most are far smaller than a
// chunk.
Result<Payload> with_payloads(Payload answer, const ChunkBody& body, const WeightDelta* delta) {
  const std::size_t count = delta && body.base_version >= 0 ? delta->payloads.size() : 0;
  uint64_t total = 0;
  if (body.offset == 0 && body.tensor < count && body.tensors <= count - body.tensor) {
    for (uint64_t i = 0; i < body.tensors; ++i) {
      total += delta->payloads[body.tensor + i].bytes.size();
    }
  }
  if (total != body.bytes) {
    return Error{Reason::kInvalidField,
                 std::to_string(body.bytes) + " bytes at " + std::to_string(body.offset) + " of " +
                     std::to_string(body.tensors) + " payloads from tensor " +
                     std::to_string(body.tensor) + ", which make " + std::to_string(total)};
  }
  std::vector<std::byte> joined;
  joined.reserve(total);
  for (uint64_t i = 0; i < body.tensors; ++i) {
    const auto bytes = delta->payloads[body.tensor + i].bytes;
    joined.insert(joined.end(), bytes.begin(), bytes.end());
  }
  answer.add("data", "U8", {static_cast<int64_t>(total)}, Buffer::own(std::move(joined)));
  return answer;
}

}  // namespace

WeightServer::WeightServer(zmq::context_t& context, const std::string& address, std::string run_id,
                           int64_t trainer_term, const Limits& limits, ZapAuthenticator* gate)
    : run_id_(std::move(run_id)),
      trainer_term_(trainer_term),
      limits_(limits),
      // Requests are headers only.
      socket_(bind_router(context, address, {.max_frame_bytes = limits.max_header_bytes}, gate)),
      address_(bound_address(socket_)),
      thread_([this](const std::stop_token& stop) { loop(stop); }) {}

WeightServer::~WeightServer() {
  thread_.request_stop();
  waker_.wake();
  thread_.join();
}

std::shared_ptr<const WeightSnapshot> WeightServer::serve(
    std::shared_ptr<const WeightSnapshot> snapshot) {
  const std::lock_guard lock(mutex_);
  held_.push_back(std::move(snapshot));
  if (held_.size() <= kHeldVersions) {
    return nullptr;
  }
  auto oldest = std::move(held_.front());
  held_.pop_front();
  return oldest;
}

std::array<uint64_t, kReasonCount> WeightServer::rejected() const {
  std::array<uint64_t, kReasonCount> out{};
  for (std::size_t i = 0; i < kReasonCount; ++i) {
    out[i] = rejected_[i].load(std::memory_order_relaxed);
  }
  return out;
}

void WeightServer::check() {
  const std::lock_guard lock(mutex_);
  if (failure_) {
    std::rethrow_exception(failure_);
  }
}

void WeightServer::loop(const std::stop_token& stop) {
  try {
    Incoming incoming;
    while (!stop.stop_requested()) {
      zmq::pollitem_t items[] = {{socket_.handle(), 0, ZMQ_POLLIN, 0},
                                 {nullptr, waker_.fd(), ZMQ_POLLIN, 0}};
      zmq::poll(items, 2, kPoll);
      while (!stop.stop_requested() && receive(socket_, true, limits_, incoming)) {
        answer(incoming);
      }
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
  }
}

void WeightServer::answer(const Incoming& incoming) {
  const auto request = incoming.parse(limits_);
  const auto reply = request ? chunk(request.value()) : Result<Payload>(request.error());
  requests_.fetch_add(1, std::memory_order_relaxed);
  Payload payload;
  if (reply) {
    payload = reply.value();
  } else {
    rejected_[static_cast<std::size_t>(reply.error().reason)].fetch_add(1,
                                                                        std::memory_order_relaxed);
    const auto asked = request ? request.value().body<ChunkBody>() : Result<ChunkBody>(ChunkBody{});
    payload = make_payload(MessageType::kError, ErrorBody{reason_name(reply.error().reason),
                                                          clip_text(reply.error().detail), false,
                                                          asked ? asked.value().version : -1});
  }
  Header header{payload.type, run_id_, trainer_term_, "", 0, 0};
  if (request) {
    header.worker_id = request.value().header().worker_id;
    header.incarnation = request.value().header().incarnation;
  }
  // Counted before sending, because a worker may commit the version before this thread runs again.
  const uint64_t bytes = payload.buffer_bytes();
  bytes_served_.fetch_add(bytes, std::memory_order_relaxed);
  // If the peer's queue is full or the peer is gone, the worker's request times out and is
  // repeated.
  if (send(socket_, &incoming.identity, pack_header(header, payload), payload) !=
      SendResult::kSent) {
    bytes_served_.fetch_sub(bytes, std::memory_order_relaxed);
  }
}

Result<Payload> WeightServer::chunk(const Message& request) {
  const auto parsed = request.body<ChunkBody>();
  if (!parsed) {
    return parsed.error();
  }
  const ChunkBody& body = parsed.value();
  if (request.header().type != MessageType::kChunkRequest) {
    return Error{Reason::kUnsupported, "the weights endpoint answers CHUNK_REQUEST only"};
  }
  if (request.header().run_id != run_id_ || request.header().trainer_term != trainer_term_) {
    return Error{Reason::kWrongRun,
                 "request for run '" + request.header().run_id + "' trainer_term " +
                     std::to_string(request.header().trainer_term) + ", this is '" + run_id_ +
                     "' trainer_term " + std::to_string(trainer_term_)};
  }
  std::shared_ptr<const WeightSnapshot> snapshot;
  {
    const std::lock_guard lock(mutex_);
    const auto it = std::find_if(held_.rbegin(), held_.rend(), [&](const auto& held) {
      return held->manifest.version == body.version;
    });
    if (it != held_.rend()) {
      snapshot = *it;
    }
  }
  if (!snapshot) {
    return Error{Reason::kGone, "version " + std::to_string(body.version) + " is not held"};
  }
  if (body.tensor >= snapshot->tensors.size()) {
    return Error{Reason::kInvalidField, "tensor " + std::to_string(body.tensor) + " of " +
                                            std::to_string(snapshot->tensors.size())};
  }
  const WeightDelta* delta = snapshot->delta.get();
  if (body.base_version >= 0 && (!delta || delta->manifest.base_version != body.base_version)) {
    return Error{Reason::kGone, "version " + std::to_string(body.version) +
                                    " is not held as a delta to version " +
                                    std::to_string(body.base_version)};
  }
  if (body.bytes == 0 || body.bytes > limits_.max_chunk_bytes) {
    return Error{Reason::kInvalidField, std::to_string(body.bytes) + " bytes, chunk limit " +
                                            std::to_string(limits_.max_chunk_bytes)};
  }
  Payload payload = make_payload(MessageType::kChunk, body);
  if (body.tensors != 1) {
    return with_payloads(std::move(payload), body, delta);
  }
  const Buffer& tensor =
      body.base_version >= 0 ? delta->payloads[body.tensor] : snapshot->tensors[body.tensor];
  if (body.offset > tensor.bytes.size() || body.bytes > tensor.bytes.size() - body.offset) {
    return Error{Reason::kInvalidField, "bytes [" + std::to_string(body.offset) + ", +" +
                                            std::to_string(body.bytes) + ") of a tensor of " +
                                            std::to_string(tensor.bytes.size()) + " bytes"};
  }
  Buffer data{tensor.owner, tensor.bytes.subspan(body.offset, body.bytes)};
  const std::vector<int64_t> shape = {static_cast<int64_t>(body.bytes)};
  // A tensor's hash is in the manifest, a payload's is not.
  if (body.base_version >= 0) {
    payload.add("data", "U8", shape, std::move(data));
  } else {
    payload.add_unhashed("data", "U8", shape, std::move(data));
  }
  return payload;
}

}  // namespace ringside::bridge
