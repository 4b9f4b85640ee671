#include "rollout_bridge/receiver.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "rollout_bridge/weights.h"

namespace ringside::bridge {

WeightReceiver::WeightReceiver(Manifest manifest, Options options)
    : manifest_(std::move(manifest)), options_(options), tensors_(manifest_.tensors.size()) {
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (manifest_.tensors[i].bytes == 0) {  // nothing to ask for
      tensors_[i].bytes = std::make_shared<std::vector<std::byte>>();
      ++verified_;
    }
  }
}

void WeightReceiver::enqueue(uint64_t index) {
  Tensor& tensor = tensors_[index];
  const uint64_t bytes = manifest_.tensors[index].bytes;
  if (bytes == 0) return;
  if (!tensor.bytes) tensor.bytes = std::make_shared<std::vector<std::byte>>(bytes);
  tensor.missing = bytes;
  ++tensor.tries;
  for (uint64_t offset = 0; offset < bytes; offset += options_.chunk_bytes) {
    waiting_.push_back(
        {manifest_.version, index, offset, std::min(options_.chunk_bytes, bytes - offset)});
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
      it->second.first.bytes != data.size()) {
    return Success{};  // late, or not what was asked for
  }
  under_way_.erase(it);
  Tensor& tensor = tensors_[chunk.tensor];
  std::memcpy(tensor.bytes->data() + chunk.offset, data.data(), data.size());
  tensor.missing -= data.size();
  if (tensor.missing > 0) return Success{};
  const TensorEntry& entry = manifest_.tensors[chunk.tensor];
  if (tensor_hash(*tensor.bytes) == entry.xxh3) {
    ++verified_;
    return Success{};
  }
  ++mismatches_;
  if (tensor.tries >= options_.max_tries) {
    return Error{Reason::kChecksum, "tensor '" + entry.name + "' does not match its hash after " +
                                        std::to_string(tensor.tries) + " fetches"};
  }
  enqueue(chunk.tensor);
  return Success{};
}

std::shared_ptr<const WeightSnapshot> WeightReceiver::take() {
  if (!complete()) throw std::logic_error("WeightReceiver::take before every tensor was verified");
  auto snapshot = std::make_shared<WeightSnapshot>();
  snapshot->manifest = std::move(manifest_);
  for (Tensor& tensor : tensors_) {
    const std::span<const std::byte> bytes(*tensor.bytes);
    snapshot->tensors.push_back(Buffer{std::move(tensor.bytes), bytes});
  }
  tensors_.clear();
  return snapshot;
}

}  // namespace ringside::bridge
