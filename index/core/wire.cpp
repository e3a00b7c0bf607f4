#include "core/wire.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "core/msgpack.h"

namespace kvroute {
namespace {

constexpr std::uint64_t kMostBlockSize = 1u << 20;
constexpr std::uint64_t kMostWindow = 0x7fffffff;

enum Field : std::uint32_t {
  kType,
  kHashes,
  kParent,
  kTokens,
  kBlockSize,
  kLoraId,
  kMedium,
  kLoraName,
  kExtraKeys,
  kGroup,
  kKind,
  kWindow,
  kLocality,
  kFields
};

constexpr std::array<std::string_view, kFields> kNames = {
    "type",      "block_hashes", "parent_block_hash", "token_ids",          "block_size",
    "lora_id",   "medium",       "lora_name",         "extra_keys",         "group_idx",
    "kv_cache_spec_kind",        "kv_cache_spec_sliding_window",            "locality"};
constexpr std::array kRemovedPositions = {kType, kHashes, kMedium, kGroup};

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char one) { return static_cast<unsigned char>(one) < 0x80; });
}

std::optional<std::uint32_t> medium_named(std::string_view name) {
  if (!is_ascii(name)) return std::nullopt;
  std::string lower(name.substr(0, 16));
  for (char& one : lower) one = one >= 'A' && one <= 'Z' ? static_cast<char>(one + 32) : one;
  if (lower == "gpu") return 0;
  if (lower == "cpu" || lower == "cpu_pinned") return 1;
  for (const std::string_view disk : {"disk", "storage", "fs", "file", "filesystem", "ssd", "nvme"}) {
    if (lower == disk) return 2;
  }
  return 3;
}

class EventReader {
 public:
  EventReader(MsgpackReader& reader, PlainPayload& payload) : in_(reader), out_(payload) {
    event_.first = out_.hashes.size();
    event_.first_token = out_.tokens.size();
  }

  bool read() {
    std::uint32_t count = 0;
    const bool well = in_.map(count) ? map_form(count) : in_.array(count) && array_form(count);
    if (!well || !is_plain()) return false;
    out_.events.push_back(event_);
    return true;
  }

 private:
  bool map_form(std::uint32_t count) {
    for (; count > 0; --count) {
      std::string_view name;
      if (!in_.text(name)) return false;
      const auto known = std::find(kNames.begin(), kNames.end(), name);
      if (known == kNames.end() ? !is_ascii(name) || !scalar() : !field(Field(known - kNames.begin()))) return false;
    }
    return true;
  }

  bool array_form(std::uint32_t count) {
    if (count == 0 || !field(kType) || count > (event_.is_store ? std::uint32_t{kLocality} : kRemovedPositions.size())) {
      return false;
    }
    for (std::uint32_t at = 1; at < count; ++at) {
      if (!field(event_.is_store ? Field(at) : kRemovedPositions[at])) return false;
    }
    return true;
  }

  // A value that nobody looks at; only what holds nothing further is skipped here.
  bool scalar() {
    std::uint64_t number = 0;
    bool negative = false;
    double real = 0;
    std::string_view text;
    return in_.nil() || in_.boolean() || in_.number(number, negative) || in_.real(real) ||
           (in_.text(text) && is_ascii(text));
  }

  bool field(Field field) {
    if (seen_ >> field & 1) return false;  // twice in one map
    seen_ |= 1u << field;
    switch (field) {
      case kType:
        return type();
      case kHashes:
        return hashes();
      case kParent:
        return parent();
      case kTokens:
        return tokens();
      case kBlockSize:
        return block_size();
      case kMedium:
        return medium();
      case kExtraKeys:
        return extra_keys();
      case kKind:
        return in_.nil() || (in_.text(event_.kind) && is_ascii(event_.kind));
      case kWindow:
        return window();
      case kLoraId:
      case kGroup:
        return in_.nil() || zero();
      default:  // kLoraName, kLocality
        return in_.nil() || empty_text();
    }
  }

