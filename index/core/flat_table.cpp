#include "core/flat_table.h"

#include <random>

namespace kvroute {
namespace {

HashSecret drawn() {
  std::random_device device;
  const auto number = [&] { return std::uint64_t{device()} << 32 | device(); };
  return {number(), number() | 1};
}

}  // namespace

const HashSecret kSecret = drawn();

}  // namespace kvroute
