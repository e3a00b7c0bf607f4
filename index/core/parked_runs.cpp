#include "core/parked_runs.h"

#include <algorithm>

namespace kvroute::radix {
namespace {

constexpr std::size_t kPageBytes = 80;  // of our own tables per parked page

}  // namespace

std::size_t ParkedRuns::size_bytes() const {
  return pages_ * kPageBytes + token_bytes_;
}

void ParkedRuns::park(const RunView& run, std::size_t page_bytes) {
  const auto handles = run.pages.handles;
  const std::uint8_t* tokens = run.pages.tokens;
  runs_.push_back({*run.parent,
                   {handles.begin(), handles.end()},
                   {tokens, tokens + handles.size() * page_bytes},
                   run.medium,
                   {}});
  const Parked parked = std::prev(runs_.end());
  by_parent_[parked->parent].push_back(parked);
  for (const std::int64_t page : handles) by_page_[page].push_back(parked);
  pages_ += handles.size();
  token_bytes_ += parked->tokens.size();
  std::list<ParkedRun> dropped;
  while (!runs_.empty() && (runs_.size() > kMaxRuns || pages_ > kMaxParkedPages)) take(runs_.begin(), dropped);
}

void ParkedRuns::lose(std::int64_t page, Medium medium) {
  const auto found = by_page_.find(page);
  if (found == by_page_.end()) return;
  for (const Parked run : found->second) {
    if (run->medium == medium && run->gone.insert(page).second) return;
  }
}

std::list<ParkedRun> ParkedRuns::adopt(std::span<const std::int64_t> pages) {
  std::list<ParkedRun> waiting;
  if (runs_.empty()) return waiting;
  for (const std::int64_t page : pages) {
    const auto found = by_parent_.find(page);
    if (found == by_parent_.end()) continue;
    const std::vector<Parked> children = found->second;
    for (const Parked run : children) take(run, waiting);
  }
  return waiting;
}

void ParkedRuns::take(Parked run, std::list<ParkedRun>& to) {
  drop(by_parent_, run->parent, run);
  for (const std::int64_t page : run->handles) drop(by_page_, page, run);
  pages_ -= run->handles.size();
  token_bytes_ -= run->tokens.size();
  to.splice(to.end(), runs_, run);
}

void ParkedRuns::drop(Table& table, std::int64_t key, Parked run) {
  const auto found = table.find(key);
  found->second.erase(std::find(found->second.begin(), found->second.end(), run));
  if (found->second.empty()) table.erase(found);
}

}  // namespace kvroute::radix
