// Mixing of page handles and page bytes. Seeded once per process, so that nobody can choose colliding ones beforehand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>

namespace kvroute::radix {

inline std::uint64_t hash_seed() {
  static const std::uint64_t seed = [] {
    std::random_device device;
    return (std::uint64_t{device()} << 32) ^ device();
  }();
  return seed;
}

inline std::uint64_t mixed(std::uint64_t value) {
  value ^= value >> 33;
  value *= 0xff51afd7ed558ccdULL;
  value ^= value >> 33;
  value *= 0xc4ceb9fe1a85ec53ULL;
  return value ^ (value >> 33);
}

inline std::uint64_t handle_hash(std::int64_t handle) {
  return mixed(static_cast<std::uint64_t>(handle) ^ hash_seed());
}

// Hash of `count` bytes, continuing from `state`.
inline std::uint64_t bytes_hash(std::uint64_t state, const std::uint8_t* bytes, std::size_t count) {
  state ^= hash_seed();
  while (count >= 8) {
    std::uint64_t word;
    std::memcpy(&word, bytes, 8);
    state = mixed(state ^ word) + 0x9e3779b97f4a7c15ULL;
    bytes += 8;
    count -= 8;
  }
  std::uint64_t word = 0;
  std::memcpy(&word, bytes, count);
  return mixed(state ^ word ^ (std::uint64_t{count} << 56));
}

struct HandleHash {
  std::size_t operator()(std::int64_t handle) const { return handle_hash(handle); }
};

}  // namespace kvroute::radix
