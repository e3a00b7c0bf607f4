// The extension module index._core. Each bind_*.cpp adds one part; none of them decides anything.
#include "core/bind_module.h"

NB_MODULE(_core, module) {
  nanobind::set_leak_warnings(false);  // what a Python module keeps until the process ends is no leak
  module.doc() = "The native core of index/: the same answers as its Python form, faster and smaller.";
  kvroute::bind_hashes(module);
  kvroute::bind_tokens(module);
  kvroute::bind_frames(module);
  kvroute::bind_blocks(module);
  kvroute::bind_radix(module);
  kvroute::bind_decision(module);
  kvroute::bind_requests(module);
}
