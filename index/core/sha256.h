// SHA-256 of a run of bytes: with the processor's SHA instructions where it has them, else in portable code.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvroute {

using Sha256Digest = std::array<std::uint8_t, 32>;

Sha256Digest sha256(std::span<const std::uint8_t> message);

// The same in portable code alone, so that a test can compare both on one machine.
Sha256Digest sha256_portable(std::span<const std::uint8_t> message);

// Whether this processor has the instructions.
bool has_sha_instructions();

}  // namespace kvroute
