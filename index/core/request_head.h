// The head of an HTTP request, apart from the length of the body (app/known_heads.py).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace kvroute {

// Where the digits of the first content-length stand, what they say, and where the body begins.
struct HeadLength {
  std::size_t begin, end;
  std::uint64_t length;
  std::size_t body_at;
};

// Nothing where no head ends within the first `most` bytes, or where it has no length of plain decimal digits after
// "content-length: ", 15 at most.
std::optional<HeadLength> head_length(std::string_view data, std::size_t most);

}  // namespace kvroute
