// The driver as a whole, on a toy stage: what it prints, what it returns, what it leaves behind.
#include "common/driver/driver.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "common/driver/environment.hpp"
#include "common/driver/ladder.hpp"
#include "common/driver/report.hpp"
#include "common/driver/results.hpp"
#include "temporary_folder.hpp"
#include "toy_stage.hpp"

namespace attn::driver {
namespace {

struct Outcome {
  int status;
  std::string out, err;
};

Outcome run_stage(const Stage& stage, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "toy");
  std::vector<char*> argv;
  for (auto& argument : arguments) argv.push_back(argument.data());
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const int status = run(stage, argv.size(), argv.data());
  std::fflush(stdout);
  return {status, testing::internal::GetCapturedStdout(), testing::internal::GetCapturedStderr()};
}

std::vector<nlohmann::json> read_lines(const std::string& path) {
  std::ifstream file(path);
  std::vector<nlohmann::json> records;
  for (std::string line; std::getline(file, line);) records.push_back(nlohmann::json::parse(line));
  return records;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class Driver : public testing::Test {
 protected:
  Driver() { setenv("ATTN_VERIFY_BUDGET", "2e7", 1); }
  ~Driver() override { unsetenv("ATTN_VERIFY_BUDGET"); }
  const TemporaryFolder folder_;
  const std::string results_ = folder_.file("results.jsonl");
};

TEST_F(Driver, VerifiesTimesAndReports) {
  const Outcome outcome = run_stage(toy_stage(), {"--benchmark_min_time=0.01"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  for (const char* part : {"00_toy: a kernel to test the driver with", "runs on: CPU (",
                           "computes: causal product, f32, B,H,L,E,M = 1,2,64,16,16", "verified: ",
                           "worst relative error", "GB/s", "over the one before", "over the first",
                           "second *", "00_toy (second) is ", " first, the one before it, at "})
    EXPECT_TRUE(contains(outcome.out, part)) << part << "\nnot in\n" << outcome.out;
}

TEST_F(Driver, RecordsOneLinePerKernelAndShape) {
  const Outcome outcome =
      run_stage(toy_stage(), {"--shape", "1,1,32,8,8", "--shape", "2,1,16,8,4", "--results",
                              results_, "--benchmark_min_time=3x", "--benchmark_repetitions=5"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const auto records = read_lines(results_);
  ASSERT_EQ(records.size(), 4u);
  const auto& record = records[3];
  EXPECT_EQ(record["schema"], 2);
  EXPECT_EQ(record["stage"], "00_toy");
  EXPECT_EQ(record["kernel"], "second");
  EXPECT_EQ(record["home"], "00_toy");
  EXPECT_EQ(record["baseline"], "first");
  EXPECT_EQ(record["first"], "first");
  EXPECT_EQ(record["picked"], true);
  EXPECT_EQ(record["shape"], (nlohmann::json{{"B", 2}, {"H", 1}, {"L", 16}, {"E", 8}, {"M", 4}}));
  EXPECT_EQ(record["inputs"], "");
  EXPECT_EQ(record["dtype"], "f32");
  EXPECT_EQ(record["samples"], 5);
  EXPECT_EQ(record["bytes"], 4 * 2 * 16 * (8 + 8 + 4 + 4));
  EXPECT_EQ(record["sm"], "host");
  EXPECT_EQ(record["mma_tflop_per_s"], nullptr);
  EXPECT_GT(record["median_ms"], 0);
  EXPECT_LE(record["min_ms"], record["median_ms"]);
  EXPECT_LE(record["median_ms"], record["max_ms"]);
  EXPECT_NEAR(record["speedup"].get<double>(),
              records[2]["median_ms"].get<double>() / record["median_ms"].get<double>(), 1e-3);
  EXPECT_EQ(record["speedup_over_first"], record["speedup"]);
  EXPECT_EQ(records[2]["baseline"], "");
  EXPECT_EQ(records[2]["speedup"], nullptr);
  EXPECT_EQ(records[2]["speedup_over_first"], nullptr);
  EXPECT_LE(record["rel_error"], 1e-5);
  EXPECT_EQ(record["date"].get<std::string>().size(), 20u);
}

TEST_F(Driver, VerifyOnlyTimesAndRecordsNothing) {
  const Outcome outcome = run_stage(toy_stage(), {"--verify-only", "--results", results_});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "verified: "));
  EXPECT_FALSE(contains(outcome.out, "GB/s"));
  EXPECT_FALSE(std::filesystem::exists(results_));
}

struct FaultAndMessage {
  Fault fault;
  std::vector<std::string> message;
};
class DriverFault : public Driver, public testing::WithParamInterface<FaultAndMessage> {};

TEST_P(DriverFault, IsNamedAndNothingIsTimedOrRecorded) {
  const Outcome outcome = run_stage(toy_stage(GetParam().fault), {"--results", results_});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_TRUE(contains(outcome.err, "second at --dtype f32 --shape ")) << outcome.err;
  for (const auto& part : GetParam().message)
    EXPECT_TRUE(contains(outcome.err, part)) << part << "\nnot in\n" << outcome.err;
  EXPECT_FALSE(contains(outcome.out, "GB/s"));
  EXPECT_FALSE(std::filesystem::exists(results_));

  // The stage's other kernel is right.
  EXPECT_EQ(run_stage(toy_stage(GetParam().fault), {"--verify-only", "--kernel", "first"}).status,
            0);
}

INSTANTIATE_TEST_SUITE_P(
    Faults, DriverFault,
    testing::Values(FaultAndMessage{Fault::wrong_element,
                                    {"is wrong: relative error",
                                     "first wrong element o[b=0, h=0, l=0, m=", "expected"}},
                    FaultAndMessage{Fault::unwritten_element,
                                    {"first wrong element o[b=0, h=0, l=0, m=",
                                     "= nan (never written), expected"}},
                    FaultAndMessage{Fault::nan,
                                    {"first wrong element o[b=0, h=0, l=0, m=", "= nan, expected"}},
                    FaultAndMessage{Fault::throws, {"failed: the kernel gave up"}}));

TEST_F(Driver, AFailingCheckIsAFailure) {
  Stage stage = toy_stage();
  Comparison wrong;
  wrong.elements = 1;
  wrong.error_square = wrong.reference_square = 1;
  wrong.first_wrong = {0, 0, 3, 4, 2.0, 1.0, false};
  stage.checks = {{"the layer", 1e-5, [&] { return wrong; }}};
  Outcome outcome = run_stage(stage, {});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_TRUE(contains(outcome.err, "the layer is wrong: relative error 1")) << outcome.err;
  EXPECT_TRUE(contains(outcome.err, " o[b=0, h=0, l=3, m=4] = 2, expected 1")) << outcome.err;

  stage.checks[0].run = [&] { return Finding(wrong, {"state", Axes::BHEM}); };
  outcome = run_stage(stage, {});
  EXPECT_TRUE(contains(outcome.err, " state[b=0, h=0, e=3, m=4] = 2, expected 1")) << outcome.err;

  // A check that compares nothing proves nothing.
  stage.checks = {{"the layer", 1e-5, [] { return Comparison(); }}};
  EXPECT_EQ(run_stage(stage, {}).status, 1);
}

TEST_F(Driver, BadInputGetsOneLineAndStatusTwo) {
  const std::string file = folder_.file("a_file");
  std::ofstream(file) << "x\n";
  const struct {
    std::vector<std::string> arguments;
    std::vector<std::string> parts;  // the flag, and what is accepted
  } kCases[] = {
      {{"--nonsense"}, {"unknown flag --nonsense", "--shape", "--help"}},
      {{"--nonsense=3"}, {"unknown flag --nonsense"}},
      {{"-x"}, {"unknown flag -x"}},
      {{"--per-line"}, {"--per-line", "cmake --preset microscope"}},
      {{"stray"}, {"stray"}},
      {{"--shape"}, {"--shape lacks its value", "B,H,L,E,M"}},
      {{"--shape", "--list"}, {"--shape --list", "B,H,L,E,M"}},
      {{"--shape", "4,4"}, {"--shape 4,4", "expected B,H,L,E,M"}},
      {{"--shape", "0,1,1,1,1"}, {"--shape 0,1,1,1,1", "from 1 up"}},
      {{"--shape", "-1,1,1,1,1"}, {"--shape", "B,H,L,E,M"}},
      {{"--shape=-1,1,1,1,1"}, {"--shape -1,1,1,1,1", "from 1 up"}},
      {{"--shape", "1,1,1,513,1"}, {"at most 512"}},
      {{"--shape", "1e30,1,1,1,1"}, {"--shape 1e30,1,1,1,1"}},
      {{"--shape", "1,1,1,1,1x"}, {"--shape 1,1,1,1,1x"}},
      {{"--shape", "1,1,1,1,1", "1,1,1,1,1"}, {"1,1,1,1,1"}},
      {{"--shape", "1024,1024,1000000,512,512"}, {"--shape 1024,1024,1000000,512,512", "GB"}},
      {{"--dtype", "f16"}, {"--dtype f16", "f32 or bf16"}},
      {{"--dtype", "bf16"}, {"--dtype bf16", "accepted is f32"}},
      {{"--dtype", "f32", "--dtype", "f32"}, {"--dtype is given 2 times"}},
      {{"--inputs", "ones"}, {"--inputs ones", "of one kind", "leave it out"}},
      {{"--seed", "-1"}, {"--seed", "whole number"}},
      {{"--seed=1.5"}, {"--seed 1.5", "whole number"}},
      {{"--seed", ""}, {"--seed", "whole number"}},
      {{"--kernel", "third"}, {"--kernel third", "first, second"}},
      {{"--results", "/no/such/folder/r.jsonl"}, {"--results /no/such/folder/r.jsonl"}},
      {{"--results", folder_.path()}, {"--results", "folder"}},
      {{"--results", file + "/x"}, {"--results"}},
      {{"--results", ""}, {"--results"}},
      {{"--verify-only=maybe"}, {"--verify-only"}},
      {{"--benchmark_nonsense=1"}, {"--benchmark_nonsense"}},
      {{"--benchmark_min_time=x"}, {"--benchmark_min_time=x", "seconds"}},
      {{"--benchmark_min_time=-1"}, {"--benchmark_min_time=-1", "seconds"}},
      {{"--benchmark_min_time=1.5x"}, {"--benchmark_min_time=1.5x"}},
      {{"--benchmark_repetitions=0"}, {"--benchmark_repetitions=0", "whole number"}},
      {{"--benchmark_repetitions"}, {"--benchmark_repetitions"}},
      {{"--benchmark_filter=("}, {"--benchmark_filter=(", "regular expression"}},
      {{"--benchmark_filter=nothing"}, {"--benchmark_filter=nothing", "00_toy/first/"}},
      {{"--benchmark_format=xml"}, {"--benchmark_format=xml", "json"}},
      {{"--benchmark_out=/no/such/folder/x"}, {"--benchmark_out=/no/such/folder/x"}},
  };
  for (const auto& [arguments, parts] : kCases) {
    const Outcome outcome = run_stage(toy_stage(), arguments);
    EXPECT_EQ(outcome.status, 2) << testing::PrintToString(arguments);
    EXPECT_EQ(outcome.out, "") << testing::PrintToString(arguments);
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    for (const auto& part : parts)
      EXPECT_TRUE(contains(outcome.err, part)) << part << "\nnot in\n" << outcome.err;
  }
}

TEST_F(Driver, BadInputLeavesTheResultsFileAsItWas) {
  for (const auto& bad : std::vector<std::vector<std::string>>{
           {"--shape", "4,4"}, {"--nonsense"}, {"--benchmark_nonsense=1"}, {"--kernel", "third"}}) {
    std::vector<std::string> arguments = {"--results", results_};
    arguments.insert(arguments.end(), bad.begin(), bad.end());
    EXPECT_EQ(run_stage(toy_stage(), arguments).status, 2);
    EXPECT_FALSE(std::filesystem::exists(results_));
  }
}

TEST_F(Driver, ListsKernelsAndPick) {
  Stage stage = toy_stage();
  stage.kernels.push_back(toy_bf16_kernel());
  stage.pick = [](const Shape& shape, Dtype dtype) {
    return dtype == Dtype::bf16 ? "third" : shape.L > 100 ? "second" : "first";
  };
  Outcome outcome =
      run_stage(stage, {"--list", "--shape", "1,1,10,8,8", "--shape", "1,1,1000,8,8"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.out,
            "first\nsecond\npicked at 1,1,10,8,8: first\npicked at 1,1,1000,8,8: second\n");
  outcome = run_stage(stage, {"--list", "--dtype", "bf16", "--shape", "1,1,10,8,8"});
  EXPECT_EQ(outcome.out, "third\npicked at 1,1,10,8,8: third\n");
}

TEST_F(Driver, HelpNamesEveryFlag) {
  const Outcome outcome = run_stage(toy_stage(), {"--help"});
  EXPECT_EQ(outcome.status, 0);
  for (const char* flag :
       {"--shape B,H,L,E,M", "--dtype f32|bf16", "--inputs NAME", "--seed N", "--kernel NAME",
        "--verify-only", "--list", "--results FILE", "--benchmark_"})
    EXPECT_TRUE(contains(outcome.out, flag)) << outcome.out;
}

TEST_F(Driver, FilterAndKernelChooseWhatIsTimed) {
  Outcome outcome = run_stage(toy_stage(), {"--benchmark_filter=/first/",
                                            "--benchmark_min_time=0.01", "--results", results_});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "  first ")) << outcome.out;
  EXPECT_FALSE(contains(outcome.out, "  second *")) << outcome.out;

  outcome = run_stage(toy_stage(Fault::throws), {"--kernel", "first", "--benchmark_min_time=0.01"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
}

TEST_F(Driver, ThePreviousStageIsTimedBesideAndFirst) {
  Stage stage = toy_stage();
  Kernel other = toy_bf16_kernel();
  other.name = "00_other_dtype";
  stage.previous = {"00_older", {other, stage.kernels[0]}};
  stage.previous.kernels[1].name = "older";
  const Outcome outcome = run_stage(stage, {"--benchmark_min_time=0.01", "--results", results_});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const auto records = read_lines(results_);
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[0]["stage"], "00_toy");
  EXPECT_EQ(records[0]["home"], "00_older");
  EXPECT_EQ(records[0]["kernel"], "older");
  EXPECT_EQ(records[0]["picked"], false);
  EXPECT_EQ(records[0]["baseline"], "");
  EXPECT_EQ(records[1]["home"], "00_toy");
  EXPECT_EQ(records[1]["baseline"], "older");
  EXPECT_GT(records[1]["speedup"], 0);
  EXPECT_EQ(records[2]["kernel"], "second");
  EXPECT_EQ(records[2]["baseline"], "first");
  EXPECT_EQ(records[2]["first"], "older");
  EXPECT_TRUE(contains(outcome.out, " first, the one before it, at 1,2,64,16,16")) << outcome.out;
  EXPECT_TRUE(contains(outcome.out, " older, the first, at 1,2,64,16,16 f32")) << outcome.out;
}

// Of a stage of several kernels the next one times the one that is picked at the shape, alone.
TEST_F(Driver, OfThePreviousStageItsPickIsTimed) {
  Stage stage = toy_stage();
  stage.previous = {"00_older", stage.kernels, [](const Shape& shape, Dtype) {
                      return shape.L > 100 ? "at long ones" : "at short ones";
                    }};
  stage.previous.kernels[0].name = "at short ones";
  stage.previous.kernels[1].name = "at long ones";
  const Outcome outcome = run_stage(stage, {"--shape", "1,1,10,8,8", "--shape", "1,1,200,8,8",
                                            "--benchmark_min_time=1x", "--results", results_});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const auto records = read_lines(results_);
  ASSERT_EQ(records.size(), 6u);
  EXPECT_EQ(records[0]["kernel"], "at short ones");
  EXPECT_EQ(records[1]["baseline"], "at short ones");
  EXPECT_EQ(records[3]["kernel"], "at long ones");
  EXPECT_EQ(records[4]["baseline"], "at long ones");
}

// What was not timed is named, and no other kernel takes its place.
TEST_F(Driver, ARungBeforeThatWasNotTimedIsNamed) {
  Stage stage = toy_stage();
  stage.previous = {"00_older", {stage.kernels[0]}};
  stage.previous.kernels[0].name = "00_older";
  const Outcome outcome = run_stage(stage, {"--benchmark_filter=/(00_older|second)/",
                                            "--benchmark_min_time=0.01", "--results", results_});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const auto records = read_lines(results_);
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[1]["kernel"], "second");
  EXPECT_EQ(records[1]["baseline"], "first");
  EXPECT_EQ(records[1]["speedup"], nullptr);
  EXPECT_EQ(records[1]["first"], "00_older");
  EXPECT_GT(records[1]["speedup_over_first"], 0);
  for (const char* part : {" first not timed ", "no speedup of 00_toy (second) over first",
                           " 00_older, the first, at 1,2,64,16,16 f32"})
    EXPECT_TRUE(contains(outcome.out, part)) << part << "\nnot in\n" << outcome.out;
}

TEST_F(Driver, KernelsOfTwoDtypes) {
  Stage stage = toy_stage();
  stage.kernels.push_back(toy_bf16_kernel());
  stage.default_dtype = Dtype::bf16;
  Outcome outcome = run_stage(stage, {"--benchmark_min_time=0.01", "--results", results_});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "computes: causal product, bf16, ")) << outcome.out;
  EXPECT_TRUE(contains(outcome.out, "at most 0.003 is right")) << outcome.out;
  const auto records = read_lines(results_);
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0]["kernel"], "third");
  EXPECT_EQ(records[0]["picked"], true);
  EXPECT_EQ(records[0]["dtype"], "bf16");
  EXPECT_EQ(records[0]["bytes"], 2 * 2 * 64 * 4 * 16);
  // Of the inputs' rounding it knows nothing: the truth has the same. The output's costs this much.
  EXPECT_NEAR(records[0]["rel_error"].get<double>(), 1.7e-3, 2e-4);

  EXPECT_EQ(run_stage(stage, {"--list", "--dtype", "f32"}).out,
            "first\nsecond\npicked at 1,2,64,16,16: second\n");

  stage.kernels.back() = toy_bf16_kernel(1.01f);
  outcome = run_stage(stage, {"--verify-only"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_TRUE(contains(outcome.err, "third at --dtype bf16 --shape ")) << outcome.err;
  EXPECT_TRUE(contains(outcome.err, "is wrong: relative error 0.01")) << outcome.err;
  EXPECT_EQ(run_stage(stage, {"--verify-only", "--dtype", "f32"}).status, 0);
}

TEST_F(Driver, VerifyOnlyTakesEachDtypeUnlessOneIsNamed) {
  Stage stage = toy_stage();
  stage.kernels.push_back(toy_bf16_kernel());
  int checked = 0;
  stage.checks = {{"a check", 1, [&] {
                     ++checked;
                     Comparison right;
                     right.elements = 1;
                     return right;
                   }}};
  Outcome outcome = run_stage(stage, {"--verify-only", "--shape", "1,1,3,4,5"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  for (const char* part : {"computes: causal product, f32, bf16, B,H,L,E,M = 1,1,3,4,5",
                           ", 2 f32 kernels: ", ", 1 bf16 kernel: ",
                           "verified: first f32 at 1,1,3,4,5", "verified: third bf16 at 1,1,3,4,5"})
    EXPECT_TRUE(contains(outcome.out, part)) << part << "\nnot in\n" << outcome.out;
  EXPECT_EQ(checked, 1);

  const auto verifies = [&](std::vector<std::string> arguments, const std::string& dtype) {
    const Outcome outcome = run_stage(stage, arguments);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return contains(outcome.out, " " + dtype + " kernel");
  };
  EXPECT_TRUE(verifies({"--verify-only", "--dtype", "bf16"}, "bf16"));
  EXPECT_FALSE(verifies({"--verify-only", "--dtype", "bf16"}, "f32"));
  EXPECT_TRUE(verifies({"--verify-only", "--kernel", "third"}, "bf16"));
  EXPECT_FALSE(verifies({"--verify-only", "--kernel", "third"}, "f32"));
  EXPECT_FALSE(verifies({"--benchmark_min_time=0.01"}, "bf16"));
  EXPECT_EQ(run_stage(stage, {"--list", "--verify-only"}).out, run_stage(stage, {"--list"}).out);
  EXPECT_EQ(run_stage(stage, {"--kernel", "third"}).err,
            "error: --kernel third: expected one of first, second\n");

  stage.kernels.back() = toy_bf16_kernel(1.01f);
  EXPECT_EQ(run_stage(stage, {"--verify-only"}).status, 1);
}

TEST_F(Driver, AKernelsOwnToleranceBindsItAlone) {
  Stage stage = toy_stage();
  const auto exact = stage.kernels[1].run;
  stage.kernels[1].run = [exact](const Tensors& t) {
    exact(t);
    const auto o = t.view<float>("o");
    for (int64_t i = 0; i < o.B * o.H * o.L * o.D; ++i) o.data[i] *= 1.0005f;
  };
  EXPECT_EQ(run_stage(stage, {"--verify-only"}).status, 1);
  stage.kernels[1].tolerance = kTf32Tolerance;
  Outcome outcome = run_stage(stage, {"--verify-only"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "0.0005 (second at ")) << outcome.out;
  EXPECT_TRUE(contains(outcome.out, "at most 0.001 is right")) << outcome.out;

  // The larger error may be the better one.
  stage.kernels[1].tolerance = 1e5;
  outcome = run_stage(stage, {"--verify-only"});
  EXPECT_TRUE(contains(outcome.out, "(first at ")) << outcome.out;
  EXPECT_TRUE(contains(outcome.out, "at most 1e-05 is right")) << outcome.out;

  stage.kernels[0].tolerance = 0;
  outcome = run_stage(stage, {"--verify-only"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_TRUE(contains(outcome.err, "first at ")) << outcome.err;
  EXPECT_TRUE(contains(outcome.err, "at most 0 is right")) << outcome.err;
}

TEST_F(Driver, InputsChooseWhatIsTimedAndRecorded) {
  Stage stage = toy_stage_with_variants();
  stage.previous = {"00_older", {stage.kernels[0]}};
  stage.previous.kernels[0].name = "00_older";
  Outcome outcome = run_stage(stage, {"--benchmark_min_time=0.01", "--results", results_});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "computes: causal product, inputs normal, f32")) << outcome.out;
  EXPECT_TRUE(contains(outcome.out, "causal product, inputs normal at 1,2,64,16,16 f32"))
      << outcome.out;
  outcome =
      run_stage(stage, {"--benchmark_min_time=0.01", "--results", results_, "--inputs", "ones"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.out, ", inputs ones), at most 1e-05 is right")) << outcome.out;
  const auto records = read_lines(results_);
  ASSERT_EQ(records.size(), 5u);  // the default variant alone has a previous stage
  for (size_t i = 0; i < records.size(); ++i)
    EXPECT_EQ(records[i]["inputs"], i < 3 ? "normal" : "ones");
  EXPECT_EQ(records[1]["baseline"], "00_older");
  EXPECT_EQ(records[2]["first"], "00_older");
  EXPECT_EQ(records[3]["baseline"], "");
  EXPECT_EQ(records[4]["first"], "first");

  outcome = run_stage(stage, {"--inputs", "twos"});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_EQ(outcome.err, "error: --inputs twos: expected one of normal, ones\n");
}

TEST_F(Driver, TheGridIsVerifiedOnAllInputs) {
  Stage stage = toy_stage_with_variants();
  const auto exact = stage.kernels[1].run;
  stage.kernels[1].run = [exact](const Tensors& t) {
    exact(t);
    const auto v = t.view<const float>("v");
    const int64_t count = v.B * v.H * v.L * v.D;
    if (std::all_of(v.data, v.data + count, [](float x) { return x == 1; }))
      t.view<float>("o").data[0] += 100;
  };
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{}, {"--inputs", "ones"}}) {
    const Outcome outcome = run_stage(stage, arguments);
    EXPECT_EQ(outcome.status, 1);
    EXPECT_TRUE(contains(outcome.err, "second at --dtype f32 --inputs ones --shape "))
        << outcome.err;
  }
  EXPECT_EQ(run_stage(stage, {"--verify-only", "--inputs", "normal"}).status, 0);
}

// A kernel of another operator is verified and timed on operands of its own, and compared with as
// such: never a baseline, and no record of its own.
TEST_F(Driver, AnotherOperatorIsMarked) {
  Stage stage = toy_stage();
  Stage older = toy_stage();
  older.op.name = "older product";
  older.op.inputs[0].from_normal = [](float x) { return 2 * x; };
  older.kernels[0].name = "00_older (first)";
  stage.others = {{older.op, {older.kernels[0]}}};
  const Outcome outcome = run_stage(stage, {"--benchmark_min_time=1x", "--results", results_});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "verified: 00_older (first) f32 at 1,2,64,16,16"));
  EXPECT_TRUE(contains(outcome.out, "00_older (first), another operator"));
  EXPECT_TRUE(contains(outcome.out, "another operator: 00_toy (second) is "));
  EXPECT_TRUE(contains(outcome.out, "which computes older product"));
  const auto records = read_lines(results_);
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0]["baseline"], "");
  EXPECT_EQ(records[0]["speedup"], nullptr);
  EXPECT_EQ(records[0]["first"], "first");
  EXPECT_EQ(records[1]["others"][0]["operator"], "older product");
  EXPECT_GT(records[1]["others"][0]["median_ms"], 0);

  stage.others[0].kernels[0] = toy_stage(Fault::nan).kernels[1];
  EXPECT_EQ(run_stage(stage, {}).status, 1);
}

