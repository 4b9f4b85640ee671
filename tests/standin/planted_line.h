// Lines of stages' ranks with a fault in the messages between them, in place of the correct line.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "sp/mesh/communicator.h"

namespace ringside::standin {

// Carries messages as another line does. For stages, which send nothing else on a line.
class PlantedLine : public sp::Communicator {
 public:
  explicit PlantedLine(std::shared_ptr<sp::Communicator> line) : line_(std::move(line)) {}

  int64_t rank() const override { return line_->rank(); }
  int64_t size() const override { return line_->size(); }

 protected:
  using Transfers = std::vector<std::unique_ptr<sp::Transfer>>;

  Transfers do_start_transfers(std::span<const sp::PointToPoint> transfers) override {
    return line_->start_transfers(transfers, "planted");
  }

 private:
  [[noreturn]] static void refuse() { TORCH_CHECK(false, "a planted line carries messages alone"); }
  std::unique_ptr<sp::Transfer> do_start_all_reduce(at::Tensor&, Reduction) override { refuse(); }
  std::unique_ptr<sp::Transfer> do_start_all_to_all(at::Tensor&, at::Tensor&,
                                                    const std::vector<int64_t>&,
                                                    const std::vector<int64_t>&) override {
    refuse();
  }
  std::unique_ptr<sp::Transfer> do_start_all_gather(at::Tensor&, const at::Tensor&) override {
    refuse();
  }
  void do_broadcast(at::Tensor&, int64_t) override { refuse(); }
  std::unique_ptr<sp::Transfer> do_send_recv(const at::Tensor&, int64_t, at::Tensor&,
                                             int64_t) override {
    refuse();
  }

  std::shared_ptr<sp::Communicator> line_;
};

// Sends its first message in place of its second one too.
class RepeatingLine final : public PlantedLine {
 public:
  using PlantedLine::PlantedLine;

 protected:
  Transfers do_start_transfers(std::span<const sp::PointToPoint> transfers) override {
    std::vector<sp::PointToPoint> ends(transfers.begin(), transfers.end());
    for (sp::PointToPoint& end : ends) {
      if (end.kind != sp::PointToPoint::Kind::kSend) {
        continue;
      }
      if (++sends_ == 1) {
        first_ = end.tensor;
      } else if (sends_ == 2) {
        TORCH_CHECK(end.tensor.sizes() == first_.sizes(), "the messages have shapes ",
                    first_.sizes(), " and ", end.tensor.sizes());
        end.tensor = first_;
      }
    }
    return PlantedLine::do_start_transfers(ends);
  }

 private:
  int64_t sends_ = 0;
  at::Tensor first_;
};

// Hands out what it receives as if it were there: no stream waits for it. Destroying the line does.
class UnwaitedLine final : public PlantedLine {
 public:
  using PlantedLine::PlantedLine;

 protected:
  Transfers do_start_transfers(std::span<const sp::PointToPoint> transfers) override {
    Transfers started = PlantedLine::do_start_transfers(transfers);
    for (std::size_t i = 0; i < transfers.size(); ++i) {
      if (transfers[i].kind == sp::PointToPoint::Kind::kReceive) {
        under_way_.push_back(std::exchange(started[i], std::make_unique<NoWait>()));
      }
    }
    return started;
  }

 private:
  struct NoWait final : sp::Transfer {
    void wait() override {}
  };

  Transfers under_way_;
};

}  // namespace ringside::standin
