// The launches of a session of the microscope.
//
//   start_counting();
//   ... launches ...
//   for (const CountedLaunch& launch : stop_counting()) ...
#pragma once

#include "simt/emulator.hpp"

#ifndef SIMT_MICROSCOPE

namespace simt::microscope {
inline void begin_launch(const void*, Site, dim3, dim3) {}
inline void end_launch() {}
}  // namespace simt::microscope

#else

#include <vector>

#include "common/simt/microscope/counts.hpp"

namespace simt::microscope {

void start_counting();
std::vector<CountedLaunch> stop_counting();
bool counting();

// Called by the emulator: around a launch, and by each worker that took part when it is done.
void begin_launch(const void* kernel, Site site, dim3 grid, dim3 block);
void add_to_launch(const Counts& counts, std::size_t shared_bytes, uint32_t most_atomics);
void end_launch();

}  // namespace simt::microscope

#endif
