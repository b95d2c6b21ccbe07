#include "common/shape.hpp"

#include <gtest/gtest.h>

#include <stdexcept>

namespace attn {
namespace {

TEST(Shape, ParsesWhatItPrints) {
  const Shape shape{16, 8, 4096, 64, 128};
  EXPECT_EQ(to_string(shape), "16,8,4096,64,128");
  EXPECT_EQ(parse_shape(to_string(shape)), shape);
  EXPECT_EQ(parse_shape("1,70000,1,512,512"), (Shape{1, 70000, 1, 512, 512}));
}

TEST(Shape, RejectsInOneLineWhatIsNoShape) {
  for (const char* text : {"",
                           "4,4",
                           "1,1,1,1",
                           "1,1,1,1,1,1",
                           "1,1,1,1,1x",
                           "1,1,1,1,1,",
                           ",1,1,1,1",
                           "1, 1,1,1,1",
                           "0,1,1,1,1",
                           "1,-1,1,1,1",
                           "+1,1,1,1,1",
                           "1,1,1,513,1",
                           "1,1,1,1,513",
                           "1e30,1,1,1,1",
                           "1.5,1,1,1,1",
                           "99999999999999999999,1,1,1,1",
                           "4294967296,4294967296,1,1,1",
                           "9223372036854775807,2,1,1,1",
                           "1,1,1073741825,1,1",
                           "nan,1,1,1,1"}) {
    try {
      parse_shape(text);
      ADD_FAILURE() << "accepted " << text;
    } catch (const std::invalid_argument& error) {
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
      EXPECT_NE(std::string(error.what()).find("B,H,L,E,M"), std::string::npos);
    }
  }
}

TEST(Dtype, ParsesWhatItPrints) {
  EXPECT_EQ(parse_dtype("f32"), Dtype::f32);
  EXPECT_EQ(parse_dtype("bf16"), Dtype::bf16);
  EXPECT_EQ(to_string(Dtype::bf16), "bf16");
  EXPECT_THROW(parse_dtype("f16"), std::invalid_argument);
  EXPECT_THROW(parse_dtype(""), std::invalid_argument);
}

}  // namespace
}  // namespace attn
