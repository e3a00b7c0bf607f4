#include "core/block_digest.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/big_endian.h"
#include "core/sha256.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace kvroute {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are written as they lie in memory");

constexpr std::array<std::string_view, 4> kNames = {"sha256", "sha256_cbor", "xxhash", "xxhash_cbor"};

// What surrounds the tokens: at most a head, the parent and a tail, and the 8 bytes that every token is stored with.
constexpr std::size_t kAround = 64;
constexpr std::size_t kMostPerToken = 7;

std::uint8_t* put(std::uint8_t* at, std::span<const std::uint8_t> bytes) {
  if (!bytes.empty()) std::memcpy(at, bytes.data(), bytes.size());
  return at + bytes.size();
}

template <class... Bytes>
std::uint8_t* put_bytes(std::uint8_t* at, Bytes... bytes) {
  ((*at++ = static_cast<std::uint8_t>(bytes)), ...);
  return at;
}

std::uint32_t token_at(const std::uint8_t* tokens, std::size_t at) {
  std::uint32_t token;
  std::memcpy(&token, tokens + 4 * at, sizeof token);
  return token;
}

// Both token writers store 8 bytes each time and go on by what the token takes: no branch depends on a token.

// BININT1, BININT2, BININT, and LONG1 with five bytes from 2^31 on.
std::uint8_t* pickled_tokens(std::uint8_t* at, const std::uint8_t* tokens, std::size_t count) {
  constexpr std::uint64_t kHead[] = {'K', 'M', 'J', 0x058a};
  constexpr unsigned kShift[] = {8, 8, 8, 16}, kSize[] = {2, 3, 5, 7};
  for (std::size_t number = 0; number < count; ++number) {
    const std::uint32_t token = token_at(tokens, number);
    const unsigned form = (token > 0xff) + (token > 0xffff) + (token > 0x7fffffff);
    const std::uint64_t stored = kHead[form] | std::uint64_t{token} << kShift[form];
    std::memcpy(at, &stored, sizeof stored);
    at += kSize[form];
  }
  return at;
}

std::uint32_t swapped(std::uint32_t value) {
  return value << 24 | (value & 0xff00) << 8 | (value >> 8 & 0xff00) | value >> 24;
}

// Unsigned numbers big-endian, in one byte up to 23 and behind a tag of their width from there on.
std::uint8_t* cbor_tokens(std::uint8_t* at, const std::uint8_t* tokens, std::size_t count) {
  constexpr std::uint64_t kHead[] = {0, 0x18, 0x19, 0x1a};
  constexpr unsigned kShift[] = {0, 8, 8, 8}, kUnused[] = {24, 24, 16, 0}, kSize[] = {1, 2, 3, 5};
  for (std::size_t number = 0; number < count; ++number) {
    const std::uint32_t token = token_at(tokens, number);
    const unsigned form = (token > 23) + (token > 0xff) + (token > 0xffff);
    const std::uint64_t stored = kHead[form] | std::uint64_t{swapped(token) >> kUnused[form]} << kShift[form];
    std::memcpy(at, &stored, sizeof stored);
    at += kSize[form];
  }
  return at;
}

// A tuple of up to three has no MARK but an opcode of its own; the empty one is not remembered.
std::uint8_t* pickled_tuple(std::uint8_t* at, const std::uint8_t* tokens, std::size_t count) {
  if (count == 0) return put_bytes(at, ')');
  if (count > 3) at = put_bytes(at, '(');
  at = pickled_tokens(at, tokens, count);
  return put_bytes(at, count > 3 ? std::size_t{'t'} : 0x84 + count, 0x94);
}

std::uint8_t* pickled(std::uint8_t* at, std::span<const std::uint8_t> parent, const std::uint8_t* tokens,
                      std::size_t count) {
  at = put_bytes(at, 0x80, 5, 0x95);  // PROTO 5, FRAME
  std::uint8_t* const frame = at;
  at = put(put_bytes(at + sizeof(std::uint64_t), 'C', parent.size()), parent);  // SHORT_BINBYTES
  at = pickled_tuple(put_bytes(at, 0x94), tokens, count);                       // MEMOIZE, the tuple
  at = put_bytes(at, 'N', 0x87, 0x94, '.');                                     // NONE, TUPLE3, MEMOIZE, STOP
  const std::uint64_t length = static_cast<std::uint64_t>(at - frame) - sizeof length;
  std::memcpy(frame, &length, sizeof length);
  return at;
}

// A major type with a length of up to 16 bits.
std::uint8_t* cbor_head(std::uint8_t* at, std::uint8_t major, std::size_t length) {
  if (length < 24) return put_bytes(at, major | length);
  if (length < 0x100) return put_bytes(at, major | 24, length);
  return put_bytes(at, major | 25, length >> 8, length);
}

std::uint8_t* as_cbor(std::uint8_t* at, std::span<const std::uint8_t> parent, const std::uint8_t* tokens,
                      std::size_t count) {
  at = put(cbor_head(put_bytes(at, 0x83), 0x40, parent.size()), parent);
  at = cbor_tokens(cbor_head(at, 0x80, count), tokens, count);
  return put_bytes(at, 0xf6);
}

BlockDigest sha_digest(std::span<const std::uint8_t> message) {
  const Sha256Digest digest = sha256(message);
  return {digest.size(), digest};
}

BlockDigest xxh_digest(std::span<const std::uint8_t> message) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(message.data(), message.size()));
  BlockDigest digest{sizeof canonical.digest, {}};
  std::memcpy(digest.bytes.data(), canonical.digest, sizeof canonical.digest);
  return digest;
}

}  // namespace

std::optional<HashAlgorithm> algorithm_named(std::string_view name) {
  const auto found = std::find(kNames.begin(), kNames.end(), name);
  if (found == kNames.end()) return std::nullopt;
  return static_cast<HashAlgorithm>(found - kNames.begin());
}

std::uint64_t BlockDigest::wire_number() const {
  return big_endian64(bytes.data() + size - 8);
}

BlockDigester::BlockDigester(HashAlgorithm algorithm) : algorithm_(algorithm) {}

std::size_t BlockDigester::digest_size() const { return is_sha() ? sizeof(Sha256Digest) : sizeof(XXH128_canonical_t); }

BlockDigest BlockDigester::digest(std::span<const std::uint8_t> parent, std::span<const std::uint8_t> tokens) {
  const std::size_t count = tokens.size() / 4;
  const std::size_t room = kAround + parent.size() + kMostPerToken * count;
  if (written_.size() < room) written_.resize(room);
  std::uint8_t* const begin = written_.data();
  const std::uint8_t* const end = (is_cbor() ? as_cbor : pickled)(begin, parent, tokens.data(), count);
  const std::span<const std::uint8_t> message(begin, static_cast<std::size_t>(end - begin));
  return is_sha() ? sha_digest(message) : xxh_digest(message);
}

}  // namespace kvroute
