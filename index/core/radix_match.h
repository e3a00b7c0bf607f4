// How far each worker holds a prompt: one walk down the radix tree for all of them.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "core/radix_tree.h"

namespace kvroute::radix {

// The leading run of a prompt that the worker of a slot holds, in pages; each page at its fastest medium.
struct Held {
  Slot slot = 0;
  std::uint32_t pages = 0;
  std::array<std::uint32_t, kMedia> by_medium{};
};

using SlotSet = std::vector<std::uint64_t>;  // bit `slot % 64` of word `slot / 64`

// The workers among `slots` that hold a page or more of the prompt; stops where the last one stops.
std::vector<Held> match_prefix(const RadixTree& tree, NodeId root, std::span<const std::uint8_t> tokens,
                               const SlotSet& slots);

// Per worker the longest of several matches; of equal ones the first.
std::vector<Held> deepest(std::vector<Held> matches);

}  // namespace kvroute::radix
