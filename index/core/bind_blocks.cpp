// BlockHolders for Python: index/native_holders.py gives it the interface of index/block_holders.py.
#include <nanobind/nanobind.h>

#include <optional>
#include <string>

#include "core/bind_module.h"
#include "core/bind_pool.h"

namespace kvroute {
namespace {

SlotId slot_of(std::uint32_t group, std::uint32_t medium) {
  if (group > 0xffff || medium >= kMedia) throw nb::value_error("group is up to 65535, medium up to 3");
  return slot_id(group, medium);
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

// Per slot (group, medium, hashes with a key, their keys joined, hashes without, counts above one). What is told may be
// filed again here, so it does not come in the order of a table's places.
nb::list dump(const Pool& pool, std::uint32_t number) {
  nb::list slots;
  const BlockHolders& holders = pool.holders;
  for (const auto& [slot, held] : holders.worker(pool.checked(number)).held) {
    nb::list hashes, keyless;
    nb::dict counts;
    std::vector<RequestKey> keys;
    held.hashes.each_scattered([&](const KeySlot& block) {
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

}  // namespace

void bind_blocks(nb::module_& module) {
  nb::class_<Pool> pool(module, "BlockHolders");
  pool.def(nb::init<std::size_t>(), nb::arg("block_size"))
      .def("new_domain", [](Pool& self, bool pinned) { return self.holders.new_domain(pinned); })
      .def("enter", &Pool::enter)
      .def("leave", &Pool::leave)
      .def("set_layout",
           [](Pool& self, std::uint32_t number, bool plain, bool settled, std::uint32_t block_size,
              const nb::str& kind) { self.set_layout(number, {plain, settled, block_size, kind.c_str()}); })
      .def("move",
           [](Pool& self, std::uint32_t number, std::uint32_t domain) {
             if (!self.holders.knows_domain(domain)) throw nb::value_error("no such domain");
             return self.holders.move(self.checked(number), domain);
           })
      .def("claim", &claim)
      .def("hold", &hold)
      .def("recount", &recount)
      .def("file_run", &file_run, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
           nb::arg("extras").none())
      .def("remove", &remove)
      .def("release_all",
           [](Pool& self, std::uint32_t number) {
             const std::size_t count = self.holders.release_all(self.checked(number));
             self.holders.sweep_hashes();
             return count;
           })
      .def("keys_of", &keys_of)
      .def("dump", &dump)
      .def("counts", &counts)
      .def("holds_hash", &holds_hash)
      .def("holds_key", &holds_key)
      .def("distinct", [](const Pool& self) { return self.holders.distinct(); })
      .def("entries", [](const Pool& self) { return self.holders.entries(); })
      .def("size_bytes", [](const Pool& self) { return self.holders.size_bytes(); });
  bind_match(pool);
  bind_payload(module, pool);
}

}  // namespace kvroute
