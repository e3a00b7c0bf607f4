// Runs of pages whose parent is not known: parked in bounded number, never filed at the root (index/parked_runs.py).
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/handle_hash.h"
#include "core/page_run.h"
#include "core/radix_masks.h"

namespace kvroute::radix {

constexpr std::size_t kMaxRuns = 256;
constexpr std::size_t kMaxParkedPages = 65'536;

// A stored run of pages; without a parent it is a root.
struct RunView {
  std::optional<std::int64_t> parent;
  PageView pages;
  Medium medium = Medium::kGpu;
};

// A run that waits, and those of its pages that were removed meanwhile.
struct ParkedRun {
  std::int64_t parent;
  std::vector<std::int64_t> handles;
  std::vector<std::uint8_t> tokens;
  Medium medium;
  std::unordered_set<std::int64_t, HandleHash> gone;

  RunView view() const { return {parent, {handles, tokens.data()}, medium}; }
};

// The parked runs of one worker. Beyond `kMaxRuns` or `kMaxParkedPages` the oldest are dropped.
class ParkedRuns {
 public:
  std::size_t count() const { return runs_.size(); }
  std::size_t size_bytes() const;

  // Keep a copy of a run that has a parent until this comes.
  void park(const RunView& run, std::size_t page_bytes);
  // Note that a page was removed from a tier, if it is parked there: the oldest copy goes.
  void lose(std::int64_t page, Medium medium);
  // Take out the runs whose parent is one of `pages`, page by page, the oldest first.
  std::list<ParkedRun> adopt(std::span<const std::int64_t> pages);

 private:
  using Parked = std::list<ParkedRun>::iterator;
  using Table = std::unordered_map<std::int64_t, std::vector<Parked>, HandleHash>;

  void take(Parked run, std::list<ParkedRun>& to);
  static void drop(Table& table, std::int64_t key, Parked run);

  std::list<ParkedRun> runs_;
  Table by_parent_;
  Table by_page_;
  std::size_t pages_ = 0;
  std::size_t token_bytes_ = 0;
};

}  // namespace kvroute::radix
