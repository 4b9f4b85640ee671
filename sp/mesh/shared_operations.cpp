#include "sp/mesh/shared_operations.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace ringside::sp {
namespace {

constexpr int64_t kHeaderBytes = sizeof(MessageHeader);
constexpr int64_t kBurstBytes = 256 * 1024;  // the other rank is woken at least so often
constexpr int64_t kAllSumBytes = 16 * 1024;  // up to here every rank sums everything
constexpr int64_t kBlockBytes = 128 * 1024;  // of a reduction, from each rank
constexpr int64_t kGlooSegmentBytes = 1024 * 1024;

const char* name_of(uint32_t kind) {
  switch (static_cast<MessageKind>(kind)) {
    case MessageKind::kAllToAll:
      return "all-to-all";
    case MessageKind::kAllGather:
      return "all-gather";
    case MessageKind::kBroadcast:
      return "broadcast";
    case MessageKind::kTransfer:
      return "transfer";
    case MessageKind::kContribution:
    case MessageKind::kSum:
      return "all-reduce";
  }
  return "unknown message";
}

std::string describe(const MessageHeader& header) {
  return std::string(name_of(header.kind)) + " of " + std::to_string(header.bytes) + " bytes";
}

int64_t rounded_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

RowBytes::RowBytes(int64_t rows, std::vector<Part> parts) : rows_(rows), parts_(std::move(parts)) {
  for (const Part& part : parts_) {
    row_bytes_ += part.bytes;
  }
  if (parts_.size() == 1 && parts_[0].stride == row_bytes_) {  // without gaps
    row_bytes_ *= rows_;
    parts_[0].bytes = row_bytes_;
    rows_ = 1;
  }
}

namespace {

// Calls visit(part's bytes, count) for the pieces of bytes [offset, offset + count), in order.
template <class Visit>
void for_each_piece(const std::vector<RowBytes::Part>& parts, int64_t row_bytes, int64_t offset,
                    int64_t count, const Visit& visit) {
  int64_t row = offset / row_bytes, at = offset % row_bytes;
  for (; count > 0; ++row) {
    for (const RowBytes::Part& part : parts) {
      const int64_t piece = std::min(part.bytes - at, count);
      if (piece > 0) {
        visit(part.data + row * part.stride + at, piece);
        count -= piece;
      }
      at = std::max<int64_t>(0, at - part.bytes);
    }
  }
}

}  // namespace

void RowBytes::read(int64_t offset, int64_t count, std::byte* to) const {
  for_each_piece(parts_, row_bytes_, offset, count, [&](const std::byte* from, int64_t bytes) {
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
    to += bytes;
  });
}

void RowBytes::write(int64_t offset, int64_t count, const std::byte* from) const {
  for_each_piece(parts_, row_bytes_, offset, count, [&](std::byte* to, int64_t bytes) {
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
    from += bytes;
  });
}

void copy_rows(const RowBytes& from, const RowBytes& to) {
  if (from.bytes() > 0 && to.dense() != nullptr) {
    from.read(0, from.bytes(), to.dense());
    return;
  }
  if (from.bytes() > 0 && from.dense() != nullptr) {
    to.write(0, from.bytes(), from.dense());
    return;
  }
  std::array<std::byte, 16384> piece;
  for (int64_t at = 0; at < from.bytes();) {
    const int64_t bytes = std::min<int64_t>(piece.size(), from.bytes() - at);
    from.read(at, bytes, piece.data());
    to.write(at, bytes, piece.data());
    at += bytes;
  }
}

bool OutgoingMessage::send(ByteRing& ring, int64_t ready) {
  if (header_.bytes == 0) {
    return true;
  }
  const auto* const header = reinterpret_cast<const std::byte*>(&header_);
  header_sent_ += ring.push(header + header_sent_, kHeaderBytes - header_sent_);
  if (header_sent_ == kHeaderBytes) {
    sent_ += ring.push(std::min(ready - sent_, kBurstBytes),
                       [this](std::byte* memory, int64_t offset, int64_t count) {
                         data_.read(sent_ + offset, count, memory);
                       });
  }
  return sent_ == header_.bytes;
}

bool IncomingMessage::receive(ByteRing& ring, int64_t end, const ByteRing::Empty& store) {
  if (expected_.bytes == 0) {
    return true;
  }
  if (header_arrived_ < kHeaderBytes) {
    auto* const header = reinterpret_cast<std::byte*>(&header_);
    header_arrived_ += ring.pull(header + header_arrived_, kHeaderBytes - header_arrived_);
    if (header_arrived_ < kHeaderBytes) {
      return false;
    }
    if (header_.kind != expected_.kind || header_.bytes != expected_.bytes) {
      throw std::runtime_error("sent: " + describe(header_) + "; expected: " + describe(expected_));
    }
  }
  arrived_ += ring.pull(std::min(end - arrived_, kBurstBytes),
                        [&](const std::byte* memory, int64_t offset, int64_t count) {
                          store(memory, arrived_ + offset, count);
                        });
  return arrived_ == expected_.bytes;
}

MessageOperation::MessageOperation(MessageKind kind, int64_t ranks,
                                   std::shared_ptr<const void> keep)
    : kind_(kind), sends_(ranks), receives_(ranks), keep_(std::move(keep)) {}

void MessageOperation::add_send(int64_t peer, RowBytes data) {
  sends_[peer] = {kind_, std::move(data)};
}

void MessageOperation::add_receive(int64_t peer, RowBytes data) {
  receives_[peer] = {{kind_, data.bytes()}, std::move(data)};
}

bool MessageOperation::send(int64_t peer, ByteRing& ring) { return sends_[peer].send(ring); }

bool MessageOperation::receive(int64_t peer, ByteRing& ring) {
  auto& [message, data] = receives_[peer];
  return message.receive(ring, message.bytes(),
                         [&to = data](const std::byte* memory, int64_t offset, int64_t count) {
                           to.write(offset, count, memory);
                         });
}

const char* MessageOperation::name() const { return name_of(static_cast<uint32_t>(kind_)); }

ReductionPart reduction_part(const ReductionInput& input, int64_t part, int64_t ranks) {
  const int64_t bytes = input.elements * input.element_bytes;
  const int64_t most =
      std::max<int64_t>(1, kGlooSegmentBytes / input.element_bytes) * input.element_bytes;
  const int64_t segments = rounded_up(std::max((bytes + most - 1) / most, 2 * ranks), ranks);
  const int64_t segment =
      rounded_up((bytes + segments - 1) / segments, input.element_bytes) / input.element_bytes;
  const int64_t length = segments / ranks * segment;
  return {std::min(part * length, input.elements), std::min((part + 1) * length, input.elements)};
}

ReductionOperation::ReductionOperation(const ReductionInput& input, int64_t rank, int64_t ranks,
                                       Reduce reduce, std::shared_ptr<const void> keep)
    : input_(input),
      rank_(rank),
      ranks_(ranks),
      reduce_(std::move(reduce)),
      keep_(std::move(keep)),
      all_sum_(input.elements * input.element_bytes <= kAllSumBytes),
      own_(all_sum_ ? ReductionPart{0, input.elements} : reduction_part(input, rank, ranks)),
      block_elements_(std::max<int64_t>(1, kBlockBytes / input.element_bytes)),
      peers_(ranks),
      arrivals_(ranks) {
  const int64_t width = input.element_bytes;
  block_begin_ = own_.begin;
  block_end_ = std::min(own_.begin + block_elements_, own_.end);
  const int64_t block = (block_end_ - block_begin_) * width;
  const int64_t own_bytes = (own_.end - own_.begin) * width;
  std::byte* source = input.data;
  if (all_sum_) {
    original_.assign(input.data, input.data + own_bytes);
    source = original_.data();
  }
  partial_.resize(block);
  for (int64_t p = 0; p < ranks; ++p) {
    if (p == rank) {
      continue;
    }
    const ReductionPart its = all_sum_ ? own_ : reduction_part(input, p, ranks);
    const int64_t bytes = (its.end - its.begin) * width;
    peers_[p].contribution = {MessageKind::kContribution, {source + its.begin * width, bytes}};
    peers_[p].its_contribution = {MessageKind::kContribution, own_bytes};
    peers_[p].sum = {MessageKind::kSum, {at(own_.begin), all_sum_ ? 0 : own_bytes}};
    peers_[p].its_sum = {MessageKind::kSum, all_sum_ ? 0 : bytes};
    arrivals_[p].resize(block);
  }
}

bool ReductionOperation::send(int64_t peer, ByteRing& ring) {
  Peer& to = peers_[peer];
  to.contribution_sent = to.contribution_sent || to.contribution.send(ring);
  return to.contribution_sent &&
         to.sum.send(ring, (block_begin_ - own_.begin) * input_.element_bytes);
}

bool ReductionOperation::receive(int64_t peer, ByteRing& ring) {
  Peer& from = peers_[peer];
  const int64_t width = input_.element_bytes;
  IncomingMessage& contribution = from.its_contribution;
  const int64_t block_at = (block_begin_ - own_.begin) * width;
  if (contribution.arrived() < contribution.bytes()) {
    contribution.receive(ring, (block_end_ - own_.begin) * width,
                         [&](const std::byte* memory, int64_t offset, int64_t count) {
                           std::memcpy(arrivals_[peer].data() + (offset - block_at), memory,
                                       static_cast<std::size_t>(count));
                         });
    reduce_block_if_there();
    return false;  // looked at again, as a sum may follow
  }
  if (block_begin_ < own_.end) {
    return false;  // other ranks' contributions are missing
  }
  const ReductionPart its = reduction_part(input_, peer, ranks_);
  return from.its_sum.receive(
      ring, from.its_sum.bytes(),
      [to = at(its.begin)](const std::byte* memory, int64_t offset, int64_t count) {
        std::memcpy(to + offset, memory, static_cast<std::size_t>(count));
      });
}

const std::byte* ReductionOperation::contribution(int64_t rank, int64_t element) const {
  const int64_t width = input_.element_bytes;
  if (rank != rank_) {
    return arrivals_[rank].data() + (element - block_begin_) * width;
  }
  return all_sum_ ? original_.data() + element * width : at(element);
}

void ReductionOperation::reduce_part(int64_t part, int64_t begin, int64_t end) {
  if (begin >= end) {
    return;
  }
  const auto before = [&](int64_t steps) { return (part + 2 * ranks_ - steps) % ranks_; };
  const std::byte* sum = contribution(before(1), begin);
  for (int64_t step = 2; step <= ranks_; ++step) {
    std::byte* const out = step == ranks_ ? at(begin) : partial_.data();
    reduce_(out, sum, contribution(before(step), begin), end - begin);
    sum = out;
  }
}

void ReductionOperation::reduce_block_if_there() {
  const int64_t wanted = (block_end_ - own_.begin) * input_.element_bytes;
  for (int64_t p = 0; p < ranks_; ++p) {
    if (p != rank_ && peers_[p].its_contribution.arrived() < wanted) {
      return;
    }
  }
  for (int64_t part = 0; part < ranks_; ++part) {
    const ReductionPart its = reduction_part(input_, part, ranks_);
    reduce_part(part, std::max(its.begin, block_begin_), std::min(its.end, block_end_));
  }
  block_begin_ = block_end_;
  block_end_ = std::min(block_begin_ + block_elements_, own_.end);
}

}  // namespace ringside::sp
