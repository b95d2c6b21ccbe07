// The main of every stage: verifies, times, reports and records what the stage describes.
#pragma once

#include "common/driver/stage.hpp"

namespace attn::driver {

// Returns the exit status: 0 all right, 1 a wrong result or a failed run, 2 bad input, which gets
// one line on stderr before any work is done.
int run(const Stage& stage, int argc, char** argv);

}  // namespace attn::driver
