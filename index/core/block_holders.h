// Who holds which request key, and what the engines' hashes mean in each hash domain: one pool's storage.
//
// The native form of index/block_holders.py, with the same rules; workers and domains go by number here.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/engine_hashes.h"
#include "core/flat_table.h"
#include "core/holder_bits.h"
#include "core/request_key.h"
#include "core/split_table.h"

namespace kvroute {

// (group, medium) as one number: holdings in one do not touch another.
using SlotId = std::uint32_t;
constexpr SlotId slot_id(std::uint32_t group, std::uint32_t medium) { return group << 2 | medium; }
constexpr std::uint32_t group_of(SlotId slot) { return slot >> 2; }
constexpr std::uint32_t medium_of(SlotId slot) { return slot & 3; }
constexpr std::uint32_t kMedia = 4;

// One worker's holdings in one slot. A hash that is held more than once has its further copies in `copies`; a key that
// it holds under several hashes has the number of further ones in `doubled`.
struct Holdings {
  KeySet hashes;
  KeyMap copies;
  KeyMap doubled;
};

// Workers whose engine hashes mean the same. `aliases`: further hashes of a key, so that the map is emptied with the
// key's last holder. `keyless`: held hashes whose tokens are not known yet, with (worker, slot) of each holding.
struct HashDomain {
  LargeMap keys;
  std::unordered_map<RequestKey, KeySet> aliases;
  std::unordered_map<Handle, std::set<std::pair<std::uint32_t, SlotId>>> keyless;
  Bits workers;
  bool pinned = false;
};

struct BlockWorker {
  HashDomain* domain = nullptr;
  std::uint32_t domain_number = 0;
  std::map<SlotId, Holdings> held;
};

// Blocks of one store, in prefix order: `stride` token bytes belong to each hash, `step` to each request key.
struct Run {
  std::span<const Handle> hashes;
  std::span<const std::uint8_t> tokens;
  std::size_t stride, step;
  std::span<const std::vector<std::uint8_t>> extras;  // per hash, joined; none at all when empty
};

// What filing a run did: `filed` hashes came through, `stored` of them are new holdings.
struct Filed {
  std::size_t filed = 0;
  std::size_t stored = 0;
  bool conflict = false;
};

class BlockHolders {
 public:
  static constexpr std::size_t kMostKeyless = 1'000'000;

  std::uint32_t new_domain(bool pinned);
  void enter(std::uint32_t number, std::uint32_t domain);
  // The worker must hold nothing. Its domain goes with its last worker, unless it is pinned.
  void leave(std::uint32_t number);
  bool move(std::uint32_t number, std::uint32_t domain);

  // One more copy of a block by its hash. 1: a new holding, 0: a further copy, -1: no room for one without a meaning.
  int claim(std::uint32_t number, SlotId slot, Handle block, std::size_t most_keyless = kMostKeyless);
  // Holdings with their keys from before; a hash that means something else in the domain is left out.
  void hold(std::uint32_t number, SlotId slot, std::span<const Handle> hashes, std::span<const RequestKey> keys);
  void recount(std::uint32_t number, SlotId slot, Handle block, std::uint64_t count);
  Filed file_run(std::uint32_t number, SlotId slot, RequestKey parent, const Run& run);
  // The request keys of the run that was filed last.
  std::span<const RequestKey> run_keys() const { return keys_; }
  // Takes one copy away. 1: a holding vanished, 0: a copy is left, -1: it is not held.
  int remove(std::uint32_t number, SlotId slot, Handle block);
  // The same for many at once. How many holdings vanished.
  std::size_t remove_run(std::uint32_t number, SlotId slot, std::span<const Handle> blocks);
  std::size_t release_all(std::uint32_t number);
  // After removals: drops empty tables.
  void tidy(std::uint32_t number, SlotId slot);

  std::optional<RequestKey> key_of(std::uint32_t number, Handle block) const;
  const BlockWorker& worker(std::uint32_t number) const { return *workers_[number]; }
  bool knows(std::uint32_t number) const { return number < workers_.size() && workers_[number] != nullptr; }
  bool knows_domain(std::uint32_t domain) const { return domain < domains_.size() && domains_[domain] != nullptr; }
  std::uint64_t count(std::uint32_t number, SlotId slot, Handle block) const;
  bool holds_key(std::uint32_t number, SlotId slot, RequestKey key) const;
  const std::map<SlotId, LargeMap>& tables() const { return tables_; }
  const HolderBits& bits() const { return bits_; }
  std::size_t width() const { return workers_.size(); }

  std::size_t distinct() const;
  std::size_t entries() const;
  std::size_t size_bytes() const;

  EngineHashes& hashes() { return hashes_; }
  const EngineHashes& hashes() const { return hashes_; }
  // Forgets hashes that nothing refers to any more, when they may be most of those that are remembered.
  void sweep_hashes();

 private:
  using HeldBySlot = std::map<SlotId, Holdings>;

  void mark(std::uint32_t number, SlotId slot, Handle block, const RequestKey* key);
  void mark_key(std::uint32_t number, SlotId slot, RequestKey key);
  void mark_cell(std::uint32_t number, Holdings& held, PairSlot& cell);
  void learn(HashDomain& domain, Handle block, RequestKey key);
  void learnt(HashDomain& domain, Handle block, RequestKey key);
  void release(std::uint32_t number, SlotId slot, Holdings& held, Handle block);
  void release_each(std::uint32_t number, SlotId slot, Holdings& held);
  void empty_domain(std::uint32_t number, const HeldBySlot& all);
  void prefetch_cell(const HashDomain& domain, const LargeMap* table, Handle block) const;
  std::optional<RequestKey> let_go(std::uint32_t number, SlotId slot, Holdings& held, Handle block);
  bool has_holders(const HashDomain& domain, RequestKey key) const;
  HeldBySlot take_all(std::uint32_t number);
  void leave_domain(std::uint32_t number);
  void widen_for(std::uint32_t number);
  bool is_live(Handle handle) const;

  std::map<SlotId, LargeMap> tables_;
  std::vector<std::unique_ptr<BlockWorker>> workers_;
  std::vector<std::unique_ptr<HashDomain>> domains_;
  HolderBits bits_;
  EngineHashes hashes_;
  std::size_t swept_at_ = 1024;
  std::vector<RequestKey> keys_;       // of the run being filed
  std::vector<std::uint8_t> scratch_;  // for hashing one block
};

}  // namespace kvroute
