// A plain payload into a pool's holders, event by event, as BlockPools.store and drop would apply it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/block_check.h"
#include "core/block_holders.h"
#include "core/wire.h"

namespace kvroute {

// What the worker's earlier stores showed. Not `plain`: only removals can be applied here.
struct Layout {
  bool plain = false;
  bool settled = false;  // the block size is certain
  std::uint32_t block_size = 0;
  std::string kind;  // empty: not said
};

// `done` events were applied; the first of the rest needs what only Python knows or decides, or has a wrong hash.
struct Applied {
  std::size_t done = 0;
  std::size_t stores = 0, removals = 0;
  std::size_t stored = 0, removed = 0, conflicts = 0;
  std::vector<std::vector<std::uint8_t>> operations;
};

// `check` looks at the hashes of what is stored; null: nobody does.
Applied apply_plain(BlockHolders& holders, std::uint32_t number, const Layout& layout, RequestKey root,
                    const PlainPayload& payload, bool record, BlockCheck* check = nullptr);

}  // namespace kvroute