// A kernel that this device cannot run is named with the reason, and neither verified, timed nor
// recorded; where there is no other, that is bad input.
TEST_F(Driver, AKernelThatCannotRunIsNotPassed) {
  Stage stage = toy_stage(Fault::throws);  // in `second`
  stage.kernels[1].why_not = [] { return std::string("needs another machine"); };
  stage.checks = {{"of the second", 1, []() -> Finding { throw std::runtime_error("it ran"); },
                   "second", Dtype::f32}};
  stage.pick = [](const Shape&, Dtype) { return "first"; };
  const Outcome outcome = run_stage(stage, {"--benchmark_min_time=1x", "--results", results_});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "not run: second f32: needs another machine\n"));
  EXPECT_FALSE(contains(outcome.out, "verified: second"));
  ASSERT_EQ(read_lines(results_).size(), 1u);
  const Outcome alone = run_stage(stage, {"--kernel", "second"});
  EXPECT_EQ(alone.status, 2);
  EXPECT_EQ(alone.err, "error: not run: second f32: needs another machine\n");
}

TEST_F(Driver, HeadSizesEndWhereTheStageSays) {
  Stage stage = toy_stage();
  stage.max_head_size = 64;
  const auto run = stage.kernels[0].run;
  stage.kernels[0].run = [run](const Tensors& tensors) {
    if (tensors.shape().E > 64 || tensors.shape().M > 64) throw std::runtime_error("too large");
    run(tensors);
  };
  EXPECT_EQ(run_stage(stage, {"--verify-only"}).status, 0);
  const Outcome outcome = run_stage(stage, {"--shape", "1,1,8,8,65"});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_TRUE(
      contains(outcome.err, "--shape 1,1,8,8,65: this stage takes head sizes from 1 to 64"));
}

