#include "common/driver/columns.hpp"

#include <algorithm>

namespace attn::driver {

void print_columns(std::vector<std::vector<std::string>> lines) {
  for (size_t i = lines.front().size(); --i > 0;)
    if (std::all_of(lines.begin() + 1, lines.end(), [&](auto& line) { return line[i].empty(); }))
      for (auto& line : lines) line.erase(line.begin() + i);
  std::vector<size_t> widths(lines.front().size());
  for (const auto& line : lines)
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  for (const auto& line : lines) {
    std::printf("  %-*s", int(widths[0]), line[0].c_str());
    for (size_t i = 1; i < line.size(); ++i) std::printf("  %*s", int(widths[i]), line[i].c_str());
    std::printf("\n");
  }
}

}  // namespace attn::driver
