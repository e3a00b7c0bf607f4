// Our own chained key of a block and what precedes it: index/request_key.py says what it covers.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace kvroute {

static_assert(std::endian::native == std::endian::little, "token ids are hashed as they lie in memory");

// The 8 digest bytes of the Python form, as a number read in memory order: only equality and bytes matter.
using RequestKey = std::uint64_t;

RequestKey key_of_bytes(const std::uint8_t* bytes);

void bytes_of_key(RequestKey key, std::uint8_t* bytes);

// The key of a block of `size` token bytes below `parent`. `scratch` must have room for 8 + size bytes.
RequestKey child_key(RequestKey parent, const std::uint8_t* tokens, std::size_t size, std::uint8_t* scratch);

// The parent key of a block with extra keys of its own; `extra` are they, joined as Python does.
RequestKey extended_key(RequestKey parent, std::span<const std::uint8_t> extra);

}  // namespace kvroute
