#include "common/simt/microscope/report.hpp"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <set>
#include <tuple>

#include "common/simt/microscope/symbols.hpp"

namespace simt::microscope {

namespace {

// Inside of these a reader looks for the caller's line.
bool is_wrapper(const std::string& file) {
  return file.find("common/simt/") != std::string::npos ||
         file.find("common/ptx/") != std::string::npos || file.starts_with("/usr/") || file == "??";
}

std::string short_name(std::string name) {
  name = name.substr(0, name.find('<'));
  const std::size_t colons = name.rfind("::");
  return colons == std::string::npos ? name : name.substr(colons + 2);
}

uintptr_t call_of(uintptr_t return_address) { return return_address - 1; }

std::vector<uintptr_t> addresses_in(const std::vector<CountedLaunch>& launches) {
  std::set<uintptr_t> addresses;
  for (const CountedLaunch& launch : launches) {
    addresses.insert(reinterpret_cast<uintptr_t>(launch.kernel));
    launch.counts.for_each([&](Place place, const Count&) {
      for (uintptr_t step : path_of(place)) addresses.insert(call_of(step));
    });
  }
  return {addresses.begin(), addresses.end()};
}

using Frames = std::map<uintptr_t, std::vector<Frame>>;

// The innermost line of the kernel's own code that leads to the place.
Frame line_of(Place place, const Frames& frames) {
  std::vector<uintptr_t> path = path_of(place);
  Frame innermost{"", "??", 0};
  for (auto step = path.rbegin(); step != path.rend(); ++step) {
    const auto found = frames.find(call_of(*step));
    if (found == frames.end()) continue;
    for (const Frame& frame : found->second) {
      if (!is_wrapper(frame.file)) return frame;
      if (innermost.line == 0) innermost = frame;
    }
  }
  return innermost;
}

}  // namespace

void Work::add(const Count& c) {
  const bool shared = c.space == Space::shared;
  const auto add_global = [&](Global& sum) {
    sum.requests += c.warps;
    sum.sectors += c.sectors;
    sum.asked += c.asked;
  };
  const auto add_shared = [&](Shared& sum) {
    sum.requests += c.warps;
    sum.wavefronts += c.wavefronts;
    sum.ideal += c.ideal;
  };
  switch (c.kind) {
    case Kind::block:
      break;
    case Kind::load:
      shared ? add_shared(shared_loads) : add_global(loads);
      break;
    case Kind::store:
      shared ? add_shared(shared_stores) : add_global(stores);
      break;
    case Kind::copy_load:
      add_global(loads);
      break;
    case Kind::copy_store:
      add_shared(shared_copies);
      break;
    case Kind::atomic:
      if (shared) {
        add_shared(shared_stores);
      } else {
        add_global(atomics);
        atomic_lanes += c.lanes;
        contention = std::max(contention, c.contention);
      }
      break;
    case Kind::barrier:
    case Kind::named_barrier:
      barriers += c.warps;
      break;
    case Kind::syncwarp:
      syncwarps += c.warps;
      break;
    case Kind::shuffle:
      shuffles += c.warps;
      break;
    case Kind::vote:
      votes += c.warps;
      break;
    case Kind::ldmatrix:  // its loads are counted as such
    case Kind::other:
      break;
    case Kind::mma_bf16:
    case Kind::mma_fp16:
      products += c.warps;
      flops += 2.0 * 16 * 8 * 16 * c.warps;
      break;
    case Kind::mma_tf32:
      products += c.warps;
      flops += 2.0 * 16 * 8 * 8 * c.warps;
      break;
  }
}

std::vector<LaunchReport> report(const std::vector<CountedLaunch>& launches) {
  const Frames frames = frames_of(addresses_in(launches));
  std::vector<LaunchReport> reports;
  for (const CountedLaunch& launch : launches) {
    LaunchReport& r = reports.emplace_back();
    const auto kernel = frames.find(reinterpret_cast<uintptr_t>(launch.kernel));
    r.full_name = kernel != frames.end() ? kernel->second.back().function : "kernel";
    r.kernel = short_name(r.full_name);
    r.grid = launch.grid;
    r.block = launch.block;
    r.shared_bytes = launch.shared_bytes;
    r.read_bytes = launch.read_bytes;
    r.written_bytes = launch.written_bytes;
    r.most_atomics = launch.most_atomics;
    std::map<std::tuple<std::string, int, Kind, Space, int>, Count> lines;
    launch.counts.for_each([&](Place place, const Count& count) {
      r.work.add(count);
      const Frame at = line_of(place, frames);
      lines[{at.file, at.line, count.kind, count.space, count.bytes}] += count;
    });
    for (const auto& [key, count] : lines)
      r.lines.push_back({std::get<0>(key), std::get<1>(key), count});
  }
  return reports;
}

const char* to_string(Kind kind) {
  switch (kind) {
    case Kind::block:
      return "block";
    case Kind::load:
      return "load";
    case Kind::store:
      return "store";
    case Kind::atomic:
      return "atomic";
    case Kind::copy_load:
    case Kind::copy_store:
      return "cp.async";
    case Kind::barrier:
      return "barrier";
    case Kind::named_barrier:
      return "named barrier";
    case Kind::syncwarp:
      return "syncwarp";
    case Kind::shuffle:
      return "shuffle";
    case Kind::vote:
      return "vote";
    case Kind::ldmatrix:
      return "ldmatrix";
    case Kind::mma_bf16:
      return "mma.bf16";
    case Kind::mma_fp16:
      return "mma.fp16";
    case Kind::mma_tf32:
      return "mma.tf32";
    case Kind::other:
      return "other";
  }
  return "";
}

void print_lines(const LaunchReport& launch) {
  std::printf("\n%s, %u blocks of %u\n", launch.kernel.c_str(),
              launch.grid.x * launch.grid.y * launch.grid.z,
              launch.block.x * launch.block.y * launch.block.z);
  for (auto first = launch.lines.begin(); first != launch.lines.end();) {
    const auto last = std::find_if(first, launch.lines.end(),
                                   [&](const LineWork& line) { return line.file != first->file; });
    std::printf("%s\n  %13s %8s %12s %12s %10s\n", first->file.c_str(), "what", "bytes", "requests",
                "sectors", "wavefronts");
    std::ifstream source(first->file);
    std::string text;
    int number = 0;
    for (; first != last; ++first) {
      if (first->line != number) {
        // The lines between, up to this one.
        const bool begun = number != 0;
        while (number < first->line && std::getline(source, text))
          if (++number < first->line && begun)
            std::printf("%70s | %5d  %s\n", "", number, text.c_str());
        number = first->line;
      } else {
        text.clear();
      }
      const Count& c = first->count;
      const auto figure = [](uint64_t x) { return x ? std::to_string(x) : std::string(); };
      std::string wavefronts = figure(c.wavefronts);
      if (c.wavefronts > c.ideal) wavefronts += " (" + figure(c.wavefronts - c.ideal) + " more)";
      std::printf("  %13s %6s%-6s %10llu %12s %18s", to_string(c.kind),
                  c.bytes ? std::to_string(c.bytes).c_str() : "",
                  c.space == Space::shared ? " sh" : "", (unsigned long long)c.warps,
                  figure(c.sectors).c_str(), wavefronts.c_str());
      std::printf(text.empty() ? " |\n" : " | %5d  %s\n", number, text.c_str());
    }
    std::printf("\n");
  }
}

}  // namespace simt::microscope
