// Text for people: formatted figures, and tables of them.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

namespace attn::driver {

template <class... A>
std::string format(const char* pattern, A... arguments) {
  char text[256];
  std::snprintf(text, sizeof text, pattern, arguments...);
  return text;
}

// A header and rows, in columns as wide as their widest cell; the first to the left, the others to
// the right. Of the others one that is empty in every row is left out.
void print_columns(std::vector<std::vector<std::string>> lines);

}  // namespace attn::driver
