// What the bindings of a pool of blocks share: bind_blocks.cpp, bind_match.cpp and bind_payload.cpp.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "core/bind_module.h"
#include "core/block_holders.h"
#include "core/block_payload.h"

namespace kvroute {

namespace nb = nanobind;

// A pool's storage with what Python has learnt of its workers.
class Pool {
 public:
  explicit Pool(std::size_t block_size) : step_(block_size * 4) {
    if (block_size == 0 || block_size > (1u << 20)) throw nb::value_error("block_size is from 1 to 2**20");
  }

  BlockHolders holders;

  void enter(std::uint32_t number, std::uint32_t domain) {
    if (!holders.knows_domain(domain) || holders.knows(number)) throw nb::value_error("no such domain, or worker known");
    holders.enter(number, domain);
    if (layouts_.size() <= number) layouts_.resize(number + 1);
    set_layout(number, {});
  }

  void leave(std::uint32_t number) {
    set_layout(checked(number), {});
    plain_.reset(number);
    holders.leave(number);
  }

  std::uint32_t checked(std::uint32_t number) const {
    if (!holders.knows(number)) throw nb::index_error("no such worker");
    return number;
  }

  void set_layout(std::uint32_t number, Layout layout) {
    plain_.reset(checked(number));
    if (layout.plain) plain_.set(number);
    layouts_[number] = std::move(layout);
  }

  const Layout& layout(std::uint32_t number) const { return layouts_[checked(number)]; }
  std::size_t step() const { return step_; }

  // A word per 64 workers, of all that have plain layouts.
  std::vector<std::uint64_t> plain_workers() const { return sized(plain_); }

  std::vector<std::uint64_t> just(std::uint32_t number) const {
    Bits one;
    one.set(checked(number));
    return sized(one);
  }

 private:
  std::vector<std::uint64_t> sized(const Bits& bits) const {
    std::vector<std::uint64_t> words = bits.words();
    words.resize(holders.bits().wide() ? (holders.width() + 63) / 64 : 1);
    return words;
  }

  std::size_t step_;
  std::vector<Layout> layouts_;
  Bits plain_;
};

inline RequestKey key_from(const nb::bytes& key) {
  if (key.size() != sizeof(RequestKey)) throw nb::value_error("a key is 8 bytes");
  return key_of_bytes(bytes_of(key).data());
}

void bind_match(nb::class_<Pool>& pool);
void bind_payload(nb::module_& module, nb::class_<Pool>& pool);

}  // namespace kvroute
