// Plain vLLM payloads from their bytes: the common case of engine/wire.py, read without making an object per block.
//
// Plain are batches of BlockStored and BlockRemoved of group 0, in both encodings, without adapters or extra keys.
// Whatever else a payload holds, or if it is damaged, the answer is "not plain", and Python decodes it: this reader
// accepts a part of what engine/wire.py accepts and reads that part alike.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/engine_hashes.h"

namespace kvroute {

// One event. `first` and `count` name its hashes in the payload's list; tokens are counted in tokens.
struct PlainEvent {
  bool is_store = false;
  std::uint32_t medium = 0;
  std::size_t first = 0, count = 0;
  std::optional<EngineHash> parent;
  std::size_t first_token = 0, tokens = 0;
  std::uint32_t block_size = 0;
  std::string_view kind;  // empty: not said
  std::optional<std::uint32_t> window;
  std::size_t extras = 0;  // for so many blocks it is said that they have no extra keys
};

// Views into the payload's bytes: good as long as these are.
struct PlainPayload {
  double ts = 0;
  std::optional<std::uint64_t> rank;
  std::vector<PlainEvent> events;
  std::vector<EngineHash> hashes;
  std::vector<std::uint32_t> tokens;

  // Empty again, for another payload in the same memory.
  void clear() {
    rank.reset();
    events.clear();
    hashes.clear();
    tokens.clear();
  }

  std::span<const std::uint8_t> token_bytes(const PlainEvent& event) const {
    return {reinterpret_cast<const std::uint8_t*>(tokens.data() + event.first_token), event.tokens * 4};
  }
};

// False: not plain.
bool read_plain(std::span<const std::uint8_t> bytes, PlainPayload& payload);

}  // namespace kvroute
