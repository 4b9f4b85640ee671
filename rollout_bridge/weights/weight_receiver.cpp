#include "rollout_bridge/weights/weight_receiver.h"

#include <algorithm>
#include <stdexcept>

#include "rollout_bridge/weights/delta_codec.h"
#include "rollout_bridge/weights/nontemporal_copy.h"
#include "rollout_bridge/weights/snapshot.h"

namespace ringside::bridge {
namespace {

bool is_base_of(const Manifest& m, const WeightSnapshot& base) {
  const Manifest& b = base.manifest;
  if (m.base_version != b.version || m.run_id != b.run_id || m.trainer_term != b.trainer_term) {
    return false;
  }
  return std::equal(m.tensors.begin(), m.tensors.end(), b.tensors.begin(), b.tensors.end(),
                    [](const TensorEntry& x, const TensorEntry& y) {
                      return x.name == y.name && x.dtype == y.dtype && x.bytes == y.bytes;
                    });
}

}  // namespace

WeightReceiver::WeightReceiver(Manifest manifest, Options options,
                               std::shared_ptr<const WeightSnapshot> base, WeightMemory memory)
    : manifest_(std::move(manifest)),
      options_(options),
      memory_(std::move(memory)),
      tensors_(manifest_.tensors.size()) {
  uint64_t whole = 0;
  for (const TensorEntry& t : manifest_.tensors) {
    whole += WeightMemory::capacity(t.bytes);
  }
  memory_.keep(whole);
  if (base && is_base_of(manifest_, *base)) {
    base_ = std::move(base);
  }
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const TensorEntry& entry = manifest_.tensors[i];
    if (entry.bytes == 0) {  // nothing to request
      verify(tensors_[i], Buffer{});
    } else if (base_ && entry.encoding == "same" && base_->manifest.tensors[i].xxh3 == entry.xxh3) {
      verify(tensors_[i], base_->tensors[i]);  // the base is immutable since its hash was checked
    } else {
      tensors_[i].overwrite = base_ && options_.changes && entry.encoding == "overwrite";
    }
  }
}

void WeightReceiver::verify(Tensor& tensor, Buffer bytes) {
  tensor.verified = std::move(bytes);
  tensor.bytes.reset();
  tensor.hash.reset();
  tensor.overwrite = false;
  ++verified_;
}

void WeightReceiver::enqueue(uint64_t index) {
  Tensor& tensor = tensors_[index];
  const TensorEntry& entry = manifest_.tensors[index];
  if (entry.bytes == 0 || tensor.verified.owner) {
    return;
  }
  const uint64_t bytes = tensor.overwrite ? entry.payload_bytes : entry.bytes;
  if (!tensor.bytes) {
    tensor.bytes =
        tensor.overwrite ? std::make_shared_for_overwrite<std::byte[]>(bytes) : memory_.take(bytes);
  }
  tensor.missing = bytes;
  if (!tensor.overwrite) {
    ++tensor.tries;
    tensor.hash.emplace();
    tensor.hashed = 0;
  }
  const int64_t base_version = tensor.overwrite ? *manifest_.base_version : -1;
  for (uint64_t offset = 0; offset < bytes; offset += options_.chunk_bytes) {
    waiting_.push_back({manifest_.version, index, offset,
                        std::min(options_.chunk_bytes, bytes - offset), base_version, 1});
  }
}

// Requests the payloads of next_tensor_ and the following tensors, as many as fit into one chunk.
// Tensors without a payload add nothing to the chunk and are requested by themselves.
void WeightReceiver::enqueue_payloads() {
  const std::size_t first = next_tensor_;
  ChunkBody request{manifest_.version, first, 0, 0, *manifest_.base_version, 0};
  for (; next_tensor_ < tensors_.size(); ++next_tensor_) {
    if (tensors_[next_tensor_].overwrite) {
      const uint64_t payload = manifest_.tensors[next_tensor_].payload_bytes;
      if (request.bytes + payload > options_.chunk_bytes) {
        break;
      }
      request.bytes += payload;
      request.tensors = next_tensor_ + 1 - first;
    } else {
      enqueue(next_tensor_);
    }
  }
  waiting_.push_back(request);
}

std::vector<ChunkBody> WeightReceiver::requests(Clock::time_point now) {
  for (auto it = under_way_.begin(); it != under_way_.end();) {
    if (now - it->second.second < options_.chunk_timeout) {
      ++it;
      continue;
    }
    waiting_.push_front(it->second.first);
    it = under_way_.erase(it);
  }
  std::vector<ChunkBody> out;
  while (under_way_.size() < options_.window) {
    if (waiting_.empty()) {
      if (next_tensor_ == tensors_.size()) {
        break;
      }
      if (tensors_[next_tensor_].overwrite &&
          manifest_.tensors[next_tensor_].payload_bytes <= options_.chunk_bytes) {
        enqueue_payloads();
      } else {
        enqueue(next_tensor_++);
      }
      continue;
    }
    const ChunkBody request = waiting_.front();
    waiting_.pop_front();
    under_way_[{request.tensor, request.offset}] = {request, now};
    out.push_back(request);
  }
  return out;
}

void WeightReceiver::unsent(const ChunkBody& request) {
  if (under_way_.erase({request.tensor, request.offset}) > 0) {
    waiting_.push_front(request);
  }
}

