// Whether the handles of an event are all different.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "core/handle_hash.h"

namespace kvroute::radix {

inline bool distinct(std::span<const std::int64_t> handles) {
  if (handles.size() < 2) return true;
  const std::size_t mask = std::bit_ceil(handles.size() * 2) - 1;
  std::vector<std::uint32_t> seen(mask + 1);  // index + 1 of a handle; 0: none
  for (std::size_t index = 0; index < handles.size(); ++index) {
    std::size_t at = handle_hash(handles[index]) & mask;
    for (; seen[at]; at = (at + 1) & mask) {
      if (handles[seen[at] - 1] == handles[index]) return false;
    }
    seen[at] = static_cast<std::uint32_t>(index + 1);
  }
  return true;
}

}  // namespace kvroute::radix
