// Sequences into blocks. Thread: holds the interpreter's lock.
#include "client/python/src/blocks.h"

#include <utility>

namespace nb = nanobind;

namespace crumb::python {
namespace {

using client::Block;
using client::Code;

constexpr size_t kBlocksMax = 256;

std::string At(const char* name, size_t index) {
  return std::string(name) + "[" + std::to_string(index) + "]";
}

[[noreturn]] void Invalid(const std::string& message) { Throw(Code::kInvalid, message); }

// A list or tuple with the sequence's items; a str or bytes is refused, as it is one key.
nb::object Sequence(nb::handle value, const char* name) {
  if (PyUnicode_Check(value.ptr()) || PyBytes_Check(value.ptr())) {
    Invalid(std::string(name) + ": a sequence is needed, not one " + Py_TYPE(value.ptr())->tp_name +
            "; put it into a list");
  }
  PyObject* items = PySequence_Fast(value.ptr(), "");
  if (items != nullptr) return nb::steal(items);
  PyErr_Clear();
  Invalid(std::string(name) + ": a sequence is needed, not " + Py_TYPE(value.ptr())->tp_name);
}

size_t SizeOf(nb::handle items) {
  return static_cast<size_t>(PySequence_Fast_GET_SIZE(items.ptr()));
}

PyObject* Item(nb::handle items, size_t index) {
  return PySequence_Fast_GET_ITEM(items.ptr(), static_cast<Py_ssize_t>(index));
}

uint32_t Number(PyObject* value, const char* name, size_t index) {
  PyObject* whole = PyNumber_Index(value);
  if (whole == nullptr) {
    PyErr_Clear();
    Invalid(At(name, index) + ": a whole number is needed, not " + Py_TYPE(value)->tp_name);
  }
  const long long number = PyLong_AsLongLong(whole);
  Py_DECREF(whole);
  if (PyErr_Occurred() != nullptr) PyErr_Clear();
  if (number < 0 || number > 0xffffffffll) {
    Invalid(At(name, index) + ": " + std::to_string(number) + " is not 0 to 4294967295");
  }
  return static_cast<uint32_t>(number);
}

void CheckCount(size_t count, size_t wanted, const char* name) {
  if (count == wanted) return;
  Invalid(std::string(name) + ": " + std::to_string(count) + " of them for " +
          std::to_string(wanted) + " keys; give one for each key");
}

}  // namespace

void Throw(Code code, const std::string& message) {
  const nb::object make = nb::module_::import_("crumbkv._errors").attr("error_for");
  const nb::object error = make(static_cast<int>(code), message.c_str());
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw nb::python_error();
}

void ThrowUnlessOk(const client::Status& status) {
  if (!status.ok()) Throw(status.code, status.message);
}

BlockBatch::BlockBatch(const nb::tuple& fields) {
  TakeKeys(fields[0]);
  TakeSlots(fields[1]);
  TakeParents(fields[2]);
  TakeNumbers(fields[3], "token_starts", &Block::token_start);
  TakeNumbers(fields[4], "token_counts", &Block::token_count);
  TakeNumbers(fields[5], "parts", &Block::part);
  TakeNumbers(fields[6], "value_bytes", &Block::value_bytes);
  const auto provenance = static_cast<client::Provenance>(nb::cast<int>(fields[7]));
  for (Block& block : blocks_) block.provenance = provenance;
}

std::string_view BlockBatch::View(nb::handle key, const char* name, size_t index) {
  Py_ssize_t bytes = 0;
  const char* data = nullptr;
  if (PyBytes_Check(key.ptr())) {
    data = PyBytes_AS_STRING(key.ptr());
    bytes = PyBytes_GET_SIZE(key.ptr());
  } else if (PyUnicode_Check(key.ptr())) {
    data = PyUnicode_AsUTF8AndSize(key.ptr(), &bytes);
    if (data == nullptr) {
      PyErr_Clear();
      Invalid(At(name, index) + ": the text is no valid Unicode; give bytes");
    }
  } else {
    Invalid(At(name, index) + ": keys are bytes or str, not " + Py_TYPE(key.ptr())->tp_name);
  }
  if (bytes < 1 || bytes > 256) {
    Invalid(At(name, index) + ": a key has 1 to 256 bytes, not " + std::to_string(bytes) +
            "; hash longer ones");
  }
  held_.push_back(nb::borrow(key));
  return {data, static_cast<size_t>(bytes)};
}

void BlockBatch::TakeKeys(nb::handle keys) {
  const nb::object items = Sequence(keys, "keys");
  const size_t count = SizeOf(items);
  if (count == 0 || count > kBlocksMax) {
    Invalid("keys: " + std::to_string(count) + " of them; a request has 1 to " +
            std::to_string(kBlocksMax));
  }
  held_.reserve(count);
  blocks_.resize(count);
  for (size_t i = 0; i < count; ++i) {
    blocks_[i].key = View(Item(items, i), "keys", i);
    blocks_[i].slot = static_cast<uint32_t>(i);
  }
}

void BlockBatch::TakeSlots(nb::handle slots) {
  if (slots.is_none()) return;
  const nb::object items = Sequence(slots, "slots");
  CheckCount(SizeOf(items), size(), "slots");
  slots_.resize(size());
  for (size_t i = 0; i < size(); ++i) {
    PyObject* item = Item(items, i);
    if (PyIndex_Check(item) != 0) {
      blocks_[i].slot = Number(item, "slots", i);
      continue;
    }
    const nb::object several = Sequence(item, At("slots", i).c_str());
    for (size_t j = 0; j < SizeOf(several); ++j) {
      slots_[i].push_back(Number(Item(several, j), "slots", i));
    }
    if (slots_[i].empty()) Invalid(At("slots", i) + ": no slot");
    blocks_[i].slots = slots_[i];
  }
}

void BlockBatch::TakeParents(nb::handle parents) {
  if (parents.is_none()) return;
  const nb::object items = Sequence(parents, "parents");
  CheckCount(SizeOf(items), size(), "parents");
  for (size_t i = 0; i < size(); ++i) {
    PyObject* item = Item(items, i);
    if (item != Py_None) blocks_[i].parent = View(item, "parents", i);
  }
}

void BlockBatch::TakeNumbers(nb::handle values, const char* name, uint32_t Block::*field) {
  if (values.is_none()) return;
  const nb::object items = Sequence(values, name);
  CheckCount(SizeOf(items), size(), name);
  for (size_t i = 0; i < size(); ++i) {
    if (Item(items, i) != Py_None) blocks_[i].*field = Number(Item(items, i), name, i);
  }
}

}  // namespace crumb::python
