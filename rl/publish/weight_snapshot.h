// Conversion between the model's parameters and the bridge's torch-free weight snapshots: the
// trainer publishes snapshots; a worker installs them and verifies the installation by hash.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/device/device_event.h"
#include "engine/io/safetensors.h"
#include "engine/models/decoder.h"
#include "rollout_bridge/protocol/schema.h"
#include "rollout_bridge/weights/shared_block.h"
#include "rollout_bridge/weights/snapshot.h"

namespace ringside::rl {

// The parameters that a version consists of. Holds no copy: the decoder must outlive it.
class PublishedParameters {
 public:
  // All parameters. Adapters are merged into them.
  // Implicit: a decoder stands for all of its parameters.
  PublishedParameters(const engine::Decoder& decoder);  // NOLINT(google-explicit-constructor)
  // The adapters alone.
  // Throws: c10::Error without adapters.
  static PublishedParameters adapters_of(const engine::Decoder& decoder);

  const std::vector<const engine::ParamUnit*>& units() const { return units_; }
  // The values of units()[u]. With adapters in the master dtype, so that the sum is cast once.
  // Shapes: [units()[u]->numel()], on the model's device.
  // Collective over: the shard of a sharded model.
  at::Tensor values(std::size_t u) const;
  // Bytes of all units in `dtype`, those of widened_dtype() in theirs.
  std::size_t bytes(at::ScalarType dtype) const;

 private:
  PublishedParameters() = default;
  std::vector<const engine::ParamUnit*> units_;
  const engine::Decoder* merged_ = nullptr;  // null: the units' own values are published
};

// A copy of every parameter on the host, in `dtype` (kFloat, kBFloat16, kHalf, kDouble) or in the
// wider one of widened_dtype(), in the order of units(). The copy is independent of the decoder, so
// training may continue at once.
// Collective over: the shard of a sharded model.
// Blocks: until the copies have arrived.
// Throws: c10::Error on another dtype.
std::vector<bridge::NamedBuffer> copy_weights(const PublishedParameters& parameters,
                                              at::ScalarType dtype);

// The same, copied into memory that workers on this machine can read.
// Throws: std::invalid_argument unless the block's size is parameters.bytes().
std::vector<bridge::NamedBuffer> copy_weights(const PublishedParameters& parameters,
                                              at::ScalarType dtype,
                                              const std::shared_ptr<bridge::SharedBlock>& block);

// A copy of every parameter that may still be on its way from the model's device. Training may
// continue at once: the next optimizer step waits for the copy, on the device.
class WeightCopy {
 public:
  // block: of parameters.bytes(), in memory that workers on this machine can read; nullptr = memory
  // of its own. stream: of make_side_stream() for the decoder's device; nullopt: the model is on
  // the CPU.
  // Collective over: the shard of a sharded model.
  // Blocks: while the weights are copied if there is no stream, else never.
  // Throws: c10::Error on another dtype; std::invalid_argument for a block of another size.
  WeightCopy(const PublishedParameters& parameters, at::ScalarType dtype,
             std::shared_ptr<bridge::SharedBlock> block, const std::optional<c10::Stream>& stream);

  // The copy. Call it once; any thread.
  // Blocks: until it has arrived.
  std::vector<bridge::NamedBuffer> take();

 private:
  void download(const engine::ParamUnit& unit, const at::Tensor& values, at::ScalarType dtype,
                const c10::Stream& stream);

  std::shared_ptr<bridge::SharedBlock> block_;
  std::vector<bridge::NamedBuffer> buffers_;
  std::shared_ptr<const engine::DeviceEvent> arrived_;  // null: it has
};

// The copies as tensors, which keep the buffers alive.
// Throws: c10::Error on a dtype that is not published.
std::vector<engine::TensorToWrite> tensors_of(const std::vector<bridge::NamedBuffer>& copies);

// A hashed snapshot in memory of its own.
// Collective over: the shard of a sharded model.
// Throws: as copy_weights() and bridge::make_snapshot().
std::shared_ptr<const bridge::WeightSnapshot> snapshot_weights(const engine::Decoder& decoder,
                                                               at::ScalarType dtype,
                                                               const std::string& run_id,
                                                               int64_t trainer_term,
                                                               int64_t version);

// Copies a verified snapshot into the decoder's trained units: its adapters if it has any, else all
// parameters. The decoder is whole on this process.
// Throws: c10::Error when its tensors are not exactly these parameters by name, order and shape, or
// a dtype is not F32, BF16, F16 or F64; the decoder is then unchanged.
void install_weights(engine::Decoder& decoder, const bridge::WeightSnapshot& snapshot);

// The root hash of the weights that install_weights() writes, read back in the manifest's dtypes.
// It equals the manifest's root hash exactly when the installation was complete.
// Throws: c10::Error when the manifest has another number of tensors than the decoder.
std::string installed_root_hash(const engine::Decoder& decoder, const bridge::Manifest& manifest);

}  // namespace ringside::rl
