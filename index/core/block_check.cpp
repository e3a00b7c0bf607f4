#include "core/block_check.h"

#include <algorithm>

namespace kvroute {
namespace {

bool names(const EngineHash& hash, const BlockDigest& digest) {
  if (hash.form != EngineHash::Form::kBytes) return hash.number == digest.wire_number();
  return std::ranges::equal(hash.bytes, digest.span());
}

}  // namespace

bool BlockCheck::parent_digest(const PlainEvent& event, BlockDigest& digest) const {
  digest = rule_.none_hash;
  if (!event.parent.has_value()) return true;
  const EngineHash& parent = *event.parent;
  if (parent.form != EngineHash::Form::kBytes || parent.bytes.size() != digest.size) return false;
  std::ranges::copy(parent.bytes, digest.bytes.begin());
  return true;
}

bool BlockCheck::passes(const PlainPayload& payload, const PlainEvent& event) {
  constexpr std::uint32_t kGpu = 0;
  BlockDigest digest;
  std::size_t at = 0;
  if (event.medium == kGpu && event.block_size <= BlockDigester::kMostTokens && parent_digest(event, digest)) {
    const std::size_t step = std::size_t{event.block_size} * 4;
    const std::span<const std::uint8_t> tokens = payload.token_bytes(event);
    for (; at < event.count; ++at) {
      digest = digester_.digest(digest.span(), tokens.subspan(at * step, step));
      if (!names(payload.hashes[event.first + at], digest)) break;
    }
    const bool proven = at > 0 || proven_size_ == event.block_size;
    if (at < event.count && proven && event.extras == event.count) return false;
  }
  if (at > 0) proven_size_ = event.block_size;
  matched_ += at;
  unchecked_ += event.count - at;
  return true;
}

}  // namespace kvroute
