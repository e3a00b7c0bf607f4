// BlockHolders for Python: index/native_holders.py gives it the interface of index/block_holders.py.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>

#include <algorithm>
#include <optional>
#include <string>

#include "core/bind_module.h"
#include "core/block_match.h"
#include "core/block_payload.h"

namespace nb = nanobind;

namespace kvroute {
namespace {

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

std::span<const std::uint8_t> bytes_of(const nb::bytes& value) {
  return {static_cast<const std::uint8_t*>(value.data()), value.size()};
}

SlotId slot_of(std::uint32_t group, std::uint32_t medium) {
  if (group > 0xffff || medium >= kMedia) throw nb::value_error("group is up to 65535, medium up to 3");
  return slot_id(group, medium);
}

RequestKey key_from(const nb::bytes& key) {
  if (key.size() != sizeof(RequestKey)) throw nb::value_error("a key is 8 bytes");
  return key_of_bytes(bytes_of(key).data());
}

nb::bytes key_as_bytes(RequestKey key) {
  std::uint8_t bytes[sizeof key];
  bytes_of_key(key, bytes);
  return nb::bytes(bytes, sizeof bytes);
}

// Engine hashes, in and out

EngineHash number_from(nb::handle value) {
  const unsigned long long number = PyLong_AsUnsignedLongLong(value.ptr());
  if (!PyErr_Occurred()) return {EngineHash::Form::kNumber, number, {}};
  PyErr_Clear();
  const long long negative = PyLong_AsLongLong(value.ptr());
  if (PyErr_Occurred()) {
    PyErr_Clear();
    throw nb::value_error("a block hash is a number of 64 bits");
  }
  return {EngineHash::Form::kNegative, static_cast<std::uint64_t>(negative), {}};
}

EngineHash hash_from(nb::handle value) {
  if (PyLong_Check(value.ptr())) return number_from(value);
  if (!PyBytes_Check(value.ptr())) throw nb::type_error("a block hash is a number or bytes");
  const auto size = static_cast<std::size_t>(PyBytes_GET_SIZE(value.ptr()));
  if (size == 0 || size > EngineHash::kMostBytes) throw nb::value_error("a block hash has 1 to 64 bytes");
  return {EngineHash::Form::kBytes, 0, {reinterpret_cast<const std::uint8_t*>(PyBytes_AS_STRING(value.ptr())), size}};
}

nb::object hash_as_object(const EngineHashes& hashes, Handle handle) {
  std::uint8_t room[EngineHash::kMostBytes];
  const EngineHash hash = hashes.of(handle, room);
  switch (hash.form) {
    case EngineHash::Form::kNumber:
      return nb::steal(PyLong_FromUnsignedLongLong(hash.number));
    case EngineHash::Form::kNegative:
      return nb::steal(PyLong_FromLongLong(static_cast<long long>(hash.number)));
    default:
      return nb::bytes(hash.bytes.data(), hash.bytes.size());
  }
}

std::vector<Handle> handles_of(EngineHashes& hashes, const nb::list& values) {
  std::vector<Handle> handles;
  handles.reserve(values.size());
  for (nb::handle value : values) handles.push_back(hashes.enter(hash_from(value)));
  return handles;
}

// Holding and letting go

nb::object claim(Pool& pool, std::uint32_t number, std::uint32_t group, std::uint32_t medium, nb::handle block,
                 std::size_t most_keyless) {
  const Handle handle = pool.holders.hashes().enter(hash_from(block));
  const int done = pool.holders.claim(pool.checked(number), slot_of(group, medium), handle, most_keyless);
  return done < 0 ? nb::none() : nb::object(nb::bool_(done == 1));
}

void hold(Pool& pool, std::uint32_t number, std::uint32_t group, std::uint32_t medium, const nb::list& hashes,
          const nb::bytes& keys) {
  if (keys.size() != hashes.size() * sizeof(RequestKey)) throw nb::value_error("as many keys as hashes, 8 bytes each");
  const std::vector<Handle> handles = handles_of(pool.holders.hashes(), hashes);
  std::vector<RequestKey> known(hashes.size());
  for (std::size_t at = 0; at < known.size(); ++at) known[at] = key_of_bytes(bytes_of(keys).data() + at * sizeof(RequestKey));
  pool.holders.hold(pool.checked(number), slot_of(group, medium), handles, known);
}

void recount(Pool& pool, std::uint32_t number, std::uint32_t group, std::uint32_t medium, const nb::dict& counts) {
  for (auto [block, count] : counts) {
    const auto handle = pool.holders.hashes().find(hash_from(block));
    if (!handle) continue;
    pool.holders.recount(pool.checked(number), slot_of(group, medium), *handle, nb::cast<std::uint64_t>(count));
  }
}

nb::tuple file_run(Pool& pool, std::uint32_t number, std::uint32_t group, std::uint32_t medium, const nb::list& hashes,
                   const nb::bytes& tokens, const nb::bytes& parent, nb::object extras) {
  const std::vector<Handle> handles = handles_of(pool.holders.hashes(), hashes);
  std::vector<std::vector<std::uint8_t>> further;
  if (!extras.is_none()) {
    for (nb::handle one : nb::cast<nb::list>(extras)) {
      const std::span<const std::uint8_t> joined = bytes_of(nb::cast<nb::bytes>(one));
      further.emplace_back(joined.begin(), joined.end());
    }
    if (further.size() != handles.size()) throw nb::value_error("as many extras as hashes");
  }
  const std::size_t stride = handles.empty() ? 0 : tokens.size() / handles.size();
  if (stride == 0 || stride % pool.step() != 0 || stride * handles.size() != tokens.size()) {
    throw nb::value_error("tokens must be whole blocks for every hash");
  }
  const Filed filed = pool.holders.file_run(pool.checked(number), slot_of(group, medium), key_from(parent),
                                            {handles, bytes_of(tokens), stride, pool.step(), further});
  return nb::make_tuple(filed.filed, filed.stored, filed.conflict);
}

// The number of holdings that vanished, and the hashes that are not held.
nb::tuple remove(Pool& pool, std::uint32_t number, std::uint32_t group, std::uint32_t medium, const nb::list& hashes) {
  const SlotId slot = slot_of(group, medium);
  pool.checked(number);
  std::size_t removed = 0;
  nb::list unknown;
  for (nb::handle block : hashes) {
    const auto handle = pool.holders.hashes().find(hash_from(block));
    const int done = handle ? pool.holders.remove(number, slot, *handle) : -1;
    removed += done == 1;
    if (done < 0) unknown.append(block);
  }
  pool.holders.tidy(number, slot);
  pool.holders.sweep_hashes();
  return nb::make_tuple(removed, unknown);
}

// Asking

nb::list keys_of(const Pool& pool, std::uint32_t number, const nb::list& hashes) {
  pool.checked(number);
  nb::list keys;
  for (nb::handle block : hashes) {
    const auto handle = pool.holders.hashes().find(hash_from(block));
    const auto key = handle ? pool.holders.key_of(number, *handle) : std::nullopt;
    keys.append(key ? nb::object(key_as_bytes(*key)) : nb::none());
  }
  return keys;
}

// Per slot (group, medium, hashes with a key, their keys joined, hashes without, counts above one).
nb::list dump(const Pool& pool, std::uint32_t number) {
  nb::list slots;
  const BlockHolders& holders = pool.holders;
  for (const auto& [slot, held] : holders.worker(pool.checked(number)).held) {
    nb::list hashes, keyless;
    nb::dict counts;
    std::vector<RequestKey> keys;
    held.hashes.each([&](const KeySlot& block) {
      const auto key = holders.key_of(number, block.key);
      if (key) keys.push_back(*key);
      (key ? hashes : keyless).append(hash_as_object(holders.hashes(), block.key));
    });
    held.copies.each([&](const PairSlot& more) { counts[hash_as_object(holders.hashes(), more.key)] = more.value + 1; });
    slots.append(nb::make_tuple(group_of(slot), medium_of(slot), hashes,
                                nb::bytes(keys.data(), keys.size() * sizeof(RequestKey)), keyless, counts));
  }
  return slots;
}

nb::tuple counts(const Pool& pool, std::uint32_t number) {
  std::size_t by_medium[kMedia] = {};
  for (const auto& [slot, held] : pool.holders.worker(pool.checked(number)).held) {
    by_medium[medium_of(slot)] += held.hashes.size();
  }
  return nb::make_tuple(by_medium[0], by_medium[1], by_medium[2], by_medium[3]);
}

bool holds_hash(const Pool& pool, std::uint32_t number, std::uint32_t group, nb::handle block) {
  const auto handle = pool.holders.hashes().find(hash_from(block));
  pool.checked(number);
  for (std::uint32_t medium = 0; handle && medium < kMedia; ++medium) {
    if (pool.holders.count(number, slot_of(group, medium), *handle) > 0) return true;
  }
  return false;
}

bool holds_key(const Pool& pool, std::uint32_t number, std::uint32_t group, const nb::bytes& key) {
  pool.checked(number);
  for (std::uint32_t medium = 0; medium < kMedia; ++medium) {
    if (pool.holders.holds_key(number, slot_of(group, medium), key_from(key))) return true;
  }
  return false;
}

// (worker, blocks, and how many of them lie in gpu, cpu, disk, other) of each worker with one block at least.
PromptBlocks prompt_of(const Pool& pool, const nb::bytes& root, const nb::bytes& tokens, const nb::list& extras) {
  PromptBlocks prompt{key_from(root), bytes_of(tokens), pool.step(), {}};
  for (nb::handle one : extras) {
    const auto [block, joined] = nb::cast<std::pair<nb::object, nb::bytes>>(one);
    const std::span<const std::uint8_t> extra = bytes_of(joined);
    prompt.extras.emplace_back(nb::cast<std::size_t>(block), std::vector(extra.begin(), extra.end()));
  }
  return prompt;
}

nb::list walked(const Pool& pool, const nb::bytes& root, const nb::bytes& tokens, const nb::list& extras,
                std::vector<std::uint64_t> alive, std::uint32_t group) {
  nb::list found;
  for (const Depth& depth : walk(pool.holders, prompt_of(pool, root, tokens, extras), std::move(alive), group)) {
    found.append(nb::make_tuple(depth.number, depth.blocks, depth.by_medium[0], depth.by_medium[1], depth.by_medium[2],
                                depth.by_medium[3]));
  }
  return found;
}

// Makes a prompt's WorkerMatch objects (index/prompt.py). Many workers hold equally much: numbers are made once.
class Matches {
 public:
  Matches(const Pool& pool, std::size_t prompt_tokens, const nb::object& type)
      : size_(pool.step() / 4), most_(prompt_tokens > 0 ? (prompt_tokens - 1) / size_ : 0), type_(type) {
    if (!PyType_Check(type.ptr()) || !PyType_IsSubtype(as_type(), &PyTuple_Type)) throw nb::type_error("no tuple type");
  }

