// A fault of LibTorch's vector mathematics, and how to stay clear of it.
#pragma once

namespace ringside::sp {

// Calls exp, log and the other functions that LibTorch takes from MKL's vector library once, in
// fp32 and fp64, on this thread. The library picks a function's kernel at its first call; when two
// threads are the first to call it, one of them can get a kernel of low accuracy for that call.
// With LibTorch 2.11 on two threads of a Xeon with AVX-512, 2 to 13 processes of a hundred had a
// first result that was off by up to 5e-3 in fp32 and 7e-8 in fp64; none of a hundred after one
// call on one thread. Call it in main(), before threads begin and before the first large tensor.
// Cost: below a millisecond. Thread safety: call it from one thread.
void prepare_vector_math();

}  // namespace ringside::sp
