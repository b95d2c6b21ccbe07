// kSanitized: is this code compiled for AddressSanitizer or ThreadSanitizer? Both take several times
// as long to compile a kernel. Where a kernel comes in many sizes, two or three of them are enough
// for a sanitizer: the source is the same, and the build without sanitizers verifies them all.
#pragma once

namespace attn {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace attn