  nb::object of(nb::handle worker, const Depth& depth, bool eagle) {
    if (!media_.is_valid() || depth.blocks != last_.blocks || depth.by_medium != last_.by_medium) count(depth);
    std::size_t blocks = std::min<std::size_t>(depth.blocks, most_);
    if (eagle && blocks > 0) --blocks;
    if (blocks != reusable_blocks_ || !reusable_.is_valid()) {
      reusable_blocks_ = blocks;
      reusable_ = nb::int_(blocks * size_);
    }
    const nb::object match = nb::steal(as_type()->tp_alloc(as_type(), 4));
    if (!match.is_valid()) throw nb::python_error();
    const nb::handle items[] = {worker, matched_, reusable_, media_};
    for (Py_ssize_t at = 0; at < 4; ++at) PyTuple_SET_ITEM(match.ptr(), at, items[at].inc_ref().ptr());
    return match;
  }

 private:
  PyTypeObject* as_type() const { return reinterpret_cast<PyTypeObject*>(type_.ptr()); }

  void count(const Depth& depth) {
    last_ = depth;
    matched_ = nb::int_(depth.blocks * size_);
    const auto& [gpu, cpu, disk, other] = depth.by_medium;
    media_ = nb::make_tuple(gpu * size_, cpu * size_, disk * size_, other * size_);
  }

