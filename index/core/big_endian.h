// Numbers whose first byte is the most significant.
#pragma once

#include <cstdint>

namespace kvroute {

// Of eight bytes.
inline std::uint64_t big_endian64(const std::uint8_t* bytes) {
  std::uint64_t number = 0;
  for (int at = 0; at < 8; ++at) number = number << 8 | bytes[at];
  return number;
}

}  // namespace kvroute