// What --benchmark_filter leaves out is not verified at the shape either: it may take very long.
TEST_F(Driver, WhatIsNotTimedIsVerifiedOnTheGridOnly) {
  const Outcome outcome =
      run_stage(toy_stage(), {"--benchmark_filter=/first/", "--benchmark_min_time=1x"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "verified: first f32 at 1,2,64,16,16"));
  EXPECT_FALSE(contains(outcome.out, "verified: second f32 at 1,2,64,16,16"));
}

Kernel rung(const char* name, Dtype dtype = Dtype::f32) { return {name, dtype, {}, {}}; }

struct Ladder : testing::Test {
  Ladder() {
    stage.kernels = {rung("slow"), rung("slower, in bf16", Dtype::bf16), rung("middling"),
                     rung("quick"), rung("quick, in bf16", Dtype::bf16)};
    previous = {"00_older", {rung("few heads"), rung("many heads")}, [](const Shape& shape, Dtype) {
                  return shape.H < 8 ? "few heads" : "many heads";
                }};
  }

  std::string before(size_t kernel, const Shape& shape = {1, 1, 1, 1, 1}) const {
    const Kernel* found = rung_before(stage.kernels[kernel], stage, previous, shape);
    return found ? found->name : "none";
  }

  // A row of the stage's operator, or of another one.
  Row row(const Kernel& kernel, double ms, const Kernel* before, const Shape& shape = {}) const {
    return {&kernel, stage.name, &stage.op, shape, false, before, {}, {ms, ms, ms, 1}};
  }

