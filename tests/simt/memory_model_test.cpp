// The microscope's models of one instruction: known patterns, and every pattern that Nsight Compute
// was asked about on an H200 (probe/, docs/results/h200_patterns.csv).
#include "common/simt/microscope/memory_model.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <fstream>
#include <map>
#include <regex>
#include <string>
#include <vector>

#include "tests/simt/probe/patterns.hpp"

namespace simt::microscope {
namespace {

// Lane i accesses element of(i), or nothing if that is negative.
template <class F>
WarpAccess access(int bytes, F of) {
  WarpAccess result{0, bytes, {}};
  for (int lane = 0; lane < 32; ++lane) {
    const int64_t element = of(lane);
    if (element < 0) continue;
    result.lanes |= 1u << lane;
    result.address[lane] = 0x7f0000000000 + element * bytes;
  }
  return result;
}

TEST(Sectors, RowOfFloats) {
  EXPECT_EQ(sectors(access(4, [](int i) { return i; })), 4);
}
TEST(Sectors, RowOfFloat4) {
  EXPECT_EQ(sectors(access(16, [](int i) { return i; })), 16);
}
TEST(Sectors, AllTheSame) {
  EXPECT_EQ(sectors(access(4, [](int) { return 5; })), 1);
}
TEST(Sectors, OneFloatOfEachRow) {
  EXPECT_EQ(sectors(access(4, [](int i) { return 64 * i; })), 32);
}
TEST(Sectors, NotAtTheBeginningOfASector) {
  EXPECT_EQ(sectors(access(4, [](int i) { return i + 1; })), 5);
}
TEST(Sectors, FarApart) {
  EXPECT_EQ(sectors(access(4, [](int i) { return i < 16 ? i : int64_t(1) << 32 | i; })), 4);
}
TEST(Sectors, NobodyTakesPart) {
  EXPECT_EQ(sectors(access(4, [](int) { return -1; })), 0);
}

TEST(DistinctBytes, SharedOnesCountOnce) {
  EXPECT_EQ(distinct_bytes(access(4, [](int i) { return i / 4; })), 32);
  EXPECT_EQ(distinct_bytes(access(2, [](int i) { return 100 * i; })), 64);
}

TEST(Atomics, QueuesMoveTheSectorAgain) {
  EXPECT_EQ(atomic_sectors(access(4, [](int i) { return i; })), 4);
  EXPECT_EQ(atomic_sectors(access(4, [](int) { return 0; })), 32);
  // Two words of one sector, three lanes at one and one at the other: three rounds.
  EXPECT_EQ(atomic_sectors(access(4, [](int i) { return i < 3 ? 0 : (i == 3 ? 1 : -1); })), 3);
  EXPECT_EQ(contention(access(4, [](int i) { return i / 8; })), 8);
}

TEST(Banks, FourBytes) {
  EXPECT_EQ(load_wavefronts(access(4, [](int i) { return i; })), 1);
  EXPECT_EQ(load_wavefronts(access(4, [](int) { return 7; })), 1);  // a broadcast
  EXPECT_EQ(load_wavefronts(access(4, [](int i) { return 2 * i; })), 2);
  EXPECT_EQ(load_wavefronts(access(4, [](int i) { return 32 * i; })), 32);
  EXPECT_EQ(load_wavefronts(access(4, [](int i) { return 33 * i; })), 1);
  EXPECT_EQ(load_wavefronts(access(4, [](int i) { return i % 2 ? -1 : 32 * i; })), 16);
}

TEST(Banks, HalfWordsShareABank) {
  EXPECT_EQ(load_wavefronts(access(2, [](int i) { return i; })), 1);
  EXPECT_EQ(load_wavefronts(access(2, [](int i) { return 64 * i; })), 32);
}

TEST(Banks, WideAccessesTakeHalfWarpsAndQuarters) {
  EXPECT_EQ(load_wavefronts(access(8, [](int i) { return i; })), 2);
  EXPECT_EQ(load_wavefronts(access(16, [](int i) { return i; })), 4);
  EXPECT_EQ(load_wavefronts(access(16, [](int i) { return 8 * i; })), 32);
  // A loads' halves meet where neighbours share an address; stores' do not.
  EXPECT_EQ(load_wavefronts(access(16, [](int i) { return i / 2; })), 2);
  EXPECT_EQ(store_wavefronts(access(16, [](int i) { return i / 2; })), 4);
  EXPECT_EQ(store_wavefronts(access(16, [](int i) { return i < 8 ? i : -1; })), 1);
}

TEST(Banks, Ideal) {
  const auto few = access(16, [](int i) { return i < 11 ? 8 * i : -1; });
  EXPECT_EQ(ideal_wavefronts(few, store_wavefronts(few)), 2);
  const auto same = access(8, [](int) { return 0; });
  EXPECT_EQ(ideal_wavefronts(same, load_wavefronts(same)), 1);
}

// Copies of two rows of 64 floats, as a warp makes them: from dense rows to rows of `pitch` bytes.
WarpCopy two_rows(uint64_t first_row, uint64_t pitch, int valid_per_row) {
  WarpCopy copy{{0, 16, {}}};
  for (int lane = 0; lane < 32; ++lane) {
    const uint64_t row = first_row + lane / 16, d = lane % 16;
    copy.shared[lane] = row * pitch + d * 16;
    if (int(d) >= valid_per_row) {
      copy.zeros = true;
      continue;
    }
    copy.read.lanes |= 1u << lane;
    copy.read.address[lane] = 0x7f0000000000 + row * valid_per_row * 16 + d * 16;
  }
  return copy;
}

// As counted on an H200 in stages 04 and 05 (instructions whose rows repeat every two or four).
TEST(Copies, Wavefronts) {
  EXPECT_EQ(copy_wavefronts(two_rows(0, 256, 16)), 4);  // nothing in the way
  EXPECT_EQ(copy_wavefronts(two_rows(0, 288, 16)) + copy_wavefronts(two_rows(2, 288, 16)), 14);
  int shifted = 0;  // by half a sector, every other row
  for (int row = 0; row < 8; row += 2) shifted += copy_wavefronts(two_rows(row, 272, 16));
  EXPECT_EQ(shifted, 42);
  EXPECT_EQ(copy_wavefronts(two_rows(0, 256, 12)), 9);  // a quarter is zeros
  EXPECT_EQ(ideal_copy_wavefronts(two_rows(0, 256, 12)), 7);
  EXPECT_EQ(ideal_copy_wavefronts(two_rows(0, 288, 16)), 4);
}

// Four rows of 64 bf16, whose chunks of 16 bytes change places within the row: stage 07's, of whose
// 1,600 copies at 1,5,256,64,64 an H200 counted four passes each.
TEST(Copies, SwizzledRowsStayTogether) {
  for (uint64_t first_row : {0, 4}) {
    WarpCopy copy{{0xffffffff, 16, {}}};
    for (int lane = 0; lane < 32; ++lane) {
      const uint64_t row = first_row + lane / 8, chunk = lane % 8;
      copy.read.address[lane] = 0x7f0000000000 + row * 128 + chunk * 16;
      copy.shared[lane] = row * 128 + (chunk ^ row % 8) * 16;
    }
    EXPECT_EQ(copy_wavefronts(copy), 4);
  }
}

TEST(Copies, PiecesFillSectors) {
  EXPECT_EQ(copy_sectors(two_rows(0, 256, 16)), 16);
  EXPECT_EQ(copy_sectors(two_rows(0, 288, 16)), 16);
  EXPECT_EQ(copy_sectors(two_rows(0, 272, 16)), 18);  // rows torn between lines
  // Two lanes that begin in the middle of a sector, in one line and across two.
  for (uint64_t offset : {0, 16, 32, 112}) {
    WarpCopy copy{{3, 16, {}}};
    copy.read.address[0] = 0x7f0000000000 + offset;
    copy.read.address[1] = copy.read.address[0] + 16;
    copy.shared[1] = 16;
    EXPECT_EQ(copy_sectors(copy), offset == 112 ? 2 : 1) << offset;
  }
}

// --- Against the GPU ------------------------------------------------------------------------------

struct Measured {
  int lanes, wavefronts, ideal, sectors;
};

// The fields of a line of ncu's CSV, all of which are in quotes.
std::vector<std::string> fields(const std::string& line) {
  static const std::regex quoted("\"([^\"]*)\"");
  std::vector<std::string> found;
  for (std::sregex_iterator i(line.begin(), line.end(), quoted), end; i != end; ++i)
    found.push_back((*i)[1]);
  return found;
}

// By kernel, as "shared_load 4", the instructions in the order of the code.
const std::map<std::string, std::vector<Measured>>& measured() {
  static const auto all = [] {
    std::map<std::string, std::vector<Measured>> all;
    std::ifstream file(ATTN_SOURCE_DIR "/docs/results/h200_patterns.csv");
    std::vector<std::string> header;
    std::string line, kernel;
    while (std::getline(file, line)) {
      const auto row = fields(line);
      if (row.size() == 2 && row[0] == "Kernel Name") {
        static const std::regex name("(\\w+)_kernel(<\\(int\\)(\\d)>)?");
        std::smatch match;
        if (std::regex_search(row[1], match, name)) kernel = match[1].str() + match[3].str();
      } else if (!row.empty() && row[0] == "Address") {
        header = row;
      } else if (row.size() == header.size()) {
        const auto value = [&](const char* column) {
          const auto at = std::find(header.begin(), header.end(), column);
          return at == header.end() ? 0 : std::stoi(row[at - header.begin()]);
        };
        // (A store of the sum ends the kernels that load: one word by each lane.)
        const bool is_end = kernel.find("_load") != std::string::npos || kernel == "ldmatrix";
        if (is_end && row[1].find("STG") != std::string::npos) continue;
        all[kernel].push_back({value("Predicated-On Thread Instructions Executed"),
                               value("L1 Wavefronts Shared"), value("L1 Wavefronts Shared Ideal"),
                               value("L2 Theoretical Sectors Global")});
      }
    }
    return all;
  }();
  return all;
}

// How many of a kernel's patterns `model` gives other numbers for. Loads stand in another order in
// the machine's code: they are compared as a set.
template <class F>
int differences(const std::string& kernel, int bytes, F model) {
  const auto found = measured().find(kernel);
  if (found == measured().end() || found->second.size() != attn::patterns::kCount) return -1;
  std::vector<std::vector<int>> expected, got;
  for (int p = 0; p < attn::patterns::kCount; ++p) {
    const bool whole = kernel == "ldmatrix";  // whose lanes all give an address
    const auto pattern = access(bytes, [&](int lane) {
      const int i = attn::patterns::element(p, lane);
      return whole ? std::max(i, 0) : i;
    });
    const auto [value, ideal] = model(pattern);
    got.push_back({std::popcount(pattern.lanes), value, ideal});
    const Measured& m = found->second[p];
    const bool shared = m.sectors == 0;
    expected.push_back({m.lanes, shared ? m.wavefronts : m.sectors, shared ? m.ideal : 0});
  }
  std::sort(expected.begin(), expected.end());
  std::sort(got.begin(), got.end());
  std::vector<std::vector<int>> missing;
  std::set_difference(expected.begin(), expected.end(), got.begin(), got.end(),
                      std::back_inserter(missing));
  return int(missing.size());
}

TEST(AgainstH200, GlobalMemory) {
  const auto model = [](const WarpAccess& a) { return std::pair(sectors(a), 0); };
  for (int words : {1, 2, 4}) {
    EXPECT_EQ(differences("global_load" + std::to_string(words), 4 * words, model), 0) << words;
    EXPECT_EQ(differences("global_store" + std::to_string(words), 4 * words, model), 0) << words;
  }
}

// (What an atomic moves has no column in that listing: the sum of all patterns, from
// docs/results/h200_patterns_totals.csv, l1tex__t_sectors_pipe_lsu_mem_global_op_red.sum.)
TEST(AgainstH200, Atomics) {
  int total = 0;
  for (int p = 0; p < attn::patterns::kCount; ++p)
    total += atomic_sectors(access(4, [&](int i) { return attn::patterns::element(p, i); }));
  EXPECT_EQ(total, 757);
}

TEST(AgainstH200, SharedStores) {
  for (int words : {1, 2, 4}) {
    EXPECT_EQ(differences("shared_store" + std::to_string(words), 4 * words,
                          [](const WarpAccess& a) {
                            const int found = store_wavefronts(a);
                            return std::pair(found, ideal_wavefronts(a, found));
                          }),
              0)
        << words;
  }
}

TEST(AgainstH200, SharedLoads) {
  const auto model = [](const WarpAccess& a) {
    const int found = load_wavefronts(a);
    return std::pair(found, ideal_wavefronts(a, found));
  };
  EXPECT_EQ(differences("shared_load1", 4, model), 0);
  EXPECT_EQ(differences("shared_load2", 8, model), 0);
  // One of the 64 takes three passes on the H200 where the rule gives four: scattered 16-byte loads
  // by 22 lanes. Why is not known.
  EXPECT_EQ(differences("shared_load4", 16, model), 1);
}

TEST(AgainstH200, Ldmatrix) {
  EXPECT_EQ(differences("ldmatrix", 16,
                        [](const WarpAccess& a) { return std::pair(store_wavefronts(a), 4); }),
            0);
}

}  // namespace
}  // namespace simt::microscope
