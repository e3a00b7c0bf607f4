// The radix index for Python. Slots are checked here; what is told is checked by the index.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <bit>
#include <cstring>

#include "core/bind_radix.h"

namespace kvroute::radix {
namespace {

static_assert(std::endian::native == std::endian::little, "tokens and handles are used as they lie in memory");

constexpr Slot kMaxSlots = 1u << 20;

std::int64_t handle_of(nb::handle hash) {
  int overflow = 1;
  if (PyLong_Check(hash.ptr())) {
    const long long value = PyLong_AsLongLongAndOverflow(hash.ptr(), &overflow);
    if (!overflow) return value;
  }
  return nb::cast<std::int64_t>(nb::module_::import_("index.radix_holder").attr("handle_of")(hash));
}

std::vector<std::int64_t> handles_of(const nb::list& hashes) {
  std::vector<std::int64_t> handles;
  handles.reserve(hashes.size());
  for (const nb::handle hash : hashes) handles.push_back(handle_of(hash));
  return handles;
}

std::optional<std::int64_t> parent_of(nb::handle parent) {
  return parent.is_none() ? std::nullopt : std::optional(handle_of(parent));
}

Medium medium_of(nb::handle value) {
  const auto medium = nb::cast<std::int64_t>(value);
  if (medium < 0 || medium >= static_cast<std::int64_t>(kMedia)) throw nb::value_error("a medium is from 0 to 3");
  return static_cast<Medium>(medium);
}

SlotSet slot_set(const nb::int_& slots) {
  int overflow = 0;
  const long long small = PyLong_AsLongLongAndOverflow(slots.ptr(), &overflow);
  if (!overflow && small >= 0) return {static_cast<std::uint64_t>(small)};
  const std::size_t words = nb::cast<std::size_t>(slots.attr("bit_length")()) / 64 + 1;
  const nb::bytes bytes(slots.attr("to_bytes")(words * 8, "little"));
  SlotSet set(words);
  std::memcpy(set.data(), bytes.data(), words * 8);
  return set;
}

void add(RadixIndex& index, Slot slot) {
  if (slot >= kMaxSlots || index.has(slot)) throw nb::value_error("the slot is taken, or above 2**20");
  index.add(slot);
}

void store(RadixIndex& index, Slot slot, nb::handle event, nb::handle name, const nb::object& delta) {
  const nb::list hashes = nb::cast<nb::list>(event.attr("block_hashes"));
  const nb::bytes tokens = nb::cast<nb::bytes>(event.attr("tokens"));
  const std::vector<std::int64_t> handles = handles_of(hashes);
  StoredPages stored{parent_of(event.attr("parent")), handles, bytes_of(tokens)};
  const auto page_size = nb::cast<std::int64_t>(event.attr("block_size"));
  stored.page_size = page_size < 0 ? 0 : static_cast<std::uint64_t>(page_size);
  stored.bigrams = nb::cast<bool>(event.attr("bigrams"));
  stored.medium = medium_of(event.attr("medium"));
  RadixDelta done;
  const Skip skip = index.store(checked(index, slot), stored, name_of(name), done);
  tell(delta, done);
  tell_skip(delta, skip);
}

void remove(RadixIndex& index, Slot slot, nb::handle event, const nb::object& delta) {
  RadixDelta done;
  const std::vector<std::int64_t> handles = handles_of(nb::cast<nb::list>(event.attr("block_hashes")));
  index.remove(checked(index, slot), handles, medium_of(event.attr("medium")), done);
  tell(delta, done);
}

nb::tuple by_medium(const std::array<std::uint32_t, kMedia>& pages, std::uint64_t unit) {
  nb::object counts = taken(PyTuple_New(kMedia));
  for (std::size_t medium = 0; medium < kMedia; ++medium) {
    PyTuple_SET_ITEM(counts.ptr(), medium, taken(PyLong_FromUnsignedLongLong(pages[medium] * unit)).release().ptr());
  }
  return nb::cast<nb::tuple>(counts);
}

// `Held` of index/radix_match.py: a tuple with names, made without calling its constructor.
nb::object held_tuple(PyTypeObject* type, const Held& held, std::uint64_t unit) {
  nb::object made = taken(type->tp_alloc(type, 3));
  PyTuple_SET_ITEM(made.ptr(), 0, taken(PyLong_FromUnsignedLong(held.slot)).release().ptr());
  PyTuple_SET_ITEM(made.ptr(), 1, taken(PyLong_FromUnsignedLongLong(held.pages * unit)).release().ptr());
  PyTuple_SET_ITEM(made.ptr(), 2, by_medium(held.by_medium, unit).release().ptr());
  return made;
}

nb::list match(const RadixIndex& index, const nb::bytes& tokens, const nb::list& names, const nb::int_& slots,
               nb::handle type) {
  if (!PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(type.ptr()), &PyTuple_Type)) {
    throw nb::type_error("the answers must be tuples");
  }
  std::vector<std::string_view> known;
  for (const nb::handle name : names) {
    if (const auto text = utf8_of(name)) known.push_back(*text);
  }
  const std::vector<Held> found = index.match(bytes_of(tokens), known, slot_set(slots));
  nb::object answers = taken(PyList_New(static_cast<Py_ssize_t>(found.size())));
  for (std::size_t at = 0; at < found.size(); ++at) {
    auto* of = reinterpret_cast<PyTypeObject*>(type.ptr());
    PyList_SET_ITEM(answers.ptr(), at, held_tuple(of, found[at], index.page_size()).release().ptr());
  }
  return nb::cast<nb::list>(answers);
}

nb::tuple pages(const RadixIndex& index, Slot slot) {
  const auto& pages = index.holder(checked(index, slot)).pages;
  return nb::make_tuple(pages[0], pages[1], pages[2], pages[3]);
}

nb::list dump(RadixIndex& index, Slot slot) {
  nb::list runs;
  for (const DumpedRun& run : index.dump(checked(index, slot))) {
    const nb::bytes hashes(run.handles.data(), run.handles.size() * sizeof(std::int64_t));
    runs.append(nb::make_tuple(static_cast<int>(run.medium), maybe(run.parent), nb::str(run.name.data(), run.name.size()),
                               hashes, nb::bytes(run.tokens.data(), run.tokens.size())));
  }
  return runs;
}

nb::dict copies(const RadixIndex& index, Slot slot) {
  const Holder& holder = index.holder(checked(index, slot));
  nb::dict counts;
  for (const auto& [page, count] : holder.copies) counts[nb::int_(holder.name_of(page))] = count;
  return counts;
}

void restore_run(RadixIndex& index, Slot slot, nb::handle dumped) {
  const auto fields = nb::cast<nb::tuple>(dumped);
  if (fields.size() != 5) throw nb::value_error("a dumped run has five fields");
  DumpedRun run{medium_of(fields[0]), parent_of(fields[1]), name_of(fields[2]), {}, {}};
  const nb::bytes hashes = nb::cast<nb::bytes>(fields[3]), tokens = nb::cast<nb::bytes>(fields[4]);
  const std::size_t count = hashes.size() / sizeof(std::int64_t);
  const std::size_t page_bytes = std::size_t{index.page_size()} * index.unit_bytes();
  if (hashes.size() % sizeof(std::int64_t) || tokens.size() != count * page_bytes) {
    throw nb::value_error("the hashes and tokens of a dumped run do not fit each other");
  }
  run.handles.resize(count);
  if (count) std::memcpy(run.handles.data(), hashes.data(), hashes.size());
  run.tokens = bytes_of(tokens);
  index.restore(slot, run);
}

void restore(RadixIndex& index, Slot slot, const nb::list& runs, const nb::dict& copies) {
  checked(index, slot);
  for (const nb::handle run : runs) restore_run(index, slot, run);
  for (const auto [page, count] : copies) {
    index.restore_copies(slot, handle_of(page), nb::cast<std::int64_t>(count));
  }
}

void bind_index(nb::module_& module) {
  nb::class_<RadixIndex> index(module, "RadixIndex", "See index/radix_native.py.");
  index.def(nb::init<std::uint32_t, std::uint32_t>(), nb::arg("page_size"), nb::arg("unit_bytes"))
      .def_prop_ro("page_size", &RadixIndex::page_size)
      .def_prop_ro("unit_bytes", &RadixIndex::unit_bytes)
      .def_prop_ro("size_bytes", &RadixIndex::size_bytes)
      .def_prop_ro("table_bytes", &RadixIndex::table_bytes)
      .def_prop_ro("page_count", &RadixIndex::page_count)
      .def_prop_ro("node_count", &RadixIndex::node_count)
      .def("fault", &RadixIndex::fault)
      .def("pages", &pages)
      .def("parked", [](const RadixIndex& index, Slot slot) { return index.holder(checked(index, slot)).parked.count(); })
      .def("add", &add)
      .def("drop", [](RadixIndex& index, Slot slot) { index.drop(checked(index, slot)); })
      .def("clear", [](RadixIndex& index, Slot slot) { return index.clear(checked(index, slot)); })
      .def("store", &store)
      .def("remove", &remove)
      .def("match", &match)
      .def("dump", &dump)
      .def("copies", &copies)
      .def("restore", &restore);
  bind_applying(index);
}

}  // namespace
}  // namespace kvroute::radix

void kvroute::bind_radix(nanobind::module_& module) {
  radix::bind_index(module);
  radix::bind_batch(module);
}