  Stage stage = toy_stage();
  Previous previous;
};

TEST_F(Ladder, TheRungBeforeIsOfTheSameDtype) {
  EXPECT_EQ(before(3), "middling");
  EXPECT_EQ(before(2), "slow");
  EXPECT_EQ(before(4), "slower, in bf16");
}

TEST_F(Ladder, TheRungBeforeTheFirstIsWhatTheStageBeforePicks) {
  EXPECT_EQ(before(0), "few heads");
  EXPECT_EQ(before(0, {1, 8, 1, 1, 1}), "many heads");
  EXPECT_EQ(before(1), "none") << "the stage before has no bf16";
  previous.pick = {};
  EXPECT_EQ(before(0), "many heads") << "the last";
  previous = {};
  EXPECT_EQ(before(0), "none");
}

TEST_F(Ladder, APickThatIsNoKernelIsAnError) {
  previous.pick = [](const Shape&, Dtype) { return "nobody"; };
  EXPECT_THROW(before(0), std::logic_error);
}

TEST_F(Ladder, SpeedupsAreOverTheOneBeforeAndOverTheFirst) {
  const Kernel *slow = &stage.kernels[0], *middling = &stage.kernels[2], *quick = &stage.kernels[3];
  const Shape shape = {1, 1, 4, 4, 4}, longer = {1, 1, 8, 4, 4};
  Row other = row(stage.kernels[1], 100, slow, shape);
  const Operator another;
  other.op = &another;
  std::vector<Row> rows = {other,
                           row(*slow, 12, nullptr, shape),
                           row(*middling, 24, slow, shape),
                           row(*quick, 2, middling, shape),
                           row(*slow, 50, nullptr, longer),
                           row(*quick, 5, middling, longer)};
  compare_rungs(rows, stage.op);
  EXPECT_FALSE(rows[0].first || rows[0].over_before || rows[0].over_first) << "not alike";
  EXPECT_EQ(rows[1].first, slow);
  EXPECT_FALSE(rows[1].over_before || rows[1].over_first);
  EXPECT_EQ(rows[2].over_before, 0.5);
  EXPECT_EQ(rows[2].over_first, 0.5);
  EXPECT_EQ(rows[3].over_before, 12);
  EXPECT_EQ(rows[3].over_first, 6);
  EXPECT_FALSE(rows[5].over_before) << "middling was not timed at this shape";
  EXPECT_EQ(rows[5].over_first, 10);
}

