#include "sp/attention/kv_transport.h"

#include <ATen/ATen.h>

#include "sp/attention/gather_transport.h"
#include "sp/attention/ring_transport.h"

namespace ringside::sp {

at::Tensor take_rows(const at::Tensor& tensor, const std::vector<Range>& ranges) {
  if (ranges.size() == 1) {
    return tensor.narrow(0, ranges[0].begin, ranges[0].size()).contiguous();
  }
  std::vector<at::Tensor> pieces{tensor.narrow(0, 0, 0)};
  for (const Range& range : ranges) {
    pieces.push_back(tensor.narrow(0, range.begin, range.size()));
  }
  return at::cat(pieces);
}

void add_rows(at::Tensor& tensor, const std::vector<Range>& ranges, const at::Tensor& rows) {
  int64_t begin = 0;
  for (const Range& range : ranges) {
    tensor.narrow(0, range.begin, range.size()).add_(rows.narrow(0, begin, range.size()));
    begin += range.size();
  }
  TORCH_CHECK(begin == rows.size(0), "add_rows: ", rows.size(0), " rows for ", begin, " places");
}

std::unique_ptr<KvTransport> make_kv_transport(const at::Tensor& kv_S2kD,
                                               const PreparedPlan& prepared, Communicator& ring,
                                               RingImpl impl) {
  if (impl == RingImpl::kP2p) {
    return std::make_unique<RingTransport>(kv_S2kD, prepared, ring);
  }
  return std::make_unique<GatherTransport>(kv_S2kD, prepared, ring);
}

}  // namespace ringside::sp
