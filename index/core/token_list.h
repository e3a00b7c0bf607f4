// The token ids in the JSON body of a routing request, without a Python object per id.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace kvroute {

// Where a list of ids stands in a body: from its '[' to after its ']', with so many elements if it is well-formed.
struct TokenSpan {
  std::size_t begin, end, count;
};

// The value of the first member "token_ids" or "prompt" of the outermost object that is a list. Nothing where there is
// none, or where finding it needs more than following strings and brackets (keys with escapes). What stands around the
// list is not judged: if the body with any list in its place is JSON, the place is right.
std::optional<TokenSpan> find_tokens(std::string_view body);

// Reads a list as `find_tokens` found it: at least one id of 0..2^32-1, written as JSON integers without sign, fraction
// or exponent. Writes `count` little-endian u32 to `out`; false, with `out` undefined, for anything else.
bool read_tokens(std::string_view list, std::size_t count, std::uint8_t* out);

}  // namespace kvroute
