#include "core/engine_time.h"

#include <bit>
#include <cmath>

#include "core/big_endian.h"

namespace kvroute {
namespace {

constexpr double kPlaceholderBelow = 1e9;  // seconds since 1970: what lies before 2001 was made up

}  // namespace

std::optional<double> engine_time(std::span<const std::uint8_t> payload) {
  if (payload.size() < 10 || (payload[0] & 0xf0) != 0x90 || payload[0] < 0x92 || payload[1] != 0xcb) return {};
  const auto ts = std::bit_cast<double>(big_endian64(&payload[2]));
  return std::isfinite(ts) ? std::optional(ts) : std::nullopt;
}

bool follows(double ts, double newest, double step_s) {
  return (ts < kPlaceholderBelow) == (newest < kPlaceholderBelow) && ts >= newest - step_s;
}

}  // namespace kvroute
