// Whether stored blocks have the hashes that follow from their tokens, by the rules of index/block_check.py.
#pragma once

#include <cstdint>

#include "core/block_digest.h"
#include "core/wire.h"

namespace kvroute {

// How a worker's engine hashes. `none_hash` is a full digest of the algorithm.
struct BlockRule {
  HashAlgorithm algorithm;
  BlockDigest none_hash;
};

// The blocks of one worker's plain payload. `proven_size`: in blocks of so many tokens a hash has followed from its
// tokens before; 0: none has.
class BlockCheck {
 public:
  BlockCheck(const BlockRule& rule, std::uint32_t proven_size)
      : rule_(rule), digester_(rule.algorithm), proven_size_(proven_size) {}

  // False, and nothing is counted: a block has certainly another hash.
  bool passes(const PlainPayload& payload, const PlainEvent& event);

  std::size_t matched() const { return matched_; }
  std::size_t unchecked() const { return unchecked_; }

 private:
  bool parent_digest(const PlainEvent& event, BlockDigest& digest) const;

  const BlockRule& rule_;
  BlockDigester digester_;
  std::uint32_t proven_size_;
  std::size_t matched_ = 0, unchecked_ = 0;
};

}  // namespace kvroute
