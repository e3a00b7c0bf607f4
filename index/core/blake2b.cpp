#include "core/blake2b.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace kvroute::radix {
namespace {

constexpr std::size_t kBlock = 128;
constexpr std::size_t kDigest = 8;

constexpr std::array<std::uint64_t, 8> kStart = {
    0x6a09e667f3bcc908ULL, 0xbb67ae8584caa73bULL, 0x3c6ef372fe94f82bULL, 0xa54ff53a5f1d36f1ULL,
    0x510e527fade682d1ULL, 0x9b05688c2b3e6c1fULL, 0x1f83d9abfb41bd6bULL, 0x5be0cd19137e2179ULL};

constexpr std::uint8_t kOrder[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};

std::uint64_t little_endian(const std::uint8_t* bytes) {
  std::uint64_t word = 0;
  for (int i = 7; i >= 0; --i) word = word << 8 | bytes[i];
  return word;
}

void mix(std::array<std::uint64_t, 16>& v, int a, int b, int c, int d, std::uint64_t x, std::uint64_t y) {
  v[a] += v[b] + x;
  v[d] = std::rotr(v[d] ^ v[a], 32);
  v[c] += v[d];
  v[b] = std::rotr(v[b] ^ v[c], 24);
  v[a] += v[b] + y;
  v[d] = std::rotr(v[d] ^ v[a], 16);
  v[c] += v[d];
  v[b] = std::rotr(v[b] ^ v[c], 63);
}

void compress(std::array<std::uint64_t, 8>& state, const std::uint8_t* block, std::uint64_t length, bool last) {
  std::array<std::uint64_t, 16> v;
  std::array<std::uint64_t, 16> m;
  for (int i = 0; i < 16; ++i) m[i] = little_endian(block + 8 * i);
  for (int i = 0; i < 8; ++i) {
    v[i] = state[i];
    v[i + 8] = kStart[i];
  }
  v[12] ^= length;
  if (last) v[14] = ~v[14];
  for (int round = 0; round < 12; ++round) {
    const std::uint8_t* s = kOrder[round % 10];
    for (int i = 0; i < 4; ++i) mix(v, i, i + 4, i + 8, i + 12, m[s[2 * i]], m[s[2 * i + 1]]);
    mix(v, 0, 5, 10, 15, m[s[8]], m[s[9]]);
    mix(v, 1, 6, 11, 12, m[s[10]], m[s[11]]);
    mix(v, 2, 7, 8, 13, m[s[12]], m[s[13]]);
    mix(v, 3, 4, 9, 14, m[s[14]], m[s[15]]);
  }
  for (int i = 0; i < 8; ++i) state[i] ^= v[i] ^ v[i + 8];
}

}  // namespace

std::int64_t blake2b_handle(const std::uint8_t* bytes, std::size_t count) {
  std::array<std::uint64_t, 8> state = kStart;
  state[0] ^= 0x01010000ULL ^ kDigest;
  std::size_t done = 0;
  for (; count - done > kBlock; done += kBlock) compress(state, bytes + done, done + kBlock, false);
  std::array<std::uint8_t, kBlock> rest{};
  std::copy(bytes + done, bytes + count, rest.begin());
  compress(state, rest.data(), count, true);
  std::uint64_t digest = 0;
  for (int i = 0; i < 8; ++i) digest = digest << 8 | ((state[0] >> (8 * i)) & 0xff);
  return static_cast<std::int64_t>(digest);
}

}  // namespace kvroute::radix
