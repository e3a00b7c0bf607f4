#include "core/radix_payload.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

#include "core/msgpack.h"

namespace kvroute::radix {
namespace {

constexpr std::uint32_t kMaxPageSize = 1u << 20;  // as MAX_BLOCK_SIZE in engine/wire_fields.py

constexpr std::array<std::pair<std::string_view, Medium>, 10> kMedia = {{
    {"gpu", Medium::kGpu},
    {"cpu", Medium::kCpu},
    {"cpu_pinned", Medium::kCpu},
    {"disk", Medium::kDisk},
    {"storage", Medium::kDisk},
    {"fs", Medium::kDisk},
    {"file", Medium::kDisk},
    {"filesystem", Medium::kDisk},
    {"ssd", Medium::kDisk},
    {"nvme", Medium::kDisk},
}};

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char letter) { return static_cast<unsigned char>(letter) < 0x80; });
}

enum class Field : std::uint8_t {
  kType, kHashes, kParent, kTokens, kPageSize, kLoraId, kMedium, kLora, kSalt, kLeftToPython, kUnknown
};

constexpr std::array<std::string_view, 9> kNames = {
    "type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name",
    "cache_salt"};

// Fields of other engines, which engine/wire.py looks at.
constexpr std::array<std::string_view, 4> kForeign = {
    "locality", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window"};

Field field_of(std::string_view name) {
  for (std::size_t at = 0; at < kNames.size(); ++at) {
    if (kNames[at] == name) return static_cast<Field>(at);
  }
  const bool foreign = std::find(kForeign.begin(), kForeign.end(), name) != kForeign.end();
  return foreign || !is_ascii(name) ? Field::kLeftToPython : Field::kUnknown;
}

// Room for further elements. It grows in powers of two: exact room for each event would copy all former ones each time.
template <typename Element>
void reserve_more(std::vector<Element>& elements, std::size_t more) {
  const std::size_t total = elements.size() + more;
  if (total > elements.capacity()) elements.reserve(std::max(total, 2 * elements.capacity()));
}

// A reader that is told what must come. Once something else came, it has failed and answers zeros.
class Expecting {
 public:
  explicit Expecting(std::span<const std::uint8_t> bytes) : in_(bytes) {}

  bool ok() const { return ok_; }
  bool ended() const { return ok_ && in_.done(); }
  void fail() { ok_ = false; }

  bool nil() { return ok_ && in_.nil(); }
  bool starts_array(std::uint32_t& count) { return ok_ && in_.array(count); }
  bool starts_map(std::uint32_t& count) { return ok_ && in_.map(count); }

  std::uint32_t array() {
    std::uint32_t count = 0;
    return expect(starts_array(count)) ? count : 0;
  }

  std::uint32_t map() {
    std::uint32_t count = 0;
    return expect(starts_map(count)) ? count : 0;
  }

  std::int64_t int64() {
    std::uint64_t value = 0;
    bool negative = false;
    expect(ok_ && in_.number(value, negative) && (negative || !(value >> 63)));
    return static_cast<std::int64_t>(value);
  }

  std::uint32_t uint32() {
    std::uint64_t value = 0;
    bool negative = false;
    expect(ok_ && in_.number(value, negative) && !negative && !(value >> 32));
    return static_cast<std::uint32_t>(value);
  }

  double number() {
    double value = 0;
    return ok_ && in_.real(value) ? value : static_cast<double>(int64());
  }

  std::string ascii() {
    std::string_view text;
    return expect(ok_ && in_.text(text) && is_ascii(text)) ? std::string(text) : std::string();
  }

  // A value that holds no further ones, whichever it is.
  void skip_scalar() {
    std::uint64_t whole = 0;
    double real = 0;
    bool negative = false;
    if (nil() || (ok_ && (in_.boolean() || in_.number(whole, negative) || in_.real(real)))) return;
    ascii();
  }

 private:
  bool expect(bool came) { return ok_ = ok_ && came; }

  MsgpackReader in_;
  bool ok_ = true;
};

// Reads one event after the other into a batch. What is not plain fails the reader.
class EventReader {
 public:
  EventReader(Expecting& in, PlainBatch& batch) : in_(in), batch_(batch) {}

  void read() {
    event_ = {};
    seen_ = 0;
    lora_id_ = false;
    std::uint32_t count = 0;
    if (in_.starts_map(count)) {
      read_map(count);
    } else {
      read_array(in_.array());
    }
    if (in_.ok()) finish();
  }

 private:
  void read_map(std::uint32_t pairs) {
    for (; pairs && in_.ok(); --pairs) read_field(field_of(in_.ascii()));
  }

  // The positional form: the tag, then the fields of its type; SGLang's last one is a map of what is rarely set.
  void read_array(std::uint32_t items) {
    if (!items) return in_.fail();
    read_field(Field::kType);
    --items;
    static constexpr std::array<Field, 6> kStored = {Field::kHashes,   Field::kParent, Field::kTokens,
                                                     Field::kPageSize, Field::kLoraId, Field::kMedium};
    static constexpr std::array<Field, 2> kRemoved = {Field::kHashes, Field::kMedium};
    std::span<const Field> fields;
    if (event_.kind == PlainEvent::Kind::kStored) fields = kStored;
    if (event_.kind == PlainEvent::Kind::kRemoved) fields = kRemoved;
    const bool optional = event_.kind == PlainEvent::Kind::kStored && items == kStored.size() + 1;
    if (items > fields.size() + optional) return in_.fail();
    for (std::size_t at = 0; at < items - optional && in_.ok(); ++at) read_field(fields[at]);
    if (optional && !in_.nil()) read_optional();
  }

  void read_optional() {
    for (std::uint32_t pairs = in_.map(); pairs && in_.ok(); --pairs) {
      const Field field = field_of(in_.ascii());
      if (field != Field::kLora && field != Field::kSalt && field != Field::kUnknown) return in_.fail();
      read_field(field);
    }
  }

  void read_field(Field field) {
    if (field == Field::kUnknown) return in_.skip_scalar();
    const unsigned bit = 1u << static_cast<unsigned>(field);
    if (!in_.ok() || field == Field::kLeftToPython || seen_ & bit) return in_.fail();
    seen_ |= bit;
    switch (field) {
      case Field::kType: return read_type();
      case Field::kHashes: return read_hashes();
      case Field::kParent: return read_parent();
      case Field::kTokens: return read_tokens();
      case Field::kPageSize: return read_page_size();
      case Field::kLoraId: return read_lora_id();
      case Field::kMedium: return read_medium();
      case Field::kLora: event_.lora_name = text(); return;
      case Field::kSalt: event_.cache_salt = text(); return;
      case Field::kLeftToPython:
      case Field::kUnknown: break;
    }
  }

  void read_type() {
    const std::string tag = in_.ascii();
    if (tag == "BlockStored") {
      event_.kind = PlainEvent::Kind::kStored;
    } else if (tag == "BlockRemoved") {
      event_.kind = PlainEvent::Kind::kRemoved;
    } else if (tag != "AllBlocksCleared") {
      in_.fail();
    }
  }

  void read_hashes() {
    event_.first_handle = batch_.handles.size();
    event_.handle_count = in_.array();
    reserve_more(batch_.handles, event_.handle_count);
    for (std::size_t left = event_.handle_count; left && in_.ok(); --left) batch_.handles.push_back(in_.int64());
  }

  void read_parent() {
    if (!in_.nil()) event_.parent = in_.int64();
  }

  void read_tokens() {
    event_.first_token = batch_.tokens.size();
    const std::uint32_t units = in_.array();
    std::uint32_t width = 0;
    event_.bigrams = units && in_.starts_array(width);
    event_.token_count = std::size_t{units} * (event_.bigrams ? 2 : 1);
    reserve_more(batch_.tokens, event_.token_count);
    for (std::uint32_t unit = 0; unit < units && in_.ok(); ++unit) {
      if (event_.bigrams && (unit ? in_.array() : width) != 2) return in_.fail();
      batch_.tokens.push_back(in_.uint32());
      if (event_.bigrams) batch_.tokens.push_back(in_.uint32());
    }
  }

  void read_page_size() {
    event_.page_size = in_.uint32();
    if (event_.page_size > kMaxPageSize) in_.fail();
  }

  // Nil and 0 are the base model. Other numbers stand for adapters where there is no name, which is an old form.
  void read_lora_id() { lora_id_ = !in_.nil() && in_.int64() != 0; }

  void read_medium() {
    if (in_.nil()) return;
    std::string name = in_.ascii();
    for (char& letter : name) letter = letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter + 32) : letter;
    event_.medium = Medium::kOther;
    for (const auto& [known, medium] : kMedia) {
      if (known == name) event_.medium = medium;
    }
  }

  std::string text() { return in_.nil() ? std::string() : in_.ascii(); }

  // Whether the event has what its type needs and nothing else.
  void finish() {
    const auto has = [this](Field field) { return (seen_ & 1u << static_cast<unsigned>(field)) != 0; };
    const auto only = [this](std::initializer_list<Field> fields) {
      unsigned allowed = 1u << static_cast<unsigned>(Field::kType);
      for (const Field field : fields) allowed |= 1u << static_cast<unsigned>(field);
      return (seen_ & ~allowed) == 0;
    };
    bool plain = has(Field::kType);
    switch (event_.kind) {
      case PlainEvent::Kind::kStored:
        plain &= has(Field::kHashes) && has(Field::kTokens) && has(Field::kPageSize);
        plain &= (event_.page_size || !event_.token_count) && !(lora_id_ && event_.lora_name.empty());
        break;
      case PlainEvent::Kind::kRemoved:
        plain &= has(Field::kHashes) && only({Field::kHashes, Field::kMedium});
        break;
      case PlainEvent::Kind::kCleared: plain &= only({}); break;
    }
    if (!plain) return in_.fail();
    batch_.events.push_back(std::move(event_));
  }

  Expecting& in_;
  PlainBatch& batch_;
  PlainEvent event_;
  unsigned seen_ = 0;
  bool lora_id_ = false;
};

}  // namespace

Handles PlainBatch::handles_of(const PlainEvent& event) const {
  return Handles(handles).subspan(event.first_handle, event.handle_count);
}

std::span<const std::uint8_t> PlainBatch::tokens_of(const PlainEvent& event) const {
  const std::span<const std::uint32_t> own = std::span(tokens).subspan(event.first_token, event.token_count);
  return {reinterpret_cast<const std::uint8_t*>(own.data()), own.size_bytes()};
}

std::optional<PlainBatch> plain_batch(std::span<const std::uint8_t> payload) {
  PlainBatch batch;
  Expecting in(payload);
  const std::uint32_t items = in.array();
  if (items < 2 || items > 3) return std::nullopt;
  batch.ts = in.number();
  EventReader events(in, batch);
  for (std::uint32_t left = in.array(); left && in.ok(); --left) events.read();
  if (items == 3 && !in.nil()) batch.rank = in.int64();
  const bool plain = in.ended() && std::isfinite(batch.ts) && batch.rank.value_or(0) >= 0;
  return plain ? std::optional(std::move(batch)) : std::nullopt;
}

}  // namespace kvroute::radix