  std::size_t size_, most_;
  nb::object type_;
  Depth last_{};
  std::size_t reusable_blocks_ = 0;
  nb::object matched_, media_, reusable_;
};

nb::dict matches(const Pool& pool, const nb::bytes& root, const nb::bytes& tokens, const nb::list& extras,
                 const nb::dict& names, const nb::object& eagles, const nb::object& only, const nb::object& type) {
  const std::vector<Depth> depths = walk(pool.holders, prompt_of(pool, root, tokens, extras), pool.plain_workers(), 0);
  Matches making(pool, tokens.size() / 4, type);
  nb::dict found;
  for (auto depth = depths.rbegin(); depth != depths.rend(); ++depth) {
    const nb::int_ number(depth->number);
    const nb::object worker = nb::borrow(PyDict_GetItemWithError(names.ptr(), number.ptr()));
    if (!worker.is_valid()) throw nb::index_error("a worker without a name");
    const int asked = PySequence_Contains(only.ptr(), worker.ptr());
    const int eagle = asked == 1 ? PySequence_Contains(eagles.ptr(), number.ptr()) : 0;
    if (asked < 0 || eagle < 0) throw nb::python_error();
    if (asked == 1) found[worker] = making.of(worker, *depth, eagle == 1);
  }
  return found;
}

BlockRule rule_from(const nb::str& algorithm, const nb::bytes& none_hash) {
  const std::optional<HashAlgorithm> known = algorithm_named(algorithm.c_str());
  if (!known) throw nb::key_error(algorithm.c_str());
  BlockRule rule{*known, {BlockDigester(*known).digest_size(), {}}};
  if (none_hash.size() != rule.none_hash.size) throw nb::value_error("none_hash is a digest of the algorithm");
  std::ranges::copy(bytes_of(none_hash), rule.none_hash.bytes.begin());
  return rule;
}

nb::list operations_of(const Applied& applied) {
  nb::list operations;
  for (const std::vector<std::uint8_t>& one : applied.operations) operations.append(nb::bytes(one.data(), one.size()));
  return operations;
}

// One payload read and applied, its blocks checked by `rule` unless that is null.
struct Taken {
  PlainPayload plain;
  Applied applied;
  std::size_t matched = 0, unchecked = 0;

