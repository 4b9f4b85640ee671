// Conversion between the model's parameters and the bridge's torch-free weight snapshots: the
// trainer publishes snapshots; a worker installs them and verifies the installation by hash.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/device/device_event.h"
#include "engine/io/safetensors.h"
#include "engine/models/decoder.h"
#include "engine/models/weight_export.h"
#include "rollout_bridge/protocol/schema.h"
#include "rollout_bridge/weights/shared_block.h"
#include "rollout_bridge/weights/snapshot.h"

namespace ringside::rl {

// A copy of exported weights on the host that may still be on its way from the model's device.
// Training may continue at once: the next optimizer step waits for the copy, on the device.
class WeightCopy {
 public:
  // Takes all units, in `dtype` (kFloat, kBFloat16, kHalf, kDouble) or in the wider one of
  // widened_dtype(). block: of units.weights().bytes(dtype), in memory that workers on this machine
  // can read; nullptr = memory of its own. stream: of make_side_stream() for the model's device;
  // nullopt: copies at once, as for a model on the CPU. For use in a sink.
  // Collective over: as engine::UnitExport::next().
  // Blocks: while the weights are copied if there is no stream, else never.
  // Throws: c10::Error on another dtype; std::invalid_argument for a block of another size, before
  // anything is gathered.
  WeightCopy(engine::UnitExport& units, at::ScalarType dtype,
             std::shared_ptr<bridge::SharedBlock> block, const std::optional<c10::Stream>& stream);

  // The copy. Call it once; any thread.
  // Blocks: until it has arrived.
  std::vector<bridge::NamedBuffer> take();

 private:
  void add(const engine::ExportedUnit& unit, at::ScalarType dtype);
  at::Tensor host_memory(int64_t elements, at::ScalarType dtype);

  std::shared_ptr<bridge::SharedBlock> block_;
  std::size_t filled_ = 0;  // bytes of the block
  std::optional<c10::Stream> stream_;
  std::vector<bridge::NamedBuffer> buffers_;
  std::shared_ptr<const engine::DeviceEvent> arrived_;  // of the last unit; null: no stream
};

// The copy of a model that is whole on this process. Not collective.
// Blocks, throws: as WeightCopy without a stream.
std::vector<bridge::NamedBuffer> copy_weights(
    const engine::WeightView& weights, at::ScalarType dtype,
    const std::shared_ptr<bridge::SharedBlock>& block = nullptr);

// The copies as tensors, which keep the buffers alive.
// Throws: c10::Error on a dtype that is not published.
std::vector<engine::TensorToWrite> tensors_of(const std::vector<bridge::NamedBuffer>& copies);

// A hashed snapshot, in memory of its own, of a decoder that is whole on this process.
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

// One of several decoders that a snapshot is of: its tensors' names begin with `prefix`, as
// engine::PrefixedStages exports them.
struct PrefixedDecoder {
  std::string prefix;
  engine::Decoder* decoder;
};
// The same into all of these, whose tensors follow one another in the snapshot.
void install_weights(std::span<const PrefixedDecoder> decoders,
                     const bridge::WeightSnapshot& snapshot);

// The root hash of the weights that install_weights() writes, read back in the manifest's dtypes.
// It equals the manifest's root hash exactly when the installation was complete.
// Throws: c10::Error when the manifest has another number of tensors than the decoder.
std::string installed_root_hash(const engine::Decoder& decoder, const bridge::Manifest& manifest);
// The same of all of these.
std::string installed_root_hash(std::span<const PrefixedDecoder> decoders,
                                const bridge::Manifest& manifest);

}  // namespace ringside::rl
