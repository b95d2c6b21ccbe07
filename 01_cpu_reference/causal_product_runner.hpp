// Lets the driver call any function with the causal product's four operands.
#pragma once

#include "common/driver/tensors.hpp"

namespace attn::reference {

// `product` takes views of q, k, v (const T) and o (T), named as causal_product_operator() names
// them.
template <class T = float, class Product>
auto causal_product_runner(Product product) {
  return [product](const driver::Tensors& t) {
    product(t.view<const T>("q"), t.view<const T>("k"), t.view<const T>("v"), t.view<T>("o"));
  };
}

}  // namespace attn::reference
