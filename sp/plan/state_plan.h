// Plan of one sp rank for layers that pass a state along each document (a gated delta net): which
// rows of its ring share follow which, what the rank needs from others, and what it sends. Integers
// only.
//
// A piece is a run of consecutive tokens of one segment on one ring rank. The state at the end of a
// piece is an affine map of the state at its start. A piece starts from the end of the piece before
// it: in its segment, or of the nearest ancestor. The first piece of a document starts from zero.
// Where the piece before is on another rank, the maps of all pieces back to the document's start
// are composed. So only maps travel, once, whatever the document's length, and only to ranks that
// hold a later piece. A document that is whole on a rank sends nothing.
//
// Shapes: R = ring ranks, U = Ulysses ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "sp/layout/range.h"
#include "sp/layout/sequence_layout.h"

namespace ringside::sp {

// Heads of such a layer. Key head i serves value heads i v/k and on, for v value and k key heads.
// These travel together as one head group.
struct StateShape {
  int64_t key_heads = 0;
  int64_t value_heads = 0;  // a multiple of key_heads
  int64_t key_dim = 0;
  int64_t value_dim = 0;
  int64_t conv_taps = 0;  // rows that the causal convolution before the state reads; >= 1
  bool operator==(const StateShape&) const = default;

  int64_t values_per_group() const { return value_heads / key_heads; }
  // Channels of a head group: q, k and its v, which the convolution reads.
  int64_t conv_channels() const { return 2 * key_dim + values_per_group() * value_dim; }
  // With a decay and a write strength for each value head.
  int64_t channels() const { return conv_channels() + 2 * values_per_group(); }
  int64_t out_channels() const { return values_per_group() * value_dim; }
};

// A map in a message. That of a document's first piece is its end state alone.
struct TravellingMap {
  int64_t map = 0;  // of the sender's mapped runs
  bool from_zero = false;
  bool operator==(const TravellingMap&) const = default;
};

// Elements that this rank sends for one layer. Maps are in the accumulation dtype.
struct StateTraffic {
  int64_t channels = 0;  // Ulysses, forward
  int64_t output = 0;
  int64_t channels_grad = 0;  // Ulysses, backward
  int64_t output_grad = 0;
  int64_t halo = 0;  // ring
  int64_t halo_grad = 0;
  int64_t maps = 0;
  int64_t maps_grad = 0;
  bool operator==(const StateTraffic&) const = default;
};

// The plan of one rank for one such layer. Made by plan_state(), never changed.
struct StatePlan {
  StateShape shape;
  int64_t ring_rank = 0;
  int64_t ulysses_rank = 0;
  std::vector<int64_t> ulysses_rows;  // [U] rows of each Ulysses rank's part of this share
  std::vector<Range> groups_of;       // [U] head groups of each Ulysses rank

  // This rank's pieces, in share order.
  struct Run {
    Range rows;          // of the ring share
    int64_t after = -1;  // the run whose end state it starts from, if that is here
    int64_t start = -1;  // or else the entry of `starts`; both -1: it starts from zero
    bool operator==(const Run&) const = default;
  };
  int64_t share_rows = 0;
  std::vector<Run> runs;

  std::vector<int64_t> mapped_runs;                   // runs whose maps some rank composes
  std::vector<std::vector<TravellingMap>> send_maps;  // [R]
  std::vector<std::vector<TravellingMap>> recv_maps;  // [R] as the sender names them
  // The end state of a piece: a map of the end state of an earlier entry. A source counts the
  // mapped runs, then the received maps in rank order.
  struct PathStep {
    int64_t source = 0;
    int64_t after = -1;  // -1: from zero
    bool operator==(const PathStep&) const = default;
  };
  std::vector<PathStep> path;
  std::vector<int64_t> starts;  // entries of `path`

  // Rows of this share that other ranks' convolutions read, and the rows read by this rank's runs
  // before their own, conv_taps - 1 for each run, oldest first. They count the rows of the share,
  // then the received rows in rank order; -1: before the document's start.
  std::vector<std::vector<int64_t>> send_rows;  // [R]
  std::vector<int64_t> recv_rows;               // [R]
  std::vector<int64_t> halo;

  // Whether any ring rank sends maps, or rows. All of them then take part in the exchange, as
  // transfers are matched by their order.
  bool maps_travel = false;
  bool rows_travel = false;

  StateTraffic traffic;

  int64_t ring_size() const { return static_cast<int64_t>(send_rows.size()); }
  int64_t ulysses_size() const { return static_cast<int64_t>(groups_of.size()); }
  Range own_groups() const { return groups_of[ulysses_rank]; }
  int64_t own_value_heads() const { return own_groups().size() * shape.values_per_group(); }
  // Elements of one map.
  int64_t map_elements(bool from_zero) const {
    return own_value_heads() * shape.key_dim * (shape.value_dim + (from_zero ? 0 : shape.key_dim));
  }
};

// The plan of one sp rank.
// Throws: std::invalid_argument, the same on every rank, when value heads are not a positive
// multiple of key heads, a size is not positive, or there are fewer key heads than Ulysses ranks;
// std::out_of_range when sp_rank is outside the layout.
// Thread safety: pure.
StatePlan plan_state(const SequenceLayout& layout, const StateShape& shape, int64_t sp_rank);

// Bytes that a rank sends for one layer; element and accumulated as in forward_bytes() of
// attention_plan.h.
int64_t forward_bytes(const StateTraffic& traffic, int64_t element, int64_t accumulated);
int64_t backward_bytes(const StateTraffic& traffic, int64_t element, int64_t accumulated);

}  // namespace ringside::sp
