// Collectives and transfers of one rank over rings of bytes. Each knows its messages to and from
// every other rank and moves them as far as room and data allow, so nothing here waits. Torch-free.
//
// Thread safety: none; SharedMemoryGroup locks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sp/mesh/byte_ring.h"

namespace ringside::sp {

// What a message belongs to. The receiver compares it with what it expects.
enum class MessageKind : uint32_t {
  kAllToAll = 1,
  kAllGather,
  kBroadcast,
  kTransfer,
  kContribution,  // of an all-reduce
  kSum            // of an all-reduce
};

// Precedes the bytes of a message.
struct MessageHeader {
  uint32_t kind;
  uint32_t reserved;
  int64_t bytes;
};

// Bytes that lie in rows: row after row, and of each row every part in turn.
class RowBytes {
 public:
  struct Part {
    std::byte* data;  // of the first row
    int64_t stride;   // bytes from row to row
    int64_t bytes;    // of a row
  };

  RowBytes() = default;
  // `rows` rows of these parts.
  RowBytes(int64_t rows, std::vector<Part> parts);
  // One row of one part.
  RowBytes(std::byte* data, int64_t bytes) : RowBytes(1, {{data, bytes, bytes}}) {}

  int64_t bytes() const { return rows_ * row_bytes_; }
  // The first byte, if there are no gaps between the bytes; otherwise null.
  std::byte* dense() const { return rows_ == 1 && parts_.size() == 1 ? parts_[0].data : nullptr; }
  // Copies bytes [offset, offset + count) to or from memory.
  void read(int64_t offset, int64_t count, std::byte* to) const;
  void write(int64_t offset, int64_t count, const std::byte* from) const;

 private:
  int64_t rows_ = 0;
  int64_t row_bytes_ = 0;
  std::vector<Part> parts_;
};

// Copies all bytes of `from`. Both have as many.
void copy_rows(const RowBytes& from, const RowBytes& to);

// Bytes on their way into a ring. Without bytes nothing is sent, not even a header.
class OutgoingMessage {
 public:
  OutgoingMessage() = default;
  // data: must stay until all is sent.
  OutgoingMessage(MessageKind kind, RowBytes data)
      : header_{static_cast<uint32_t>(kind), 0, data.bytes()}, data_(std::move(data)) {}

  // Sends as much as there is room for, of the first `ready` bytes. True when the whole message is
  // sent.
  bool send(ByteRing& ring, int64_t ready);
  // The same of all bytes.
  bool send(ByteRing& ring) { return send(ring, header_.bytes); }

 private:
  MessageHeader header_{};
  RowBytes data_;
  int64_t header_sent_ = 0;
  int64_t sent_ = 0;
};

// Bytes on their way out of a ring, the counterpart of an OutgoingMessage.
class IncomingMessage {
 public:
  IncomingMessage() = default;
  // What the other rank is expected to send.
  IncomingMessage(MessageKind kind, int64_t bytes)
      : expected_{static_cast<uint32_t>(kind), 0, bytes} {}

  // Stores bytes of the message until `end` of them have arrived in all. store: puts bytes of the
  // message, from `offset` on, where they belong. True when the whole message has arrived.
  // Throws: std::runtime_error when another message comes; it says what came and was expected.
  bool receive(ByteRing& ring, int64_t end, const ByteRing::Empty& store);

  // Bytes that have arrived, and bytes in all.
  int64_t arrived() const { return arrived_; }
  int64_t bytes() const { return expected_.bytes; }

 private:
  MessageHeader expected_{};
  MessageHeader header_{};
  int64_t header_arrived_ = 0;
  int64_t arrived_ = 0;
};

// A collective or transfer in progress.
class SharedOperation {
 public:
  virtual ~SharedOperation() = default;
  // Moves bytes to a rank of the group. True when nothing is left to send to it.
  virtual bool send(int64_t peer, ByteRing& ring) = 0;
  // Moves bytes from a rank of the group. True when nothing is left to receive from it.
  // Throws: as IncomingMessage::receive().
  virtual bool receive(int64_t peer, ByteRing& ring) = 0;
  // What it is, for messages: "all-to-all".
  virtual const char* name() const = 0;

