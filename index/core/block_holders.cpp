#include "core/block_holders.h"

#include <algorithm>
#include <stdexcept>
#include <unordered_set>

namespace kvroute {
namespace {

constexpr std::size_t kAhead = 8;  // slots that are fetched from memory before they are used

// Every block goes through three steps, kAhead blocks apart, so that memory answers in between.
template <class First, class Second, class Last>
void in_steps(std::span<const Handle> blocks, First first, Second second, Last last) {
  for (std::size_t at = 0; at < blocks.size() + 2 * kAhead; ++at) {
    if (at < blocks.size()) first(blocks[at]);
    if (at >= kAhead && at - kAhead < blocks.size()) second(blocks[at - kAhead]);
    if (at >= 2 * kAhead) last(blocks[at - 2 * kAhead]);
  }
}

void decrement(KeyMap& counts, std::uint64_t key) {
  PairSlot* slot = counts.find(key);
  if (--slot->value == 0) counts.erase(key);
}

}  // namespace

// Workers and domains

std::uint32_t BlockHolders::new_domain(bool pinned) {
  auto made = std::make_unique<HashDomain>();
  made->pinned = pinned;
  const auto free = std::find(domains_.begin(), domains_.end(), nullptr);
  const auto number = static_cast<std::uint32_t>(free - domains_.begin());
  if (free == domains_.end()) {
    domains_.push_back(std::move(made));
  } else {
    *free = std::move(made);
  }
  return number;
}

void BlockHolders::enter(std::uint32_t number, std::uint32_t domain) {
  if (number > HolderBits::kMostWorkers) throw std::length_error("too many workers in one pool");
  if (number >= workers_.size()) workers_.resize(number + 1);
  widen_for(number);
  workers_[number] = std::make_unique<BlockWorker>();
  workers_[number]->domain = domains_[domain].get();
  workers_[number]->domain_number = domain;
  domains_[domain]->workers.set(number);
}

void BlockHolders::leave(std::uint32_t number) {
  leave_domain(number);
  workers_[number].reset();
}

void BlockHolders::leave_domain(std::uint32_t number) {
  BlockWorker& worker = *workers_[number];
  worker.domain->workers.reset(number);
  if (!worker.domain->pinned && !worker.domain->workers.any()) domains_[worker.domain_number].reset();
}

void BlockHolders::widen_for(std::uint32_t number) {
  bits_.make_room(number);
  if (!bits_.must_widen(number)) return;
  bits_.widen();
  for (auto& [slot, table] : tables_) {
    table.each([&](PairSlot& one) { one.value = bits_.widened(one.value); });
  }
}

bool BlockHolders::move(std::uint32_t number, std::uint32_t to) {
  BlockWorker& worker = *workers_[number];
  HashDomain &old = *worker.domain, &domain = *domains_[to];
  std::unordered_map<Handle, RequestKey> told;
  bool fits = true;
  for (const auto& [slot, held] : worker.held) {
    held.hashes.each([&](const KeySlot& block) {
      const PairSlot* key = old.keys.find(block.key);
      if (key == nullptr) return;
      const PairSlot* there = domain.keys.find(block.key);
      fits = fits && (there == nullptr || there->value == key->value);
      told.emplace(block.key, key->value);
    });
  }
  if (!fits) return false;
  HeldBySlot all = take_all(number);
  leave_domain(number);
  worker.domain = &domain;
  worker.domain_number = to;
  domain.workers.set(number);
  for (auto& [slot, held] : all) {
    Holdings& mine = worker.held[slot];
    mine.hashes = std::move(held.hashes);
    mine.copies = std::move(held.copies);
    const SlotId at = slot;
    mine.hashes.each_scattered([&](const KeySlot& block) {
      const PairSlot* known = domain.keys.find(block.key);
      const auto said = told.find(block.key);
      if (known == nullptr && said != told.end()) {
        learn(domain, block.key, said->second);
        known = domain.keys.find(block.key);
      }
      mark(number, at, block.key, known != nullptr ? &known->value : nullptr);
    });
  }
  return true;
}

// Holding

int BlockHolders::claim(std::uint32_t number, SlotId slot, Handle block, std::size_t most_keyless) {
  BlockWorker& worker = *workers_[number];
  const auto at = worker.held.find(slot);
  if (at != worker.held.end() && at->second.hashes.find(block) != nullptr) {
    ++at->second.copies.insert(block).first->value;
    return 0;
  }
  const PairSlot* known = worker.domain->keys.find(block);
  const auto& keyless = worker.domain->keyless;
  if (known == nullptr && keyless.size() >= most_keyless && !keyless.contains(block)) return -1;
  worker.held[slot].hashes.insert(block);
  mark(number, slot, block, known != nullptr ? &known->value : nullptr);
  return 1;
}

void BlockHolders::hold(std::uint32_t number, SlotId slot, std::span<const Handle> hashes,
                        std::span<const RequestKey> keys) {
  BlockWorker& worker = *workers_[number];
  HashDomain& domain = *worker.domain;
  Holdings& held = worker.held[slot];
  LargeMap& table = tables_[slot];
  for (std::size_t at = 0; at < hashes.size(); ++at) {
    if (at + kAhead < hashes.size()) {
      held.hashes.prefetch(hashes[at + kAhead]);
      domain.keys.prefetch(hashes[at + kAhead]);
      table.prefetch(keys[at + kAhead]);
    }
    const PairSlot* known = domain.keys.find(hashes[at]);
    if (held.hashes.find(hashes[at]) != nullptr) {
      ++held.copies.insert(hashes[at]).first->value;
      if (known == nullptr) learn(domain, hashes[at], keys[at]);
      continue;
    }
    if (known != nullptr && known->value != keys[at]) continue;
    held.hashes.insert(hashes[at]);
    if (known == nullptr) learn(domain, hashes[at], keys[at]);
    mark_key(number, slot, keys[at]);
  }
  tidy(number, slot);
}

void BlockHolders::recount(std::uint32_t number, SlotId slot, Handle block, std::uint64_t count) {
  const auto at = workers_[number]->held.find(slot);
  if (at == workers_[number]->held.end() || at->second.hashes.find(block) == nullptr) return;
  if (count > 1) {
    at->second.copies.insert(block).first->value = count - 1;
  } else {
    at->second.copies.erase(block);
  }
}

Filed BlockHolders::file_run(std::uint32_t number, SlotId slot, RequestKey parent, const Run& run) {
  scratch_.resize(sizeof(RequestKey) + run.step);
  keys_.resize(run.hashes.size());
  RequestKey chained = parent;
  for (std::size_t at = 0; at < run.hashes.size(); ++at) {
    if (!run.extras.empty() && !run.extras[at].empty()) chained = extended_key(chained, run.extras[at]);
    for (std::size_t from = at * run.stride; from < (at + 1) * run.stride; from += run.step) {
      chained = child_key(chained, run.tokens.data() + from, run.step, scratch_.data());
    }
    keys_[at] = chained;
  }
  BlockWorker& worker = *workers_[number];
  HashDomain& domain = *worker.domain;
  Holdings& held = worker.held[slot];
  LargeMap& table = tables_[slot];
  const auto fetch = [&](std::size_t at) {
    held.hashes.prefetch(run.hashes[at]);
    domain.keys.prefetch(run.hashes[at]);
    table.prefetch(keys_[at]);
  };
  for (std::size_t at = 0; at < std::min(kAhead, run.hashes.size()); ++at) fetch(at);
  // A hash that is new in the domain is held by nobody then, and its key by nobody in other slots.
  const bool is_simple = tables_.size() == 1 && domain.keyless.empty();
  Filed done;
  for (; done.filed < run.hashes.size(); ++done.filed) {
    const std::size_t at = done.filed;
    if (at + kAhead < run.hashes.size()) fetch(at + kAhead);
    const Handle block = run.hashes[at];
    const auto [known, is_new] = domain.keys.insert(block);
    if (is_new) {
      known->value = keys_[at];
      if (is_simple) {  // what `learnt` and `mark_key` do, with one look at the only table
        held.hashes.insert(block);
        PairSlot* cell = table.insert(keys_[at]).first;
        if (cell->value != 0 && bits_.meets(cell->value, domain.workers)) domain.aliases[keys_[at]].insert(block);
        mark_cell(number, held, *cell);
        ++done.stored;
        continue;
      }
      learnt(domain, block, keys_[at]);
    } else if (known->value != keys_[at]) {
      done.conflict = true;
      break;
    }
    if (!held.hashes.insert(block).second) {
      ++held.copies.insert(block).first->value;
      continue;
    }
    ++done.stored;
    mark_cell(number, held, *table.insert(keys_[at]).first);
  }
  if (done.conflict) tidy(number, slot);
  return done;
}

// Set the worker's bit for a block it holds, or remember that the key is still to come.
void BlockHolders::mark(std::uint32_t number, SlotId slot, Handle block, const RequestKey* key) {
  if (key == nullptr) {
    workers_[number]->domain->keyless[block].emplace(number, slot);
  } else {
    mark_key(number, slot, *key);
  }
}

void BlockHolders::mark_key(std::uint32_t number, SlotId slot, RequestKey key) {
  mark_cell(number, workers_[number]->held[slot], *tables_[slot].insert(key).first);
}

void BlockHolders::mark_cell(std::uint32_t number, Holdings& held, PairSlot& cell) {
  if (bits_.has(cell.value, number)) {
    ++held.doubled.insert(cell.key).first->value;
  } else {
    cell.value = bits_.with(cell.value, number);
  }
}

// Enter engine hash -> key.
void BlockHolders::learn(HashDomain& domain, Handle block, RequestKey key) {
  domain.keys.insert(block).first->value = key;
  learnt(domain, block, key);
}

// An engine hash was entered: a key that already has holders gets an alias; keyless holdings find their place.
void BlockHolders::learnt(HashDomain& domain, Handle block, RequestKey key) {
  if (has_holders(domain, key)) domain.aliases[key].insert(block);
  if (domain.keyless.empty()) return;
  const auto waiting = domain.keyless.find(block);
  if (waiting == domain.keyless.end()) return;
  const auto holdings = std::move(waiting->second);
  domain.keyless.erase(waiting);
  for (const auto& [number, slot] : holdings) mark_key(number, slot, key);
}

bool BlockHolders::has_holders(const HashDomain& domain, RequestKey key) const {
  for (const auto& [slot, table] : tables_) {
    const PairSlot* cell = table.find(key);
    if (cell != nullptr && bits_.meets(cell->value, domain.workers)) return true;
  }
  return false;
}

// Letting go

int BlockHolders::remove(std::uint32_t number, SlotId slot, Handle block) {
  const auto at = workers_[number]->held.find(slot);
  if (at == workers_[number]->held.end() || at->second.hashes.find(block) == nullptr) return -1;
  Holdings& held = at->second;
  if (held.copies.find(block) != nullptr) {
    decrement(held.copies, block);
    return 0;
  }
  held.hashes.erase(block);
  release(number, slot, held, block);
  return 1;
}

std::size_t BlockHolders::remove_run(std::uint32_t number, SlotId slot, std::span<const Handle> blocks) {
  BlockWorker& worker = *workers_[number];
  const auto held = worker.held.find(slot);
  if (held == worker.held.end()) return 0;
  const auto table = tables_.find(slot);
  const LargeMap* cells = table != tables_.end() ? &table->second : nullptr;
  std::size_t removed = 0;
  in_steps(
      blocks,
      [&](Handle block) {
        held->second.hashes.prefetch(block);
        worker.domain->keys.prefetch(block);
      },
      [&](Handle block) { prefetch_cell(*worker.domain, cells, block); },
      [&](Handle block) { removed += remove(number, slot, block) == 1; });
  return removed;
}

// The cell of a hash's key is asked for, if the key is known.
void BlockHolders::prefetch_cell(const HashDomain& domain, const LargeMap* table, Handle block) const {
  const PairSlot* known = table != nullptr ? domain.keys.find(block) : nullptr;
  if (known != nullptr) table->prefetch(known->value);
}

void BlockHolders::tidy(std::uint32_t number, SlotId slot) {
  auto& held = workers_[number]->held;
  if (const auto at = held.find(slot); at != held.end() && at->second.hashes.empty()) held.erase(at);
  if (const auto at = tables_.find(slot); at != tables_.end() && at->second.empty()) tables_.erase(at);
  if (tables_.empty()) bits_.forget_sets();
}

void BlockHolders::release(std::uint32_t number, SlotId slot, Holdings& held, Handle block) {
  const std::optional<RequestKey> key = let_go(number, slot, held, block);
  workers_[number]->domain->keys.fit(block);
  if (key) tables_.find(slot)->second.fit(*key);
}

// Clear the worker's bit for a hash it no longer holds; its key, if that is known. No table gives back memory.
std::optional<RequestKey> BlockHolders::let_go(std::uint32_t number, SlotId slot, Holdings& held, Handle block) {
  HashDomain& domain = *workers_[number]->domain;
  PairSlot* known = domain.keys.find(block);
  if (known == nullptr) {
    const auto at = domain.keyless.find(block);
    at->second.erase({number, slot});
    if (at->second.empty()) domain.keyless.erase(at);
    return std::nullopt;
  }
  const RequestKey key = known->value;
  bool is_held = false;
  if (held.doubled.find(key) != nullptr) {
    decrement(held.doubled, key);
    is_held = true;
  } else {
    LargeMap& table = tables_.find(slot)->second;
    PairSlot* cell = table.find(key);
    cell->value = bits_.without(cell->value, number);
    is_held = bits_.meets(cell->value, domain.workers);
    if (cell->value == 0) table.take(cell);
  }
  const auto aliases = domain.aliases.empty() ? domain.aliases.end() : domain.aliases.find(key);
  if (is_held || (tables_.size() > 1 && has_holders(domain, key))) {
    if (aliases != domain.aliases.end()) aliases->second.insert(block);
    return key;
  }
  domain.keys.take(known);
  if (aliases == domain.aliases.end()) return key;
  aliases->second.each([&](const KeySlot& alias) {
    if (PairSlot* other = domain.keys.find(alias.key)) domain.keys.take(other);
  });
  domain.aliases.erase(aliases);
  return key;
}

// All that was held in a slot, in the order of the domain's table, with the cells of both tables fetched from memory
// ahead.
void BlockHolders::release_each(std::uint32_t number, SlotId slot, Holdings& held) {
  HashDomain& domain = *workers_[number]->domain;
  const auto table = tables_.find(slot);
  LargeMap* cells = table != tables_.end() ? &table->second : nullptr;
  std::vector<Handle> blocks;
  blocks.reserve(held.hashes.size());
  held.hashes.each([&](const KeySlot& block) { blocks.push_back(block.key); });
  in_steps(
      blocks, [&](Handle block) { domain.keys.prefetch(block); },
      [&](Handle block) { prefetch_cell(domain, cells, block); },
      [&](Handle block) { let_go(number, slot, held, block); });
  domain.keys.fit();
  if (cells != nullptr) cells->fit();
}

// All that was held by the only worker of a domain: every key of the domain, and its table goes as a whole.
void BlockHolders::empty_domain(std::uint32_t number, const HeldBySlot& all) {
  HashDomain& domain = *workers_[number]->domain;
  std::vector<RequestKey> keys;
  keys.reserve(domain.keys.size());
  domain.keys.each([&](const PairSlot& one) { keys.push_back(one.value); });
  for (const auto& [slot, held] : all) {
    const auto table = tables_.find(slot);
    if (table == tables_.end()) continue;
    LargeMap& cells = table->second;
    for (std::size_t at = 0; at < keys.size(); ++at) {
      if (at + 2 * kAhead < keys.size()) cells.prefetch(keys[at + 2 * kAhead]);
      PairSlot* cell = cells.find(keys[at]);
      if (cell == nullptr) continue;
      cell->value = bits_.without(cell->value, number);
      if (cell->value == 0) cells.take(cell);
    }
    cells.fit();
  }
  domain.keys.clear();
  domain.aliases.clear();
  domain.keyless.clear();
}

std::size_t BlockHolders::release_all(std::uint32_t number) {
  std::size_t count = 0;
  for (const auto& [slot, held] : take_all(number)) count += held.hashes.size();
  return count;
}

// Every bit of a worker cleared; what it held, with its counts.
BlockHolders::HeldBySlot BlockHolders::take_all(std::uint32_t number) {
  HeldBySlot all;
  all.swap(workers_[number]->held);
  const bool is_alone = workers_[number]->domain->workers.is_only(number);
  if (is_alone) empty_domain(number, all);
  for (auto& [slot, held] : all) {
    if (!is_alone) release_each(number, slot, held);
    tidy(number, slot);
  }
  return all;
}

// Asking

std::optional<RequestKey> BlockHolders::key_of(std::uint32_t number, Handle block) const {
  const PairSlot* known = workers_[number]->domain->keys.find(block);
  return known != nullptr ? std::optional(known->value) : std::nullopt;
}

std::uint64_t BlockHolders::count(std::uint32_t number, SlotId slot, Handle block) const {
  const auto at = workers_[number]->held.find(slot);
  if (at == workers_[number]->held.end() || at->second.hashes.find(block) == nullptr) return 0;
  const PairSlot* more = at->second.copies.find(block);
  return 1 + (more != nullptr ? more->value : 0);
}

bool BlockHolders::holds_key(std::uint32_t number, SlotId slot, RequestKey key) const {
  const auto at = tables_.find(slot);
  const PairSlot* cell = at != tables_.end() ? at->second.find(key) : nullptr;
  return cell != nullptr && bits_.has(cell->value, number);
}

std::size_t BlockHolders::distinct() const {
  if (tables_.empty()) return 0;
  if (tables_.size() == 1) return tables_.begin()->second.size();
  std::unordered_set<RequestKey> keys;
  for (const auto& [slot, table] : tables_) table.each([&](const PairSlot& one) { keys.insert(one.key); });
  return keys.size();
}

// Everything that is kept for holdings: 0 when nothing is held.
std::size_t BlockHolders::entries() const {
  std::size_t total = 0;
  for (const auto& [slot, table] : tables_) total += 1 + table.size();
  for (const auto& domain : domains_) {
    if (domain) total += domain->keys.size() + domain->aliases.size() + domain->keyless.size();
  }
  for (const auto& worker : workers_) {
    if (!worker) continue;
    for (const auto& [slot, held] : worker->held) {
      total += 1 + held.hashes.size() + held.copies.size() + held.doubled.size();
    }
  }
  return total;
}

std::size_t BlockHolders::size_bytes() const {
  constexpr std::size_t kNode = 64;  // of a map that is not flat, about
  std::size_t total = 0;
  for (const auto& [slot, table] : tables_) total += table.size_bytes();
  for (const auto& domain : domains_) {
    if (domain) total += domain->keys.size_bytes() + (domain->aliases.size() + domain->keyless.size()) * kNode;
  }
  for (const auto& worker : workers_) {
    if (!worker) continue;
    for (const auto& [slot, held] : worker->held) {
      total += held.hashes.size_bytes() + held.copies.size_bytes() + held.doubled.size_bytes();
    }
  }
  return total + (total > 0 ? bits_.size_bytes() + hashes_.size_bytes() : 0);
}

void BlockHolders::sweep_hashes() {
  if (hashes_.remembered() < swept_at_ && !(tables_.empty() && hashes_.remembered() > 0)) return;
  hashes_.sweep([&](Handle handle) { return is_live(handle); });
  if (hashes_.remembered() == 0) hashes_.clear();
  swept_at_ = std::max<std::size_t>(1024, 2 * hashes_.remembered());
}

bool BlockHolders::is_live(Handle handle) const {
  for (const auto& domain : domains_) {
    if (domain && (domain->keys.find(handle) != nullptr || domain->keyless.contains(handle))) return true;
  }
  return false;
}

}  // namespace kvroute
