#include "common/driver/cases.hpp"

#include <algorithm>
#include <cstdlib>
#include <random>
#include <stdexcept>
#include <string>

#include "common/driver/environment.hpp"

namespace attn::driver {
namespace {

constexpr int64_t kLengths[] = {1, 2, 15, 16, 17, 63, 64, 65, 100, 127, 997, 1024};
constexpr int64_t kHeadSizes[] = {1, 8, 10, 32, 48, 60, 64, 100, 128, 200, 256, 512};
constexpr int kSizes = 12;
static_assert(std::size(kLengths) == kSizes && std::size(kHeadSizes) == kSizes);

const Case kManySlices[] = {
    {{65537, 1, 1, 8, 10}, Layout::BHLD},
    {{1, 65537, 2, 10, 8}, Layout::BLHD},
    {{257, 256, 2, 1, 32}, Layout::BLHD},
    {{2, 40000, 3, 8, 1}, Layout::BHLD},
};

// The n-th case at these sizes: batches, heads and layout vary with n.
Case make_case(size_t n, int64_t L, int64_t E, int64_t M) {
  constexpr int64_t kBatchHeads[][2] = {{1, 1}, {1, 2}, {2, 1}, {2, 3}, {3, 2}};
  const auto& [B, H] = kBatchHeads[n % std::size(kBatchHeads)];
  return {{B, H, L, E, M}, n % 2 == 0 ? Layout::BHLD : Layout::BLHD};
}

// Roughly what a case costs an emulated kernel, in multiply-adds: the work itself, the barriers of
// each step, the start of each block.
double cost_of(const Case& c) {
  const auto& [B, H, L, E, M] = c.shape;
  return double(B) * H * (L * (E * M + 512.0) + 1024.0);
}

}  // namespace

std::vector<Case> whole_grid() {
  std::vector<Case> cases(std::begin(kManySlices), std::end(kManySlices));
  for (int64_t L : kLengths)
    for (int64_t E : kHeadSizes)
      for (int64_t M : kHeadSizes) cases.push_back(make_case(cases.size(), L, E, M));
  return cases;
}

Plan covering_plan(double budget, uint64_t seed) {
  std::mt19937_64 random(seed);
  Plan plan;
  const auto add = [&](const Case& next) {
    if (!(cost_of(next) <= budget)) return;
    budget -= cost_of(next);
    plan.cases.push_back(next);
  };
  const auto add_sizes = [&](int64_t L, int64_t E, int64_t M) {
    add(make_case(plan.cases.size(), L, E, M));
  };
  // Each size once, the long with the narrow.
  for (int i = 0; i < kSizes; ++i)
    add_sizes(kLengths[i], kHeadSizes[kSizes - 1 - i], kHeadSizes[(kSizes - i + 4) % kSizes]);
  plan.at_least = plan.cases.size();

  add(kManySlices[random() % std::size(kManySlices)]);
  int short_length = 0;
  for (int64_t E : kHeadSizes)
    for (int64_t M : kHeadSizes) add_sizes(kLengths[short_length++ % 5], E, M);
  for (const auto& [E, M] : {std::pair{64, 64}, {48, 100}, {128, 32}})
    for (int64_t L : kLengths) add_sizes(L, E, M);
  std::vector<Case> rest = whole_grid();
  std::shuffle(rest.begin(), rest.end(), random);
  for (const Case& c : rest)
    if (!has_many_slices(c.shape)) add(c);
  return plan;
}

Plan with_head_sizes_up_to(int64_t limit, Plan plan) {
  Plan within = {{}, 0, plan.seconds};
  for (size_t n = 0; n < plan.cases.size(); ++n) {
    const Case& c = plan.cases[n];
    if (std::max(c.shape.E, c.shape.M) > limit) continue;
    within.cases.push_back(c);
    if (n < plan.at_least) ++within.at_least;
  }
  return within;
}

std::vector<Plan> deal(const Plan& plan, size_t hands) {
  std::vector<Plan> dealt(hands, {{}, 0, plan.seconds / hands});
  // Where a round begins is drawn: head sizes and layouts recur with n, and a hand that got every
  // hands-th case would miss some of them.
  std::mt19937_64 random;
  uint64_t first = 0;
  for (size_t n = 0; n < plan.cases.size(); ++n) {
    if (n % hands == 0) first = random() % hands;
    Plan& hand = dealt[(first + n) % hands];
    hand.cases.push_back(plan.cases[n]);
    if (n < plan.at_least) ++hand.at_least;
  }
  return dealt;
}

Plan verification_plan(bool on_host, size_t kernel_count, uint64_t seed) {
  const char* const given = std::getenv("ATTN_VERIFY_BUDGET");
  if (!given && !on_host && !kEmulated) return {whole_grid()};
  double budget = on_host ? 4e9 : 1e9;
  if (given) {
    char* end = nullptr;
    budget = std::strtod(given, &end);
    if (end == given || *end != '\0') budget = 0;
  }
  Plan plan = covering_plan(budget / kernel_count, seed);
  if (plan.cases.empty())
    throw std::invalid_argument(std::string("ATTN_VERIFY_BUDGET is ") + given +
                                ": expected a number of multiply-adds, as 3e8, enough for a shape");
  plan.seconds = 20;
  return plan;
}

}  // namespace attn::driver
