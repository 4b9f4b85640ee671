// Limits on lengths and counts in messages and files, checked before anything is allocated.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ringside::bridge {

struct Limits {
  std::size_t max_header_bytes = 64 * 1024;            // frame 0
  std::size_t max_frames = 16;                         // frames 1..n
  std::size_t max_frame_bytes = 64u * 1024 * 1024;     // one frame; also ZMQ_MAXMSGSIZE
  std::size_t max_message_bytes = 128u * 1024 * 1024;  // all frames of a message
  std::size_t max_string_bytes = 4096;                 // ids, names, addresses, details
  std::size_t max_list_items = 16 * 1024;              // any array or map inside frame 0
  std::size_t max_tokens = 4u * 1024 * 1024;           // prompt and completion, each
  std::size_t max_turns = 16 * 1024;                   // turns of a completion
  std::size_t max_branches = 1024;                     // forks of a completion
  std::size_t max_images = 1024;                       // places of images in a completion
  std::size_t max_image_side = 65536;                  // in pixels
  std::size_t max_image_bytes = 32u * 1024 * 1024;     // pixels of one image of a conversation
  std::size_t max_rollout_image_bytes = 256u * 1024 * 1024;  // of a rollout's images together
  int32_t max_group_size = 4096;                             // samples of a group
  int32_t max_experts_per_token = 1024;                      // of one layer
  int64_t max_capacity_samples = int64_t{1} << 24;           // samples in flight at one worker
  std::size_t max_worker_id_bytes = 128;
  std::size_t max_dims = 8;                                 // of a frame's shape
  std::size_t max_manifest_bytes = 16u * 1024 * 1024;       // the manifest frame
  std::size_t max_tensors = 65536;                          // tensors in a manifest
  std::uint64_t max_weight_bytes = std::uint64_t{1} << 42;  // one set of weights
  std::size_t max_chunk_bytes = 16u * 1024 * 1024;          // one CHUNK
};

}  // namespace ringside::bridge
