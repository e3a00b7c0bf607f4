#include "core/block_payload.h"

#include "core/msgpack.h"

namespace kvroute {
namespace {

class Applying {
 public:
  Applying(BlockHolders& holders, std::uint32_t number, const Layout& layout, RequestKey root,
           const PlainPayload& payload, bool record, BlockCheck* check)
      : holders_(holders), number_(number), layout_(layout), root_(root), payload_(payload), record_(record),
        check_(check) {}

  Applied all() {
    for (const PlainEvent& event : payload_.events) {
      if (event.is_store) {
        if (!store(event)) break;
      } else {
        remove(event);
      }
      ++applied_.done;
    }
    holders_.sweep_hashes();
    return std::move(applied_);
  }

 private:
  bool fits(const PlainEvent& event) const {
    return layout_.plain && event.block_size == layout_.block_size && (layout_.settled || event.count == 1) &&
           (event.kind.empty() || event.kind == layout_.kind);
  }

  bool parent_key(const PlainEvent& event, RequestKey& key) const {
    key = root_;
    if (!event.parent.has_value()) return true;
    const std::optional<Handle> parent = holders_.hashes().find(*event.parent);
    const std::optional<RequestKey> known = parent ? holders_.key_of(number_, *parent) : std::nullopt;
    key = known.value_or(root_);
    return known.has_value();
  }

  // A lower tier's copy whose hash means something else than its tokens do, as when a connector's event leaves out the
  // adapter or the salt: which meaning holds is Python's to say.
  bool contradicts(const PlainEvent& event, RequestKey key) {
    if (event.medium == 0) return false;
    const std::size_t step = std::size_t{event.block_size} * 4;
    const std::span<const std::uint8_t> tokens = payload_.token_bytes(event);
    scratch_.resize(sizeof(RequestKey) + step);
    for (std::size_t at = 0; at < event.count; ++at) {
      key = child_key(key, tokens.data() + at * step, step, scratch_.data());
      const std::optional<Handle> block = holders_.hashes().find(payload_.hashes[event.first + at]);
      const std::optional<RequestKey> known = block ? holders_.key_of(number_, *block) : std::nullopt;
      if (known.has_value() && *known != key) return true;
    }
    return false;
  }

  bool store(const PlainEvent& event) {
    RequestKey key;
    if (!fits(event) || !parent_key(event, key) || contradicts(event, key) || (check_ && !check_->passes(payload_, event))) return false;
    handles_.clear();
    for (std::size_t at = 0; at < event.count; ++at) {
      handles_.push_back(holders_.hashes().enter(payload_.hashes[event.first + at]));
    }
    const std::size_t step = std::size_t{event.block_size} * 4;
    const Filed filed =
        holders_.file_run(number_, slot_id(0, event.medium), key, {handles_, payload_.token_bytes(event), step, step, {}});
    ++applied_.stores;
    applied_.stored += filed.stored;
    applied_.conflicts += filed.conflict;
    if (record_ && !filed.conflict) record_store(event);
    return true;
  }

  void remove(const PlainEvent& event) {
    const SlotId slot = slot_id(0, event.medium);
    handles_.clear();
    for (std::size_t at = 0; at < event.count; ++at) {
      const auto handle = holders_.hashes().find(payload_.hashes[event.first + at]);
      if (handle) handles_.push_back(*handle);
    }
    applied_.removed += holders_.remove_run(number_, slot, handles_);
    holders_.tidy(number_, slot);
    ++applied_.removals;
    if (record_) record_removal(event);
  }

  void write_hashes(MsgpackWriter& out, const PlainEvent& event) const {
    out.array(event.count);
    for (std::size_t at = 0; at < event.count; ++at) {
      const EngineHash& hash = payload_.hashes[event.first + at];
      switch (hash.form) {
        case EngineHash::Form::kNumber:
          out.number(hash.number);
          break;
        case EngineHash::Form::kNegative:
          out.negative(hash.number);
          break;
        case EngineHash::Form::kBytes:
          out.binary(hash.bytes);
          break;
      }
    }
  }

  // What every operation begins with: its name, the group, the medium.
  static MsgpackWriter operation(std::size_t members, std::string_view name, const PlainEvent& event) {
    MsgpackWriter out;
    out.array(members);
    out.text(name);
    out.number(0);
    out.number(event.medium);
    return out;
  }

  // index/dump.py: ("S", group, medium, kind, window, block_size, hashes, keys, keyless)
  void record_store(const PlainEvent& event) {
    MsgpackWriter out = operation(9, "S", event);
    event.kind.empty() ? out.nil() : out.text(event.kind);
    event.window.has_value() ? out.number(*event.window) : out.nil();
    out.number(event.block_size);
    write_hashes(out, event);
    const std::span<const RequestKey> keys = holders_.run_keys();
    out.binary({reinterpret_cast<const std::uint8_t*>(keys.data()), keys.size_bytes()});
    out.array(0);
    applied_.operations.push_back(out.taken());
  }

  // ("R", group, medium, hashes)
  void record_removal(const PlainEvent& event) {
    MsgpackWriter out = operation(4, "R", event);
    write_hashes(out, event);
    applied_.operations.push_back(out.taken());
  }

  BlockHolders& holders_;
  std::uint32_t number_;
  const Layout& layout_;
  RequestKey root_;
  const PlainPayload& payload_;
  bool record_;
  BlockCheck* check_;
  std::vector<Handle> handles_;
  std::vector<std::uint8_t> scratch_;  // for hashing one block
  Applied applied_;
};

}  // namespace

Applied apply_plain(BlockHolders& holders, std::uint32_t number, const Layout& layout, RequestKey root,
                    const PlainPayload& payload, bool record, BlockCheck* check) {
  return Applying(holders, number, layout, root, payload, record, check).all();
}

}  // namespace kvroute