  bool read(const nb::bytes& payload) {
    plain.clear();
    return read_plain(bytes_of(payload), plain);
  }

  void apply(Pool& pool, std::uint32_t number, RequestKey root, bool record, const BlockRule* rule,
             std::uint32_t proven_size) {
    std::optional<BlockCheck> check;
    if (rule != nullptr) check.emplace(*rule, proven_size);
    applied = apply_plain(pool.holders, number, pool.layout(number), root, plain, record, check ? &*check : nullptr);
    matched = check ? check->matched() : 0;
    unchecked = check ? check->unchecked() : 0;
  }

  bool whole() const { return applied.done == plain.events.size() && applied.conflicts == 0; }

  nb::tuple told() const {
    return nb::make_tuple(plain.ts, plain.events.size(), applied.done, applied.stores, applied.removals,
                          applied.stored, applied.removed, applied.conflicts, operations_of(applied), matched,
                          unchecked);
  }
};

nb::object apply_payload(Pool& pool, std::uint32_t number, const nb::bytes& root, const nb::bytes& payload,
                         bool record, const BlockRule* rule, std::uint32_t proven_size) {
  Taken taken;
  if (!taken.read(payload)) return nb::none();
  taken.apply(pool, number, key_from(root), record, rule, proven_size);
  return taken.told();
}

// Payloads in order, until one is not plain, or is not applied to its end, or conflicts: how many before that, the last
// one's time, their stores and removals, their blocks that were checked and that could not be, what that one did if it
// was begun, and with `record` the time and the operations of each.
nb::tuple apply_payloads(Pool& pool, std::uint32_t number, const nb::bytes& root, const nb::list& payloads,
                         bool record, const BlockRule* rule, std::uint32_t proven_size) {
  const RequestKey key = key_from(root);
  Taken taken;
  std::size_t whole = 0, stores = 0, removals = 0, matched = 0, unchecked = 0;
  double ts = 0;
  nb::object begun = nb::none();
  nb::list recorded;
  for (nb::handle payload : payloads) {
    if (!taken.read(nb::cast<nb::bytes>(payload))) break;
    taken.apply(pool, number, key, record, rule, proven_size);
    if (taken.matched > 0) proven_size = static_cast<std::uint32_t>(pool.step() / 4);
    if (!taken.whole()) {
      begun = taken.told();
      break;
    }
    ++whole;
    stores += taken.applied.stores;
    removals += taken.applied.removals;
    matched += taken.matched;
    unchecked += taken.unchecked;
    ts = taken.plain.ts;
    if (record) recorded.append(nb::make_tuple(ts, operations_of(taken.applied)));
  }
  return nb::make_tuple(whole, ts, stores, removals, matched, unchecked, begun, recorded);
}

}  // namespace

void bind_blocks(nb::module_& module) {
  nb::class_<BlockRule>(module, "BlockRule")
      .def("__init__", [](BlockRule* self, const nb::str& algorithm, const nb::bytes& none_hash) {
        new (self) BlockRule(rule_from(algorithm, none_hash));
      });
  nb::class_<Pool>(module, "BlockHolders")
      .def(nb::init<std::size_t>(), nb::arg("block_size"))
      .def("new_domain", [](Pool& pool, bool pinned) { return pool.holders.new_domain(pinned); })
      .def("enter", &Pool::enter)
      .def("leave", &Pool::leave)
      .def("set_layout",
           [](Pool& pool, std::uint32_t number, bool plain, bool settled, std::uint32_t block_size,
              const nb::str& kind) { pool.set_layout(number, {plain, settled, block_size, kind.c_str()}); })
      .def("move",
           [](Pool& pool, std::uint32_t number, std::uint32_t domain) {
             if (!pool.holders.knows_domain(domain)) throw nb::value_error("no such domain");
             return pool.holders.move(pool.checked(number), domain);
           })
      .def("claim", &claim)
      .def("hold", &hold)
      .def("recount", &recount)
      .def("file_run", &file_run, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
           nb::arg("extras").none())
      .def("remove", &remove)
      .def("release_all",
           [](Pool& pool, std::uint32_t number) {
             const std::size_t count = pool.holders.release_all(pool.checked(number));
             pool.holders.sweep_hashes();
             return count;
           })
      .def("keys_of", &keys_of)
      .def("dump", &dump)
      .def("counts", &counts)
      .def("holds_hash", &holds_hash)
      .def("holds_key", &holds_key)
      .def("matches", &matches)
      .def("walk_one",
           [](const Pool& pool, const nb::bytes& root, const nb::bytes& tokens, const nb::list& extras,
              std::uint32_t number, std::uint32_t group) {
             return walked(pool, root, tokens, extras, pool.just(number), group);
           })
      .def("apply_payload", &apply_payload, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg("rule").none(),
           nb::arg("proven_size"))
      .def("apply_payloads", &apply_payloads, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg("rule").none(),
           nb::arg("proven_size"))
      .def("distinct", [](const Pool& pool) { return pool.holders.distinct(); })
      .def("entries", [](const Pool& pool) { return pool.holders.entries(); })
      .def("size_bytes", [](const Pool& pool) { return pool.holders.size_bytes(); });
}

}  // namespace kvroute
