// What an operator with a state returns: its outputs, and the state to carry on from.
#pragma once

#include "common/matrix.hpp"

namespace attn::reference {

struct RecurrentResult {
  Matrix o;            // [L, M]
  Matrix final_state;  // [E, M]
};

}  // namespace attn::reference
