#include "common/driver/verify.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "toy_stage.hpp"

namespace attn::driver {
namespace {

// What the design asks every stage to survive.
const std::set<int64_t> kLengths = {1, 2, 15, 16, 17, 63, 64, 65, 100, 127, 997, 1024};
const std::set<int64_t> kHeadSizes = {1, 8, 10, 32, 48, 60, 64, 100, 128, 200, 256, 512};

struct Covered {
  std::set<int64_t> lengths, e, m;
  std::set<std::pair<int64_t, int64_t>> head_size_pairs;
  std::set<Layout> layouts;
  int64_t most_slices = 0, fewest_slices = 1 << 30;

  explicit Covered(const std::vector<Case>& cases) {
    for (const auto& [shape, layout] : cases) {
      lengths.insert(shape.L);
      e.insert(shape.E);
      m.insert(shape.M);
      head_size_pairs.insert({shape.E, shape.M});
      layouts.insert(layout);
      most_slices = std::max(most_slices, shape.B * shape.H);
      fewest_slices = std::min(fewest_slices, shape.B * shape.H);
    }
  }
};

void expect_all_sizes(const Covered& covered) {
  EXPECT_TRUE(std::includes(covered.lengths.begin(), covered.lengths.end(), kLengths.begin(),
                            kLengths.end()));
  EXPECT_EQ(covered.e, kHeadSizes);
  EXPECT_TRUE(
      std::includes(covered.m.begin(), covered.m.end(), kHeadSizes.begin(), kHeadSizes.end()));
  EXPECT_EQ(covered.layouts.size(), 2u);
}

TEST(VerificationGrid, HoldsEveryCombination) {
  const auto cases = whole_grid();
  expect_all_sizes(Covered(cases));
  int64_t few_slices = 0;
  for (const Case& c : cases) few_slices += c.shape.B * c.shape.H < 100;
  EXPECT_EQ(few_slices, 12 * 12 * 12);
  EXPECT_GT(Covered(cases).most_slices, 65535);
  EXPECT_EQ(Covered(cases).fewest_slices, 1);
  const auto many = [&](auto&& condition) {
    return std::any_of(cases.begin(), cases.end(), condition);
  };
  EXPECT_TRUE(many([](const Case& c) { return c.shape.B > 65535; }));
  EXPECT_TRUE(many([](const Case& c) { return c.shape.H > 65535; }));
}

TEST(VerificationGrid, SubsetCoversEverySizeAndPairOfHeadSizes) {
  for (uint64_t seed : {0, 1, 2}) {
    const Covered covered(covering_plan(5e8, seed).cases);
    expect_all_sizes(covered);
    EXPECT_EQ(covered.head_size_pairs.size(), 12u * 12);
    EXPECT_GT(covered.most_slices, 65535);
    EXPECT_EQ(covered.fewest_slices, 1);
  }
}

TEST(VerificationGrid, ASmallBudgetStillCoversEverySize) {
  const Plan plan = covering_plan(3e7, 0);
  const auto& cases = plan.cases;
  EXPECT_EQ(plan.at_least, 12u);
  expect_all_sizes(Covered(cases));
  EXPECT_LT(cases.size(), 300u);
}

TEST(VerificationGrid, TheBudgetIsReadFromTheEnvironment) {
  setenv("ATTN_VERIFY_BUDGET", "6e7", 1);
  EXPECT_EQ(verification_plan(true, 2, 0).cases, covering_plan(3e7, 0).cases);
  for (const char* bad : {"", "x", "1e8x", "-1", "0", "1", "nan"}) {
    setenv("ATTN_VERIFY_BUDGET", bad, 1);
    EXPECT_THROW(verification_plan(true, 2, 0), std::invalid_argument) << bad;
  }
  unsetenv("ATTN_VERIFY_BUDGET");
}

TEST(VerificationGrid, IsDealtOutEvenly) {
  for (size_t hands : {1, 2, 4, 5}) {
    Plan plan{whole_grid(), 12, 20};
    const auto dealt = deal(plan, hands);
    ASSERT_EQ(dealt.size(), hands);
    size_t cases = 0, at_least = 0;
    for (const Plan& hand : dealt) {
      EXPECT_NEAR(hand.cases.size(), double(plan.cases.size()) / hands, 1);
      EXPECT_NEAR(hand.at_least, 12. / hands, 1);
      EXPECT_EQ(hand.seconds, 20. / hands);
      const Covered covered(hand.cases);
      expect_all_sizes(covered);
      EXPECT_GT(covered.head_size_pairs.size(), 120u);  // of 144
      cases += hand.cases.size();
      at_least += hand.at_least;
    }
    EXPECT_EQ(cases, plan.cases.size());
    EXPECT_EQ(at_least, plan.at_least);
  }
}

// A kernel that is wrong only in one slice of many, which a sample may miss, still has to write it.
TEST(Verifier, FindsAnUnwrittenElementOutsideTheSample) {
  const Stage stage = toy_stage();
  const Kernel kernel{"careless",
                      Dtype::f32,
                      [&](const Tensors& t) {
                        const auto o = t.view<float>("o");
                        float& element = o.row(0, 40001, 0)[1];
                        const float poison = element;
                        stage.kernels[0].run(t);
                        element = poison;
                      },
                      {}};
  const Verifier verifier(stage.op, Dtype::f32, 0, true);
  try {
    verifier.run({&kernel}, {{{{1, 70000, 1, 2, 2}, Layout::BLHD}}});
    ADD_FAILURE() << "not found";
  } catch (const WrongResult& error) {
    EXPECT_NE(std::string(error.what()).find("o[b=0, h=40001, l=0, m=1] = nan (never written)"),
              std::string::npos)
        << error.what();
  }
}

// Float32 dot products that cancel must not fail a right kernel, whatever the seed.
// Of a long sequence whose rows need no other, a sample is compared: a wrong element in it is found,
// and named by its own row; an element outside it must be written.
TEST(Verifier, SamplesRowsWhereTheReferenceCan) {
  Stage stage = toy_stage();
  std::vector<int64_t> steps;
  const auto reference = stage.op.reference;
  stage.op.reference_rows = [&, reference](const Shape& s, const std::vector<Matrix>& inputs,
                                           RowSample sample) {
    steps.push_back(sample.step);
    const Matrix all = reference(s, inputs)[0];
    Matrix rows((all.rows - 1 - sample.first) / sample.step + 1, all.cols);
    for (int64_t i = 0; i < rows.rows; ++i)
      for (int64_t m = 0; m < rows.cols; ++m) rows(i, m) = all(sample.first + i * sample.step, m);
    return std::vector<Matrix>{rows};
  };
  const Shape shape = {1, 1, 100, 8, 8};
  stage.op.flops = [](const Shape&) { return 4.2e9; };  // as if it were long: every seventh row
  int64_t wrong_row = -1;
  float wrong = 0;
  const auto run = stage.kernels[0].run;
  stage.kernels[0].run = [&](const Tensors& tensors) {
    run(tensors);
    if (wrong_row >= 0) tensors.view<float>("o").row(0, 0, wrong_row)[3] = wrong;
  };
  const Verifier verifier(stage.op, Dtype::f32, 1, /*on_host=*/true);
  const auto message = [&](int64_t row, float value) {
    wrong_row = row;
    wrong = value;
    try {
      verifier.run({&stage.kernels[0]}, {{{shape, Layout::BHLD}}});
    } catch (const WrongResult& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(message(-1, 0), "");
  EXPECT_EQ(steps, std::vector<int64_t>{7});
  EXPECT_NE(message(99, 1e3).find("o[b=0, h=0, l=99, m=3]"), std::string::npos);
  EXPECT_NE(message(92, 1e3).find("o[b=0, h=0, l=92, m=3]"), std::string::npos);
  EXPECT_EQ(message(98, 1e3), "");
  EXPECT_NE(message(98, std::nanf("")).find("o[b=0, h=0, l=98, m=3]"), std::string::npos);
}

TEST(Verifier, TinyShapesPassAtManySeeds) {
  const Stage stage = toy_stage();
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const Verifier verifier(stage.op, Dtype::f32, seed, true);
    verifier.run({&stage.kernels[0]}, {{{{1, 1, 1, 10, 1}, Layout::BHLD},
                                        {{1, 1, 2, 8, 3}, Layout::BLHD},
                                        {{1, 2, 1, 512, 1}, Layout::BHLD}}});
  }
}

// Slow kernels are verified on fewer shapes, but never on fewer than the plan's least.
TEST(Verifier, StopsWhenTimeIsUp) {
  const Stage stage = toy_stage();
  const Verifier verifier(stage.op, Dtype::f32, 0, true);
  Plan plan = covering_plan(1e8, 0);
  plan.seconds = 0;
  const auto verified = verifier.run({&stage.kernels[0]}, plan);
  ASSERT_EQ(verified.size(), plan.at_least);
  for (size_t i = 0; i < verified.size(); ++i) EXPECT_EQ(verified[i].at, plan.cases[i]);
}

}  // namespace
}  // namespace attn::driver
