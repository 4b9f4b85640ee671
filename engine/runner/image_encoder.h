// Images of a model's micro-batches: from their pixels to rows for this rank's tokens.
//
// An image is encoded on the rank that its micro-batch's plan names, and its rows go from there to
// the ranks of its tokens in one exchange. A constant tower that is whole on the rank encodes an
// image once for as long as its rows are kept (ImageInput::kept), so for all passes of a step. Any
// other tower encodes the images of each micro-batch. One that is trained or sharded runs in every
// micro-batch, also without images: its gradient sums and gathers then come in the same order on
// every rank. Each tensor-parallel rank encodes the images of its sequence-parallel rank and keeps
// what belongs to its rows.
//
// Shapes: r = rows that this rank encodes, i = tokens of images among this rank's rows, E = hidden
// size, L = deepstack levels.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <memory>
#include <optional>
#include <vector>

#include "engine/images/image_processor.h"
#include "engine/models/decoder.h"
#include "engine/models/encode_images.h"
#include "engine/models/image_rows.h"
#include "sp/batch/collator.h"
#include "sp/mesh/process_groups.h"

namespace ringside::engine {

// Thread safety: none.
class ImageEncoder {
 public:
  // decoder: outlives it. Throws: c10::Error for a model without a vision tower.
  ImageEncoder(const Decoder& decoder, const sp::ProcessGroups& groups, ImageInput input);

  // For Decoder::forward() of a micro-batch. With autograd on, the gradient of a trained tower
  // comes back through the rows. Collective over: kSp; the shard of a sharded tower. The same in
  // the backward of a trained one. Blocks: while pixels are read. Throws: c10::Error when an image
  // has another grid than its document says; what `pixels` throws.
  ImageRows rows(const sp::MicroBatch& batch) const;

 private:
  using Images = std::vector<sp::DocumentImage>;
  using Pixels = std::shared_ptr<const ProcessedImage>;

  Pixels pixels_of(const sp::DocumentImage& image) const;
  at::Tensor encode(const Images& images) const;  // [r, E * (1 + L)]
  // The same for a constant tower, with rows that are kept.
  at::Tensor encode_once(const Images& images) const;

  const Decoder& decoder_;
  const sp::ProcessGroups& groups_;
  ImageInput input_;
  std::optional<c10::Stream> upload_stream_;
  bool is_trained_ = false;
  bool is_sharded_ = false;
};

}  // namespace ringside::engine
