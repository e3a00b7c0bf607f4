#include "core/request_key.h"

#include <bit>
#include <cstring>
#include <vector>

namespace kvroute {
namespace {

constexpr std::size_t kUsual = 16 * 4;

// A digest is the hash big-endian; we keep those bytes, so the number is byte-swapped on little-endian machines.
RequestKey from_hash(XXH64_hash_t hash) {
  XXH64_canonical_t canonical;
  XXH64_canonicalFromHash(&canonical, hash);
  return key_of_bytes(canonical.digest);
}

}  // namespace

RequestKey key_of_bytes(const std::uint8_t* bytes) {
  RequestKey key;
  std::memcpy(&key, bytes, sizeof key);
  return key;
}

void bytes_of_key(RequestKey key, std::uint8_t* bytes) { std::memcpy(bytes, &key, sizeof key); }

RequestKey child_key(RequestKey parent, const std::uint8_t* tokens, std::size_t size, std::uint8_t* scratch) {
  std::memcpy(scratch, &parent, sizeof parent);
  if (size == kUsual) {  // blocks of 16 tokens: with the length known the compiler unrolls both
    std::memcpy(scratch + sizeof parent, tokens, kUsual);
    return from_hash(XXH3_64bits(scratch, sizeof parent + kUsual));
  }
  std::memcpy(scratch + sizeof parent, tokens, size);
  return from_hash(XXH3_64bits(scratch, sizeof parent + size));
}

RequestKey extended_key(RequestKey parent, std::span<const std::uint8_t> extra) {
  std::vector<std::uint8_t> joined(sizeof parent + 1 + extra.size());
  std::memcpy(joined.data(), &parent, sizeof parent);
  joined[sizeof parent] = 2;
  if (!extra.empty()) std::memcpy(joined.data() + sizeof parent + 1, extra.data(), extra.size());
  return from_hash(XXH3_64bits(joined.data(), joined.size()));
}

}  // namespace kvroute
