// Arrays of plain slots that give their memory back to the system: large ones are mapped, not taken from the heap.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <utility>

namespace kvroute {

// Asks for a line of memory that is needed soon. A function that does nothing but prefetch has no effect for GCC, which
// then leaves out the calls of it; the empty statement has one.
inline void fetch_ahead(const void* line) {
  __builtin_prefetch(line);
  asm volatile("" : : "r"(line));
}

// Zeroed memory for `count` slots. Slots are plain values: nothing is constructed or destroyed.
template <class Slot>
class SlotArray {
 public:
  SlotArray() = default;
  explicit SlotArray(std::size_t count) : count_(count), slots_(count > 0 ? taken(count) : nullptr) {}
  SlotArray(SlotArray&& other) noexcept
      : count_(std::exchange(other.count_, 0)), slots_(std::exchange(other.slots_, nullptr)) {}
  SlotArray& operator=(SlotArray&& other) noexcept {
    std::swap(count_, other.count_);
    std::swap(slots_, other.slots_);
    return *this;
  }
  ~SlotArray() {
    if (is_mapped(count_)) {
      munmap(slots_, count_ * sizeof(Slot));
    } else {
      std::free(slots_);
    }
  }

  Slot& operator[](std::size_t at) { return slots_[at]; }
  const Slot& operator[](std::size_t at) const { return slots_[at]; }
  std::size_t size() const { return count_; }

 private:
  static constexpr std::size_t kMappedFrom = 16 * 1024;
  static constexpr std::size_t kPage = 4096;
  static constexpr std::size_t kHugePage = 2 * 1024 * 1024;
  static constexpr std::size_t kHugeFrom = 1024 * 1024;  // work in a table jumps about: huge pages save it page table misses

  static bool is_mapped(std::size_t count) { return count * sizeof(Slot) >= kMappedFrom; }

  static Slot* taken(std::size_t count) {
    void* memory = nullptr;
    if (is_mapped(count)) {
      memory = mapped(count * sizeof(Slot));
      if (count * sizeof(Slot) >= kHugeFrom) madvise(memory, count * sizeof(Slot), MADV_HUGEPAGE);
#ifdef MADV_POPULATE_WRITE  // all pages at once: slots are written all over the place, and each page would be a fault
      madvise(memory, count * sizeof(Slot), MADV_POPULATE_WRITE);
#endif
    } else {
      memory = std::calloc(count, sizeof(Slot));
      if (memory == nullptr) throw std::bad_alloc();
    }
    return static_cast<Slot*>(memory);
  }

  // From a boundary of huge pages if it is as large as one: elsewhere little of it would lie in them.
  static void* mapped(std::size_t size) {
    const std::size_t spare = size >= kHugePage ? kHugePage : 0;
    void* memory = mmap(nullptr, size + spare, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    if (spare == 0) return memory;
    const auto start = reinterpret_cast<std::uintptr_t>(memory);
    const std::size_t before = (kHugePage - start % kHugePage) % kHugePage;
    const std::size_t used = (before + size + kPage - 1) / kPage * kPage;
    if (before > 0) munmap(memory, before);
    if (used < size + spare) munmap(reinterpret_cast<void*>(start + used), size + spare - used);
    return reinterpret_cast<void*>(start + before);
  }

  std::size_t count_ = 0;
  Slot* slots_ = nullptr;
};

}  // namespace kvroute