void WeightReceiver::unsend_all() {
  for (const auto& [key, request] : under_way_) {
    waiting_.push_back(request.first);
  }
  under_way_.clear();
}

Status WeightReceiver::accept(const ChunkBody& chunk, Frame data) {
  const auto it = under_way_.find({chunk.tensor, chunk.offset});
  if (chunk.version != manifest_.version || it == under_way_.end()) {
    return Success{};
  }
  const ChunkBody asked = it->second.first;
  if (asked.bytes != data.size() || asked.base_version != chunk.base_version ||
      asked.tensors != chunk.tensors) {
    return Success{};  // late or not requested
  }
  under_way_.erase(it);
  const bool whole_payloads = asked.base_version >= 0 && asked.offset == 0 &&
                              asked.bytes >= manifest_.tensors[asked.tensor].payload_bytes;
  if (!whole_payloads) {
    return place(asked, data);
  }
  finish_overwrites(asked.tensor, asked.tensor + asked.tensors, data);
  return Success{};
}

void WeightReceiver::apply_offered(Frame payloads) {
  uint64_t expected = 0;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (tensors_[i].overwrite) {
      expected += manifest_.tensors[i].payload_bytes;
    }
  }
  if (expected > 0 && expected == payloads.size()) {
    finish_overwrites(0, tensors_.size(), payloads);
  }
}

// Applies the concatenated payloads of tensors [first, end). Tensors without a payload are skipped.
void WeightReceiver::finish_overwrites(uint64_t first, uint64_t end, Frame payloads) {
  for (uint64_t i = first; i < end; ++i) {
    if (!tensors_[i].overwrite) {
      continue;
    }
    const uint64_t bytes = manifest_.tensors[i].payload_bytes;
    finish_overwrite(i, payloads.first(bytes));
    payloads = payloads.subspan(bytes);
  }
}

// Copies a chunk of a tensor, or of a payload of several chunks, to its place.
Status WeightReceiver::place(const ChunkBody& chunk, Frame data) {
  Tensor& tensor = tensors_[chunk.tensor];
  const bool in_order = !tensor.overwrite && chunk.offset == tensor.hashed;
  const std::span<std::byte> to(tensor.bytes.get() + chunk.offset, data.size());
  for (std::size_t at = 0; at < data.size(); at += kStreamBytes) {
    const Frame block = data.subspan(at, std::min(kStreamBytes, data.size() - at));
    if (in_order) {
      tensor.hash->update(block);  // also brings the bytes into the cache for the copy
    }
    if (block.size() == kStreamBytes) {
      stream_copy(to.subspan(at, block.size()), block);
    } else {
      std::copy(block.begin(), block.end(), to.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
  if (in_order) {
    tensor.hashed += data.size();
  }
  tensor.missing -= data.size();
  if (tensor.missing > 0) {
    return Success{};
  }
  if (!tensor.overwrite) {
    return finish(chunk.tensor);
  }
  const auto payload = std::move(tensor.bytes);
  finish_overwrite(chunk.tensor, {payload.get(), manifest_.tensors[chunk.tensor].payload_bytes});
  return Success{};
}

// Applies a complete payload to a copy of the base, or switches the tensor to a dense fetch. The
// payload is not fetched again: its chunks were hashed, so the trainer would send the same bytes.
void WeightReceiver::finish_overwrite(uint64_t index, std::span<const std::byte> payload) {
  Tensor& tensor = tensors_[index];
  const TensorEntry& entry = manifest_.tensors[index];
  const auto old = base_->tensors[index].bytes;
  auto made = memory_.take(old.size());
  const std::span<std::byte> bytes(made.get(), old.size());
  Hash128 hash;
  const Status applied = copy_overwritten(payload, entry.changed, dtype_size(entry.dtype), old,
                                          bytes, hash, &scratch_);
  if (applied && hash.hex() == entry.xxh3) {
    return verify(tensor, Buffer{std::move(made), bytes});
  }
  ++refetched_;
  tensor.overwrite = false;
  if (index < next_tensor_) {
    enqueue(index);  // otherwise it is enqueued later
  }
}

Status WeightReceiver::finish(uint64_t index) {
  Tensor& tensor = tensors_[index];
  const TensorEntry& entry = manifest_.tensors[index];
  const std::span<const std::byte> bytes(tensor.bytes.get(), entry.bytes);
  tensor.hash->update(bytes.subspan(tensor.hashed));  // bytes that arrived out of order
  if (tensor.hash->hex() == entry.xxh3) {
    verify(tensor, Buffer{tensor.bytes, bytes});
    return Success{};
  }
  ++mismatches_;
  if (tensor.tries >= options_.max_tries) {
    return Error{Reason::kChecksum, "tensor '" + entry.name + "' does not match its hash after " +
                                        std::to_string(tensor.tries) + " fetches"};
  }
  enqueue(index);
  return Success{};
}

std::shared_ptr<const WeightSnapshot> WeightReceiver::take() {
  if (!complete()) {
    throw std::logic_error("WeightReceiver::take before every tensor was verified");
  }
  auto snapshot = std::make_shared<WeightSnapshot>();
  snapshot->manifest = dense_manifest(std::move(manifest_));
  for (Tensor& tensor : tensors_) {
    snapshot->tensors.push_back(std::move(tensor.verified));
  }
  tensors_.clear();
  base_.reset();
  return snapshot;
}

}  // namespace ringside::bridge
