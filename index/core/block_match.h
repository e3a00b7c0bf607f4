// The walk of a prompt through a pool's holders: from the root, per worker up to its first missing block.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "core/block_holders.h"

namespace kvroute {

// A prompt's blocks. `extras`: (number of the block, its extra keys joined), in order of the numbers.
struct PromptBlocks {
  RequestKey root;
  std::span<const std::uint8_t> tokens;
  std::size_t step;
  std::vector<std::pair<std::size_t, std::vector<std::uint8_t>>> extras;
};

// One worker's leading run in blocks, and the same split by the fastest medium of each block.
struct Depth {
  std::uint32_t number;
  std::uint32_t blocks = 0;
  std::array<std::uint32_t, kMedia> by_medium{};
};

// The depths of those among `alive` (a word per 64 workers) that hold the first block at least.
std::vector<Depth> walk(const BlockHolders& holders, const PromptBlocks& prompt, std::vector<std::uint64_t> alive,
                        std::uint32_t group);

}  // namespace kvroute