  bool type() {
    std::string_view name;
    if (!in_.text(name)) return false;
    event_.is_store = name == "BlockStored";
    return event_.is_store || name == "BlockRemoved";
  }

  bool hash(EngineHash& hash) {
    bool negative = false;
    if (in_.number(hash.number, negative)) {
      hash.form = negative ? EngineHash::Form::kNegative : EngineHash::Form::kNumber;
      return true;
    }
    hash.form = EngineHash::Form::kBytes;
    return in_.binary(hash.bytes) && !hash.bytes.empty() && hash.bytes.size() <= EngineHash::kMostBytes;
  }

  bool hashes() {
    std::uint32_t count = 0;
    if (!in_.array(count)) return false;
    event_.count = count;
    for (; count > 0; --count) {
      if (!hash(out_.hashes.emplace_back())) return false;
    }
    return true;
  }

  bool parent() {
    if (in_.nil()) return true;
    return hash(event_.parent.emplace());
  }

  bool tokens() {
    std::uint32_t count = 0;
    if (!in_.array(count)) return false;
    event_.tokens = count;
    const std::size_t first = out_.tokens.size();
    out_.tokens.resize(first + count);  // no more than the bytes that are left
    return in_.ids(out_.tokens.data() + first, count);
  }

  bool bounded(std::uint64_t most, std::uint64_t& value) {
    bool negative = false;
    return in_.number(value, negative) && !negative && value <= most;
  }

  bool zero() {
    std::uint64_t value = 0;
    return bounded(0, value);
  }

  bool empty_text() {
    std::string_view text;
    return in_.text(text) && text.empty();
  }

  bool block_size() {
    std::uint64_t size = 0;
    if (!bounded(kMostBlockSize, size)) return false;
    event_.block_size = static_cast<std::uint32_t>(size);
    return true;
  }

  bool window() {
    if (in_.nil()) return true;
    std::uint64_t width = 0;
    if (!bounded(kMostWindow, width)) return false;
    event_.window = static_cast<std::uint32_t>(width);
    return true;
  }

  bool medium() {
    if (in_.nil()) return true;
    std::string_view name;
    if (!in_.text(name)) return false;
    const std::optional<std::uint32_t> known = medium_named(name);
    event_.medium = known.value_or(0);
    return known.has_value();
  }

  bool extra_keys() {
    if (in_.nil()) return true;
    std::uint32_t count = 0;
    if (!in_.array(count)) return false;
    event_.extras = count;
    for (; count > 0; --count) {
      if (!in_.nil()) return false;
    }
    return true;
  }

  bool is_plain() const {
    if (!(seen_ >> kType & 1) || !(seen_ >> kHashes & 1)) return false;
    if (!event_.is_store) return true;
    return event_.count > 0 && event_.block_size > 0 && event_.tokens > 0 &&
           std::uint64_t{event_.count} * event_.block_size == event_.tokens;
  }

  MsgpackReader& in_;
  PlainPayload& out_;
  PlainEvent event_;
  std::uint32_t seen_ = 0;
};

bool read_ts(MsgpackReader& in, double& ts) {
  if (in.real(ts)) return std::isfinite(ts);
  std::uint64_t number = 0;
  bool negative = false;
  if (!in.number(number, negative)) return false;
  ts = negative ? static_cast<double>(static_cast<std::int64_t>(number)) : static_cast<double>(number);
  return true;
}

bool read_rank(MsgpackReader& in, std::optional<std::uint64_t>& rank) {
  if (in.nil()) return true;
  bool negative = false;
  return in.number(rank.emplace(), negative) && !negative;
}

}  // namespace

bool read_plain(std::span<const std::uint8_t> bytes, PlainPayload& payload) {
  MsgpackReader in(bytes);
  std::uint32_t parts = 0, events = 0;
  if (!in.array(parts) || parts < 2 || parts > 3 || !read_ts(in, payload.ts) || !in.array(events)) return false;
  for (; events > 0; --events) {
    if (!EventReader(in, payload).read()) return false;
  }
  return (parts == 2 || read_rank(in, payload.rank)) && in.done();
}

}  // namespace kvroute
