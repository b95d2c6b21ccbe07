// Places in the code: an instruction, and the calls that led to it.
//
// A place is a number. Its parent is the place of the call that it was reached by; 0 is the kernel's
// caller. What is known of an instruction is the address of the code after it.
#pragma once

#include <cstdint>
#include <vector>

namespace simt::microscope {

using Place = uint32_t;

constexpr Place kRoot = 0;

// The same number whenever it is asked for the same; from any OS thread.
Place place_of(Place parent, const void* return_address);

Place parent_of(Place place);
uintptr_t return_address_of(Place place);

// The return addresses from the outermost call to the place itself.
std::vector<uintptr_t> path_of(Place place);

// Whether code at `a` stands before that at `b`, as if every call were written out where it stands.
// The lanes of a warp that are the furthest behind in this order go on first: so those that took a
// branch, or one more turn of a loop, meet the others again behind it.
bool stands_before(Place a, Place b);

}  // namespace simt::microscope