// The slowest of a kernel's traffic, arithmetic and matrix products.
TEST(Predicted, IsTheSlowestOfTheCostModel) {
  Stage stage = toy_stage();
  const auto predicted_ms = [&](const Cost& cost, const Rates& rates) {
    stage.kernels[0].cost = [cost](const Shape&) { return cost; };
    const Row row{.kernel = &stage.kernels[0],
                  .stage = stage.name,
                  .op = &stage.op,
                  .shape = stage.default_shape,
                  .picked = true,
                  .before = nullptr,
                  .error = {},
                  .timing = {1, 1, 1, 1}};
    return make_records(stage, stage.op, Dtype::f32, {row}, rates, {})[0]["predicted_ms"];
  };
  const Rates rates{4e12, 5e13, 6e14};
  EXPECT_EQ(predicted_ms({8e9, 1e9, 1e9}, rates), 2);
  EXPECT_EQ(predicted_ms({8e9, 15e10, 1e9}, rates), 3);
  EXPECT_EQ(predicted_ms({8e9, 15e10, 24e11}, rates), 4);
  EXPECT_EQ(predicted_ms({8e9, 15e10}, {4e12, 5e13, 0}), 3);
  EXPECT_EQ(predicted_ms({8e9, 15e10, 24e11}, {4e12, 5e13, 0}), nullptr);
  EXPECT_EQ(predicted_ms({8e9, 15e10}, {4e12, 0, 0}), nullptr);
}

