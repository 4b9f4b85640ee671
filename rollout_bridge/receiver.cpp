#include "rollout_bridge/receiver.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>

#include "rollout_bridge/delta_codec.h"
#include "rollout_bridge/weights.h"

namespace ringside::bridge {
namespace {

// Memory for a tensor, not zeroed. In huge pages where the kernel has them to give: in small ones
// the first touch costs more than the transfer.
std::shared_ptr<std::byte[]> tensor_memory(std::size_t bytes) {
  constexpr std::size_t kHugePage = 2 << 20;
  if (bytes < kHugePage) return std::make_shared_for_overwrite<std::byte[]>(bytes);
  const std::size_t rounded = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  void* memory = std::aligned_alloc(kHugePage, rounded);
  if (memory == nullptr) throw std::bad_alloc();
  (void)::madvise(memory, rounded, MADV_HUGEPAGE);  // advice: without it the memory is as good
  return {static_cast<std::byte*>(memory), [](std::byte* p) { std::free(p); }};
}

bool is_base_of(const Manifest& m, const WeightSnapshot& base) {
  const Manifest& b = base.manifest;
  if (m.base_version != b.version || m.run_id != b.run_id || m.run_epoch != b.run_epoch) {
    return false;
  }
  return std::equal(m.tensors.begin(), m.tensors.end(), b.tensors.begin(), b.tensors.end(),
                    [](const TensorEntry& x, const TensorEntry& y) {
                      return x.name == y.name && x.dtype == y.dtype && x.bytes == y.bytes;
                    });
}

}  // namespace

WeightReceiver::WeightReceiver(Manifest manifest, Options options,
                               std::shared_ptr<const WeightSnapshot> base)
    : manifest_(std::move(manifest)), options_(options), tensors_(manifest_.tensors.size()) {
  if (base && is_base_of(manifest_, *base)) base_ = std::move(base);
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const TensorEntry& entry = manifest_.tensors[i];
    if (entry.bytes == 0) {  // nothing to ask for
      verify(tensors_[i], Buffer{});
    } else if (base_ && entry.encoding == "same" && base_->manifest.tensors[i].xxh3 == entry.xxh3) {
      verify(tensors_[i], base_->tensors[i]);  // immutable since its hash was checked
    } else {
      tensors_[i].overwrite = base_ && entry.encoding == "overwrite";
    }
  }
}

void WeightReceiver::verify(Tensor& tensor, Buffer bytes) {
  tensor.verified = std::move(bytes);
  tensor.bytes.reset();
  ++verified_;
}

void WeightReceiver::enqueue(uint64_t index) {
  Tensor& tensor = tensors_[index];
  const TensorEntry& entry = manifest_.tensors[index];
  if (entry.bytes == 0 || tensor.verified.owner) return;
  const uint64_t bytes = tensor.overwrite ? entry.payload_bytes : entry.bytes;
  // Not zeroed: that would touch every page in one go while no chunk is taken off the socket.
  if (!tensor.bytes) tensor.bytes = tensor_memory(bytes);
  tensor.missing = bytes;
  if (!tensor.overwrite) ++tensor.tries;
  const int64_t base_version = tensor.overwrite ? *manifest_.base_version : -1;
  for (uint64_t offset = 0; offset < bytes; offset += options_.chunk_bytes) {
    waiting_.push_back({manifest_.version, index, offset,
                        std::min(options_.chunk_bytes, bytes - offset), base_version});
  }
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
      if (next_tensor_ == tensors_.size()) break;
      enqueue(next_tensor_++);
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
  if (under_way_.erase({request.tensor, request.offset}) > 0) waiting_.push_front(request);
}

Status WeightReceiver::accept(const ChunkBody& chunk, Frame data) {
  const auto it = under_way_.find({chunk.tensor, chunk.offset});
  if (chunk.version != manifest_.version || it == under_way_.end() ||
      it->second.first.bytes != data.size() ||
      it->second.first.base_version != chunk.base_version) {
    return Success{};  // late, or not what was asked for
  }
  under_way_.erase(it);
  Tensor& tensor = tensors_[chunk.tensor];
  std::memcpy(tensor.bytes.get() + chunk.offset, data.data(), data.size());
  tensor.missing -= data.size();
  if (tensor.missing > 0) return Success{};
  if (!tensor.overwrite) return finish(chunk.tensor);
  finish_overwrite(chunk.tensor);
  return Success{};
}

// A payload is complete: makes the tensor beside the base, or turns to fetching it dense. The
// payload is not fetched again: its chunks carried hashes, so it is what the trainer serves.
void WeightReceiver::finish_overwrite(uint64_t index) {
  Tensor& tensor = tensors_[index];
  const TensorEntry& entry = manifest_.tensors[index];
  const auto old = base_->tensors[index].bytes;
  auto made = tensor_memory(old.size());
  std::memcpy(made.get(), old.data(), old.size());
  const std::span<std::byte> bytes(made.get(), old.size());
  const Status applied = apply_overwrite({tensor.bytes.get(), entry.payload_bytes}, entry.changed,
                                         dtype_size(entry.dtype), bytes);
  if (applied && tensor_hash(bytes) == entry.xxh3) {
    return verify(tensor, Buffer{std::move(made), bytes});
  }
  ++refetched_;
  tensor.overwrite = false;
  tensor.bytes.reset();
  enqueue(index);
}

Status WeightReceiver::finish(uint64_t index) {
  Tensor& tensor = tensors_[index];
  const TensorEntry& entry = manifest_.tensors[index];
  const std::span<const std::byte> bytes(tensor.bytes.get(), entry.bytes);
  if (tensor_hash(bytes) == entry.xxh3) {
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
  if (!complete()) throw std::logic_error("WeightReceiver::take before every tensor was verified");
  auto snapshot = std::make_shared<WeightSnapshot>();
  snapshot->manifest = dense_manifest(std::move(manifest_));
  for (Tensor& tensor : tensors_) snapshot->tensors.push_back(std::move(tensor.verified));
  tensors_.clear();
  base_.reset();
  return snapshot;
}

}  // namespace ringside::bridge
