// The parts of the extension module.
#pragma once

#include <nanobind/nanobind.h>

namespace kvroute {

void bind_frames(nanobind::module_& module);
void bind_hashes(nanobind::module_& module);
void bind_radix(nanobind::module_& module);
void bind_blocks(nanobind::module_& module);
void bind_decision(nanobind::module_& module);
void bind_tokens(nanobind::module_& module);

}  // namespace kvroute