  // Number of ends of rings that have not finished it; of SharedMemoryGroup.
  int64_t open_ends = 0;
};

// At most one message to each rank and one from each: all of them but all-reduces.
class MessageOperation final : public SharedOperation {
 public:
  // ranks: of the group. keep: holds the memory of the messages.
  MessageOperation(MessageKind kind, int64_t ranks, std::shared_ptr<const void> keep);

  // The message to or from `peer`. The memory must be what `keep` holds.
  void add_send(int64_t peer, RowBytes data);
  void add_receive(int64_t peer, RowBytes data);

  bool send(int64_t peer, ByteRing& ring) override;
  bool receive(int64_t peer, ByteRing& ring) override;
  const char* name() const override;

 private:
  struct Receive {
    IncomingMessage message;
    RowBytes data;
  };

  MessageKind kind_;
  std::vector<OutgoingMessage> sends_;
  std::vector<Receive> receives_;
  std::shared_ptr<const void> keep_;
};

// Element-wise reduction: out = a (+) b over `elements` elements. out may be a or b.
using Reduce =
    std::function<void(std::byte* out, const std::byte* a, const std::byte* b, int64_t elements)>;

// What an all-reduce works on.
struct ReductionInput {
  std::byte* data;  // in place
  int64_t elements;
  int64_t element_bytes;
};

// Elements [begin, end) of a vector.
struct ReductionPart {
  int64_t begin;
  int64_t end;
};
// The part of the vector whose sums end at rank `part` of `ranks` in a ring all-reduce.
// Source: gloo/allreduce.cc (ring), of which the bits of a sum follow: segments of at most 1 MiB,
// at least two a rank.
ReductionPart reduction_part(const ReductionInput& input, int64_t part, int64_t ranks);

// All-reduce in place, with the same bits on every rank and those of Gloo's ring: an element of
// part j is ((x[j-1] + x[j-2]) + ...) + x[j], ranks counted in a circle.
//
// Large tensors: rank j sums part j, which comes in blocks from all ranks, and sends the sums to
// all. Small ones: every rank gets everything and sums it, which takes one journey instead of two.
class ReductionOperation final : public SharedOperation {
 public:
  // keep: holds the memory of `input`.
  ReductionOperation(const ReductionInput& input, int64_t rank, int64_t ranks, Reduce reduce,
                     std::shared_ptr<const void> keep);

  bool send(int64_t peer, ByteRing& ring) override;
  bool receive(int64_t peer, ByteRing& ring) override;
  const char* name() const override { return "all-reduce"; }

 private:
  // Of one other rank.
  struct Peer {
    OutgoingMessage contribution;
    OutgoingMessage sum;
    IncomingMessage its_contribution;
    IncomingMessage its_sum;
    bool contribution_sent = false;
  };

  std::byte* at(int64_t element) const { return input_.data + element * input_.element_bytes; }
  // The contribution of `rank` to element `element` of the block in work.
  const std::byte* contribution(int64_t rank, int64_t element) const;
  // Sums the block in work if all of it is there, and starts the next one.
  void reduce_block_if_there();
  // Sums elements [begin, end) of part `part`.
  void reduce_part(int64_t part, int64_t begin, int64_t end);

  ReductionInput input_;
  int64_t rank_;
  int64_t ranks_;
  Reduce reduce_;
  std::shared_ptr<const void> keep_;
  bool all_sum_;         // every rank sums everything
  ReductionPart own_;    // what this rank sums
  int64_t block_begin_;  // the block in work
  int64_t block_end_;
  int64_t block_elements_;  // of a whole block
  std::vector<Peer> peers_;
  std::vector<std::byte> original_;               // all_sum_: a copy of the input
  std::vector<std::vector<std::byte>> arrivals_;  // of each rank, a block
  std::vector<std::byte> partial_;
};

}  // namespace ringside::sp
