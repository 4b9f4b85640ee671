// A checkpoint for reading: every stored element by parameter name, whatever the ranks that wrote
// it. A slice is filled from the elements that the stored ones share with it, so a model that is
// cut in any way reads a checkpoint of one that was cut in any other.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "engine/params/named_slice.h"
#include "rl/checkpoint/manifest.h"
#include "rl/checkpoint/part_file.h"

namespace ringside::rl {

// The parts are mapped, so only what is asked for is read.
// Thread safety: const methods from any thread.
class CheckpointReader {
 public:
  // Throws: std::runtime_error naming the file when the manifest or a part is missing, truncated,
  // of another checkpoint or not of its form.
  explicit CheckpointReader(std::filesystem::path dir);

  const std::filesystem::path& dir() const { return dir_; }
  const CheckpointManifest& manifest() const { return manifest_; }

  // Compares the hashes of parts reader, reader + readers, ... So `readers` ranks together check
  // each part once.
  // Throws: std::runtime_error naming the file.
  // Blocks: until these parts are read from the disk, whole.
  void verify(int64_t reader, int64_t readers) const;

  // Fills the slices of a model's state, whose tensors are stored as MODEL/NAME. Values are cast to
  // the dtype of the slice and copied to its device.
  // Throws: std::runtime_error naming checkpoint and tensor when one is missing, of another shape,
  // or not complete: then it names the first element that is in no part. The slices are then partly
  // filled.
  void fill(const std::string& model, const std::vector<engine::NamedSlice>& slices) const;

  // Shape and dtype of each stored tensor, by its name MODEL/NAME.
  struct Stored {
    std::vector<int64_t> shape;
    at::ScalarType dtype = at::kFloat;
  };
  const std::map<std::string, Stored>& tensors() const { return tensors_; }
  // The whole tensor MODEL/NAME on the host, in the dtype that it is stored in.
  // Throws: as fill.
  at::Tensor tensor(const std::string& name) const;

 private:
  struct Piece {
    std::size_t part = 0;
    PartReader::Entry entry;
  };
  void fill_slice(const std::string& name, const engine::NamedSlice& slice) const;

  std::filesystem::path dir_;
  CheckpointManifest manifest_;
  std::vector<PartReader> parts_;
  std::map<std::string, Stored> tensors_;
  std::map<std::string, std::vector<Piece>> pieces_;
};

}  // namespace ringside::rl