// One row for each kernel that a stage picks, the newest; older files know of no inputs.
TEST(Recorded, IsGroupedByInputs) {
  const auto record = [](const char* day, double ms, Record more) {
    Record made = {{"schema", 1},    {"stage", "00_toy"},    {"kernel", "second"}, {"picked", true},
                   {"dtype", "f32"}, {"device", "Some GPU"}, {"median_ms", ms},    {"date", day},
                   {"sm", "9.0"},    {"commit", "0a1b"}};
    made.update(more);
    return made;
  };
  const auto printed = [](const TemporaryFolder& folder) {
    testing::internal::CaptureStdout();
    print_recorded(toy_stage(), folder.path());
    return testing::internal::GetCapturedStdout();
  };
  const TemporaryFolder folder;
  append_records(folder.file("r.jsonl"), {record("2026-01-01", 9, {{"picked", false}})});
  EXPECT_TRUE(contains(printed(folder), "  kernel\n"));  // nothing picked: nothing to table
  append_records(folder.file("r.jsonl"), {record("2026-01-01", 1.25, Record::object()),
                                          record("2026-01-02", 1.5, {{"inputs", ""}})});
  std::string out = printed(folder);
  EXPECT_FALSE(contains(out, "inputs")) << out;
  EXPECT_FALSE(contains(out, "1.25")) << out;
  EXPECT_TRUE(contains(out, "1.5")) << out;

  append_records(folder.file("r.jsonl"), {record("2026-01-03", 3.5, {{"inputs", "ones"}})});
  out = printed(folder);
  EXPECT_TRUE(contains(out, "inputs")) << out;
  EXPECT_TRUE(contains(out, "1.5")) << out;
  EXPECT_TRUE(contains(out, "ones")) << out;
  EXPECT_TRUE(contains(out, "3.5")) << out;
}

// Without a GPU: kernels are verified, in emulation; nothing is timed or recorded, and it says so.
TEST_F(Driver, AnEmulatedStageClaimsNoSpeedup) {
  if (!kEmulated) GTEST_SKIP() << "the CPU build only";
  Stage stage = toy_stage();
  stage.on_host = false;
  const Outcome outcome = run_stage(stage, {"--results", results_});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "runs on: CPU, emulated")) << outcome.out;
  EXPECT_TRUE(contains(outcome.out, "verified: "));
  EXPECT_TRUE(contains(outcome.out, "nothing is timed, no speedup is claimed"));
  EXPECT_TRUE(contains(outcome.out, "No GPU figures of this stage are recorded"));
  EXPECT_FALSE(contains(outcome.out, "faster"));
  EXPECT_FALSE(std::filesystem::exists(results_));
}

}  // namespace
}  // namespace attn::driver
