// vLLM's hash of one block without extra keys: index/block_hash.py says what it covers.
//
// What is hashed is the tuple (parent digest, token ids, None) as pickle protocol 5 or canonical CBOR, byte for byte.
// Blocks with extra keys are hashed in Python alone: the pickle of a text depends on which objects are the same.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace kvroute {

enum class HashAlgorithm : std::uint8_t { kSha256, kSha256Cbor, kXxhash, kXxhashCbor };

// By its name in vLLM's `--prefix-caching-hash-algo`.
std::optional<HashAlgorithm> algorithm_named(std::string_view name);

// 32 bytes of SHA-256 or 16 of XXH3-128.
struct BlockDigest {
  std::size_t size = 0;
  std::array<std::uint8_t, 32> bytes;

  std::span<const std::uint8_t> span() const { return {bytes.data(), size}; }
  // The number by which events name the block: the last 8 bytes, big-endian.
  std::uint64_t wire_number() const;
};

// Digests of blocks, one after the other: it keeps the room they are written out in.
class BlockDigester {
 public:
  static constexpr std::size_t kMostParent = 64;   // bytes; a pickle names longer ones in another way from 256 on
  static constexpr std::size_t kMostTokens = 8192;  // pickles of longer blocks could have several frames

  explicit BlockDigester(HashAlgorithm algorithm);

  std::size_t digest_size() const;
  // `tokens` are little-endian ids of 4 bytes. Both must be within the limits above.
  BlockDigest digest(std::span<const std::uint8_t> parent, std::span<const std::uint8_t> tokens);

 private:
  bool is_sha() const { return algorithm_ == HashAlgorithm::kSha256 || algorithm_ == HashAlgorithm::kSha256Cbor; }
  bool is_cbor() const { return algorithm_ == HashAlgorithm::kSha256Cbor || algorithm_ == HashAlgorithm::kXxhashCbor; }

  HashAlgorithm algorithm_;
  std::vector<std::uint8_t> written_;
};

}  // namespace kvroute
