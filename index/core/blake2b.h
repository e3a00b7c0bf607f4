// BLAKE2b with an 8-byte digest and no key (RFC 7693): how handles are made for hashes that are no int64.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvroute::radix {

// The digest, read big-endian and signed, as `handle_of` in index/radix_holder.py reads it.
std::int64_t blake2b_handle(const std::uint8_t* bytes, std::size_t count);

}  // namespace kvroute::radix
