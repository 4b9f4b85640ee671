// Writes the event files that tensorboard_oracle.py reads back: `write_events FOLDER`.
#include <cstdio>

#include "rl/report/tensorboard_writer.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: write_events FOLDER\n");
    return 2;
  }
  {
    ringside::rl::TensorboardWriter writer(argv[1], -1);
    for (int step = 1; step <= 5; ++step) {
      writer.write(step, {{"reward", step * 0.25}, {"loss/kl", -1.0 / step}});
    }
  }
  // A resume from step 3: steps 4 and 5 above must give way.
  ringside::rl::TensorboardWriter writer(argv[1], 4);
  writer.write(4, {{"reward", 40.0}});
  return 0;
}
