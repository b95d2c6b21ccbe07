// Lets the driver call any function with the causal product's four operands.
#pragma once

#include "common/driver/tensors.hpp"

namespace attn::reference {

// `product` takes views of q, k, v (const float) and o (float), named as causal_product_operator()
// names them.
template <class Product>
auto causal_product_runner(Product product) {
  return [product](const driver::Tensors& t) {
    product(t.view<const float>("q"), t.view<const float>("k"), t.view<const float>("v"),
            t.view<float>("o"));
  };
}

}  // namespace attn::reference
