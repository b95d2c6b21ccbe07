// Lets the driver call any function with the causal product's four operands.
#pragma once

#include "common/driver/tensors.hpp"

namespace attn::reference {

// `product` takes views of q, k, v (const T) and o (T), named as causal_product_operator() names
// them, but for the queries where they have another name.
template <class T = float, class Product>
auto causal_product_runner(Product product, const char* queries = "q") {
  return [product, queries](const driver::Tensors& t) {
    product(t.view<const T>(queries), t.view<const T>("k"), t.view<const T>("v"), t.view<T>("o"));
  };
}

}  // namespace attn::reference
