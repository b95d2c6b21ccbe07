// The operators of the stages, as the driver takes them: operands, truth and least work.
#pragma once

#include "common/driver/operator.hpp"

namespace attn::reference {

// o_t = sum_{s <= t} (q_t . k_s) v_s: stages 01 to 04.
driver::Operator causal_product_operator();

}  // namespace attn::reference
