// Runs a test under every order in which the emulator can run threads; on a GPU, once.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>

class InEveryOrder : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { setenv("SIMT_ORDER", GetParam(), 1); }
  void TearDown() override { unsetenv("SIMT_ORDER"); }
};

#ifdef ATTN_SIMT
INSTANTIATE_TEST_SUITE_P(, InEveryOrder, testing::Values("forward", "reverse", "random"),
                         [](const auto& order) { return order.param; });
#else
INSTANTIATE_TEST_SUITE_P(, InEveryOrder, testing::Values("hardware"),
                         [](const auto& order) { return order.param; });
#endif
