#include "core/radix_holder.h"

#include <algorithm>

namespace kvroute::radix {

std::int64_t Holder::meant(std::int64_t handle) const {
  if (meaning.empty()) return handle;
  const auto found = meaning.find(handle);
  return found == meaning.end() ? handle : found->second;
}

std::int64_t Holder::name_of(std::int64_t page) const {
  const auto found = named.find(page);
  return found == named.end() ? page : found->second.front();
}

std::optional<std::int64_t> Holder::bind(std::int64_t handle, std::int64_t page) {
  std::optional<std::int64_t> before;
  if (const auto found = meaning.find(handle); found != meaning.end()) {
    before = found->second;
    meaning.erase(found);
    const auto names = named.find(*before);
    names->second.erase(std::find(names->second.begin(), names->second.end(), handle));
    if (names->second.empty()) named.erase(names);
  }
  if (handle != page) {
    meaning[handle] = page;
    named[page].push_back(handle);
  }
  return before == page ? std::nullopt : before;
}

void Holder::unbind(Handles held) {
  if (named.empty()) return;
  for (const std::int64_t page : held) {
    const auto found = named.find(page);
    if (found == named.end()) continue;
    for (const std::int64_t handle : found->second) meaning.erase(handle);
    named.erase(found);
  }
}

bool Holder::has_odd(Handles handles) const {
  return !meaning.empty() && std::any_of(handles.begin(), handles.end(), [&](auto h) { return meaning.contains(h); });
}

void Holder::copy(Handles held) {
  for (const std::int64_t page : held) ++copies[page];
}

std::uint32_t Holder::drop_copies(Handles held) {
  std::uint32_t dropped = 0;
  for (const std::int64_t page : held) {
    const auto found = copies.find(page);
    if (found == copies.end() || !found->second) break;
    if (!--found->second) copies.erase(found);
    ++dropped;
  }
  return dropped;
}

std::uint32_t Holder::single(Handles held) const {
  const auto repeated = [&](std::int64_t page) { return copies.contains(page); };
  return static_cast<std::uint32_t>(std::find_if(held.begin(), held.end(), repeated) - held.begin());
}

std::size_t Holder::size_bytes() const {
  return copies.size() * 40 + meaning.size() * 140 + parked.size_bytes();
}

}  // namespace kvroute::radix
