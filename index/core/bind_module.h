// The parts of the extension module, and what they share.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <span>

namespace kvroute {

// What a bytes object holds; valid as long as the object.
inline std::span<const std::uint8_t> bytes_of(const nanobind::bytes& value) {
  return {static_cast<const std::uint8_t*>(value.data()), value.size()};
}

void bind_frames(nanobind::module_& module);
void bind_hashes(nanobind::module_& module);
void bind_radix(nanobind::module_& module);
void bind_blocks(nanobind::module_& module);
void bind_decision(nanobind::module_& module);
void bind_requests(nanobind::module_& module);
void bind_tokens(nanobind::module_& module);

}  // namespace kvroute
