// Sizes of k and v for a stage's own checks: the usual, and such as fp16 does not hold.
#pragma once

namespace attn::driver {

// What k and v are made of, and the initial state, which is as large as their products: functions of
// numbers from N(0, 1).
struct Sizes {
  const char* name;
  float (*k)(float);
  float (*v)(float);
  float (*state)(float);
};
inline float as_drawn(float x) { return x; }
constexpr Sizes kUsualSizes = {"usual", as_drawn, as_drawn, as_drawn};

// Of all numbers, or of so few that they stand in some packets only.
inline float huge(float x) { return x * 0x1p20f; }
inline float tiny(float x) { return x * 0x1p-20f; }
inline float large(float x) { return x * 1024; }
inline float some_too_large(float x) { return x > 3.3f ? 7e4f : large(x); }
constexpr Sizes kUnusualSizes[] = {{"k huge", huge, as_drawn, huge},
                                   {"v huge", as_drawn, huge, huge},
                                   {"k tiny", tiny, as_drawn, tiny},
                                   {"v tiny", as_drawn, tiny, tiny},
                                   {"some k too large", some_too_large, as_drawn, large},
                                   {"some v too large", as_drawn, some_too_large, large}};

}  // namespace attn::driver
