// SGLang's event payloads as they mostly are, read from the MessagePack bytes without an object per page.
//
// Only plain ones: everything else (bytes or unsigned hashes, unknown fields, any mistake) is left to engine/wire.py,
// which reads all releases and says what is wrong. What is read here is read there to the same values.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/radix.h"

namespace kvroute::radix {

struct PlainEvent {
  enum class Kind : std::uint8_t { kStored, kRemoved, kCleared };

  Kind kind = Kind::kCleared;
  Medium medium = Medium::kGpu;
  bool bigrams = false;
  std::uint32_t page_size = 0;
  std::optional<std::int64_t> parent;
  std::size_t first_handle = 0, handle_count = 0;
  std::size_t first_token = 0, token_count = 0;
  std::string lora_name;   // ASCII; empty: none
  std::string cache_salt;  // the same
};

// One message, all of whose events are plain.
struct PlainBatch {
  double ts = 0;
  std::optional<std::int64_t> rank;
  std::vector<PlainEvent> events;
  std::vector<std::int64_t> handles;  // of all events
  std::vector<std::uint32_t> tokens;  // of all events; a bigram is two

  Handles handles_of(const PlainEvent& event) const;
  std::span<const std::uint8_t> tokens_of(const PlainEvent& event) const;
};

// Nothing when the payload, or any event of it, is not plain.
std::optional<PlainBatch> plain_batch(std::span<const std::uint8_t> payload);

}  // namespace kvroute::radix
