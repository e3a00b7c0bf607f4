// How much of a prompt a pool's workers hold, for Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>

#include <algorithm>

#include "core/bind_pool.h"
#include "core/block_match.h"

namespace kvroute {
namespace {

PromptBlocks prompt_of(const Pool& pool, const nb::bytes& root, const nb::bytes& tokens, const nb::list& extras) {
  PromptBlocks prompt{key_from(root), bytes_of(tokens), pool.step(), {}};
  for (nb::handle one : extras) {
    const auto [block, joined] = nb::cast<std::pair<nb::object, nb::bytes>>(one);
    const std::span<const std::uint8_t> extra = bytes_of(joined);
    prompt.extras.emplace_back(nb::cast<std::size_t>(block), std::vector(extra.begin(), extra.end()));
  }
  return prompt;
}

// (worker, blocks, and how many of them lie in gpu, cpu, disk, other) of each worker with one block at least.
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

// An empty dict with room for so many, where CPython lends its own way to make one.
nb::dict roomy(std::size_t count) {
#if PY_VERSION_HEX < 0x030D0000
  PyObject* made = _PyDict_NewPresized(static_cast<Py_ssize_t>(count));
  if (made == nullptr) throw nb::python_error();
  return nb::steal<nb::dict>(made);
#else
  static_cast<void>(count);
  return {};
#endif
}

nb::dict matches(const Pool& pool, const nb::bytes& root, const nb::bytes& tokens, const nb::list& extras,
                 const nb::list& names, const nb::set& eagles, const nb::object& only, const nb::object& type) {
  const std::vector<Depth> depths = walk(pool.holders, prompt_of(pool, root, tokens, extras), pool.plain_workers(), 0);
  Matches making(pool, tokens.size() / 4, type);
  const bool any_eagle = eagles.size() > 0;
  nb::dict found = roomy(depths.size());
  for (auto depth = depths.rbegin(); depth != depths.rend(); ++depth) {
    if (depth->number >= names.size()) throw nb::index_error("a worker without a name");
    const nb::handle worker = PyList_GET_ITEM(names.ptr(), static_cast<Py_ssize_t>(depth->number));
    const int asked = only.is_none() ? 1 : PySequence_Contains(only.ptr(), worker.ptr());
    if (asked == 0) continue;
    const bool eagle = asked > 0 && any_eagle && eagles.contains(nb::int_(depth->number));
    if (asked < 0 || PyDict_SetItem(found.ptr(), worker.ptr(), making.of(worker, *depth, eagle).ptr()) < 0) {
      throw nb::python_error();
    }
  }
  return found;
}

}  // namespace

void bind_match(nb::class_<Pool>& pool) {
  pool.def("matches", &matches, nb::arg("root"), nb::arg("tokens"), nb::arg("extras"), nb::arg("names"),
           nb::arg("eagles"), nb::arg("only").none(), nb::arg("type"))
      .def("walk_one",
           [](const Pool& self, const nb::bytes& root, const nb::bytes& tokens, const nb::list& extras,
              std::uint32_t number, std::uint32_t group) {
             return walked(self, root, tokens, extras, self.just(number), group);
           });
}

}  // namespace kvroute
