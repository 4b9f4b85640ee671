// Planted faults between two ranks.
#include <ATen/ATen.h>

#include "tests/standin/planted_faults.h"
#include "tests/standin/two_ranks.h"

namespace ringside::standin {
namespace {

// Deadline of programs that hang when the fault is planted. It counts from the first wait; so both
// ranks launch everything that the report is to name before either waits (meet()).
constexpr std::chrono::milliseconds kShort{150};

void on_both_ranks(const std::function<void(const TwoRankContext&)>& body,
                   std::chrono::milliseconds deadline = std::chrono::seconds(10)) {
  for (const std::string& error : run_two_ranks(body, deadline)) {
    TORCH_CHECK(error.empty(), error);
  }
}

void forgotten_wait(bool planted) {
  on_both_ranks([=](const TwoRankContext& context) {
    const at::Tensor in = context.ones({2}), out = at::empty({4}, in.options());
    const auto work = all_gather(context.first, out, in);
    if (!planted) {
      work->wait();
    }
    out.exp();
    work->wait();
  });
}

void launched_from_the_wrong_stream(bool planted) {
  on_both_ranks([=](const TwoRankContext& context) {
    const c10::Stream side = side_stream(context.rank);
    const at::Tensor x = context.ones({4}) * 2;
    if (!planted) {
      order(main_stream(context.rank), side);
    }
    {
      const c10::StreamGuard on(side);
      all_reduce(context.first, x)->wait();
    }
    order(side, main_stream(context.rank));
    x.exp();
  });
}

void waited_on_the_wrong_stream(bool planted) {
  on_both_ranks([=](const TwoRankContext& context) {
    const c10::Stream side = side_stream(context.rank);
    const at::Tensor x = context.ones({4});
    const auto work = all_reduce(context.first, x);
    {
      const c10::StreamGuard on(planted ? side : main_stream(context.rank));
      work->wait();
    }
    x.exp();
    order(side, main_stream(context.rank));
  });
}

void input_of_a_running_collective_overwritten(bool planted) {
  on_both_ranks([=](const TwoRankContext& context) {
    at::Tensor in = context.ones({2});
    const at::Tensor out = at::empty({4}, in.options());
    const auto work = all_gather(context.first, out, in);
    if (planted) {
      in.zero_();
    }
    work->wait();
    in.zero_();
  });
}

void output_freed_while_it_is_received(bool planted) {
  on_both_ranks([=](const TwoRankContext& context) {
    {
      const at::Tensor in = context.ones({2}), out = at::empty({4}, in.options());
      const auto work = all_gather(context.first, out, in);
      if (!planted) {
        work->wait();
      }
    }
    device_guard().synchronizeDevice(static_cast<c10::DeviceIndex>(context.rank));
  });
}

void two_communicators_in_different_orders(bool planted) {
  on_both_ranks(
      [=](const TwoRankContext& context) {
        const at::Tensor x = context.ones({4}), y = context.ones({2});
        const bool swapped = planted && context.rank == 1;
        const auto one = all_reduce(swapped ? context.second : context.first, swapped ? y : x);
        const auto other = all_reduce(swapped ? context.first : context.second, swapped ? x : y);
        context.meet();
        one->wait();
        other->wait();
        (x.sum() + y.sum()).item<float>();
      },
      planted ? kShort : std::chrono::seconds(10));
}

void different_collectives(bool planted) {
  on_both_ranks([=](const TwoRankContext& context) {
    const at::Tensor in = context.ones({2}), out = at::zeros({4}, in.options());
    const auto work = planted && context.rank == 1 ? all_reduce(context.first, in)
                                                   : all_gather(context.first, out, in);
    work->wait();
    (in.sum() + out.sum()).item<float>();
  });
}

void different_sizes(bool planted) {
  on_both_ranks([=](const TwoRankContext& context) {
    const at::Tensor x = context.ones({planted && context.rank == 1 ? 3 : 4});
    all_reduce(context.first, x)->wait();
    x.sum().item<float>();
  });
}

void one_rank_launches_alone(bool planted) {
  on_both_ranks(
      [=](const TwoRankContext& context) {
        const at::Tensor x = context.ones({4});
        if (!planted || context.rank == 0) {
          all_reduce(context.first, x)->wait();
        }
        x.sum().item<float>();
      },
      planted ? kShort : std::chrono::seconds(10));
}

void both_send_first(bool planted) {
  on_both_ranks(
      [=](const TwoRankContext& context) {
        const int peer = 1 - context.rank;
        const at::Tensor x = context.ones({4}), y = at::empty({4}, x.options());
        std::vector<c10::intrusive_ptr<c10d::Work>> works;
        if (planted || context.rank == 0) {
          works = {send(context.first, x, peer), receive(context.first, y, peer)};
        } else {
          works = {receive(context.first, y, peer), send(context.first, x, peer)};
        }
        context.meet();
        works[0]->wait();
        works[1]->wait();
        y.sum().item<float>();
      },
      planted ? kShort : std::chrono::seconds(10));
}

void transfer_of_unequal_sizes(bool planted) {
  on_both_ranks([=](const TwoRankContext& context) {
    const at::Tensor x = context.ones({planted && context.rank == 1 ? 3 : 4});
    (context.rank == 0 ? send(context.first, x, 1) : receive(context.first, x, 0))->wait();
    x.sum().item<float>();
  });
}

// Runs `use` on both ranks while rank 0 sends rank 1 a message: before its end if planted.
void with_a_message(bool planted, const std::function<void(at::Tensor&, int rank)>& use) {
  on_both_ranks([&](const TwoRankContext& context) {
    at::Tensor message = context.ones({4}) * 2;
    const auto work =
        context.rank == 0 ? send(context.first, message, 1) : receive(context.first, message, 0);
    if (!planted) {
      work->wait();
    }
    use(message, context.rank);
    work->wait();
    device_guard().synchronizeDevice(static_cast<c10::DeviceIndex>(context.rank));
  });
}

void message_overwritten(bool planted) {
  with_a_message(planted, [](at::Tensor& message, int rank) {
    if (rank == 0) {
      message.zero_();
    }
  });
}

void message_read_early(bool planted) {
  with_a_message(planted, [](at::Tensor& message, int rank) {
    if (rank == 1) {
      message.exp();
    }
  });
}

// Both ends drop their buffers; the transfer's handle, which keeps them, is dropped too.
void message_freed(bool planted) {
  on_both_ranks([=](const TwoRankContext& context) {
    {
      const at::Tensor message = context.ones({4}) * 2;
      const auto work =
          context.rank == 0 ? send(context.first, message, 1) : receive(context.first, message, 0);
      if (!planted) {
        work->wait();
      }
    }
    device_guard().synchronizeDevice(static_cast<c10::DeviceIndex>(context.rank));
  });
}

void cpu_tensor_in_a_collective(bool planted) {
  on_both_ranks([=](const TwoRankContext& context) {
    const at::Tensor x = at::ones({4});
    all_reduce(context.first, planted ? x : x.to(device(context.rank)))->wait();
  });
}

void strided_tensor_in_a_collective(bool planted) {
  on_both_ranks([=](const TwoRankContext& context) {
    const at::Tensor x = context.ones({4, 4}).t().narrow(0, 0, 2);
    all_reduce(context.first, planted ? x : x.contiguous())->wait();
  });
}

// The sum of tensor-parallel ranks' partial results, whose parts have not all arrived.
void partial_sums_read_early(bool planted) {
  on_both_ranks([=](const TwoRankContext& context) {
    const at::Tensor partial = context.ones({4, 2}), received = at::empty_like(partial);
    const auto work = all_to_all(context.first, received, partial);
    if (!planted) {
      work->wait();
    }
    received.narrow(0, 0, 2) + received.narrow(0, 2, 2);
    work->wait();
  });
}

// Rows of a layer gathered into the buffer that a product of the layer before still reads.
void gather_buffer_reused(bool planted) {
  on_both_ranks([=](const TwoRankContext& context) {
    const c10::Stream side = side_stream(context.rank);
    const at::Tensor own = context.ones({2, 3}), weight = context.ones({3, 3});
    const at::Tensor rows = at::empty({4, 3}, own.options());
    all_gather(context.first, rows, own)->wait();
    order(main_stream(context.rank), side);
    at::Tensor product;
    {
      const c10::StreamGuard on(side);
      product = rows.mm(weight);
    }
    if (!planted) {
      order(side, main_stream(context.rank));
    }
    all_gather(context.first, rows, own)->wait();
    order(side, main_stream(context.rank));
    product.sum();
    order(main_stream(context.rank), side);  // the owner of the product, which is freed here
  });
}

void uninitialised_input(bool planted) {
  on_both_ranks([=](const TwoRankContext& context) {
    const at::Tensor x = at::empty({4}, on_device(context.rank));
    if (!planted) {
      x.zero_();
    }
    all_reduce(context.first, x)->wait();
    x.exp();
  });
}

}  // namespace

std::vector<PlantedFault> faults_between_ranks() {
  const auto reported = &Evidence::reported;
  const auto thrown = &Evidence::thrown;
  return {
      {"forgotten wait",
       reported(Fault::kUnorderedRead,
                "not ordered after allgather [first] on standin:0 "
                "communicator first, which writes it"),
       forgotten_wait},
      {"collective launched from the wrong stream",
       reported(Fault::kUnorderedWrite, "allreduce [first] on standin:0 communicator first writes"),
       launched_from_the_wrong_stream},
      {"collective waited for on the wrong stream",
       reported(Fault::kUnorderedRead, "not ordered after allreduce [first] on standin:0"),
       waited_on_the_wrong_stream},
      {"input of a running collective overwritten",
       reported(Fault::kUnorderedWrite,
                "aten::zero_ on standin:0 default stream writes memory "
                "and is not ordered after allgather [first]"),
       input_of_a_running_collective_overwritten},
      {"output freed while it is received",
       reported(Fault::kFreedInUse, "is freed while allgather [first] on standin:0"),
       output_freed_while_it_is_received},
      {"two communicators in different orders",
       reported(Fault::kCollectiveDeadline,
                "standin:1: in allreduce of 2 Float [second], then allreduce of 4 Float [first]"),
       two_communicators_in_different_orders},
      {"different collectives on two ranks",
       reported(Fault::kCollectiveMismatch, "allgather of 2 Float"), different_collectives},
      {"different sizes on two ranks", reported(Fault::kCollectiveMismatch, "allreduce of 3 Float"),
       different_sizes},
      {"one rank launches alone",
       reported(Fault::kCollectiveDeadline, "standin:1: nothing pending"), one_rank_launches_alone},
      {"both ranks send first",
       reported(Fault::kCollectiveDeadline,
                "standin:1: in send of 4 Float to standin:0 [first], then receive"),
       both_send_first},
      {"transfer of unequal sizes",
       reported(Fault::kCollectiveMismatch, "receive of 3 Float from standin:0"),
       transfer_of_unequal_sizes},
      {"message overwritten while it is sent",
       reported(Fault::kUnorderedWrite,
                "aten::zero_ on standin:0 default stream writes memory "
                "and is not ordered after send [first]"),
       message_overwritten},
      {"message read before it has arrived",
       reported(Fault::kUnorderedRead, "not ordered after receive [first] on standin:1"),
       message_read_early},
      {"message freed while it is sent",
       reported(Fault::kFreedInUse, "is freed while send [first] on standin:0"), message_freed},
      {"message freed while it is received",
       reported(Fault::kFreedInUse, "is freed while receive [first] on standin:1"), message_freed},
      {"CPU tensor in a collective", thrown("expected a tensor on standin:0, got one on cpu"),
       cpu_tensor_in_a_collective},
      {"strided tensor in a collective", thrown("the tensor must be contiguous"),
       strided_tensor_in_a_collective},
      {"partial sums of tensor ranks read before they arrived",
       reported(Fault::kUnorderedRead, "not ordered after alltoall [first] on standin:0"),
       partial_sums_read_early},
      {"gathered rows replaced while a product reads them",
       reported(Fault::kUnorderedWrite, "allgather [first] on standin:0 communicator first writes"),
       gather_buffer_reused},
      {"uninitialised input of a collective",
       reported(Fault::kUninitialisedRead, "allreduce [first] reads device memory"),
       uninitialised_input},
  };
}

}  // namespace ringside::standin
