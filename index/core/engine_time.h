// The engine's clock as its batches show it: the native form of engine/engine_time.py, with the same rules.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace kvroute {

// The engine's clock in seconds at the head of a batch `[ts, events, ...]`; none in any other form.
std::optional<double> engine_time(std::span<const std::uint8_t> payload);

// Whether a batch made at `ts` may follow one made at `newest` in the same process: no step back of more than `step_s`,
// and both times real ones or both made up.
bool follows(double ts, double newest, double step_s);

}  // namespace kvroute
