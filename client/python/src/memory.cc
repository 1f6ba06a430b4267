// Buffer is one sealed anonymous file, mapped shared: the daemon maps it too.
#include "client/python/src/memory.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>

#include "client/python/src/blocks.h"
#include "crumb/shared_memory.h"

namespace nb = nanobind;

namespace crumb::python {
namespace {

using client::SharedMemory;

int GetBuffer(PyObject* self, Py_buffer* view, int flags) {
  auto* const memory = nb::inst_ptr<SharedMemory>(self);
  return PyBuffer_FillInfo(view, self, memory->data(), static_cast<Py_ssize_t>(memory->bytes()), 0,
                           flags);
}

PyType_Slot buffer_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(GetBuffer)}, {0, nullptr}};

std::unique_ptr<SharedMemory> MakeBuffer(uint64_t nbytes) {
  std::unique_ptr<SharedMemory> memory;
  ThrowUnlessOk(SharedMemory::Create(nbytes, &memory));
  return memory;
}

nb::object DlpackOf(nb::object self, const nb::kwargs& wishes) {
  auto* const memory = nb::inst_ptr<SharedMemory>(self);
  const size_t shape[1] = {memory->bytes()};
  const nb::ndarray<uint8_t, nb::ndim<1>, nb::device::cpu> array(memory->data(), 1, shape, self);
  if (wishes.contains("copy") && nb::cast<nb::object>(wishes["copy"]).is(nb::bool_(true))) {
    throw nb::buffer_error(
        "a Buffer is not copied: it is shared with the daemon; copy what wraps it");
  }
  return nb::cast(array);  // a capsule
}

// (address, shape, strides in bytes, bytes of an element, read-only, DLPack device type and id).
nb::tuple PlaceOf(nb::handle object) {
  bool read_only = false;
  nb::ndarray<nb::ro> array;
  nb::ndarray<> writable;
  if (nb::try_cast(object, writable)) {
    array = nb::ndarray<nb::ro>(writable);
  } else if (nb::try_cast(object, array)) {
    read_only = true;
  } else {
    return nb::tuple();
  }
  const auto element = static_cast<int64_t>(array.itemsize());
  nb::list shape, strides;
  for (size_t i = 0; i < array.ndim(); ++i) {
    shape.append(array.shape(i));
    strides.append(array.stride(i) * element);
  }
  return nb::make_tuple(reinterpret_cast<uintptr_t>(array.data()), shape, strides, element,
                        read_only, array.device_type(), array.device_id());
}

uintptr_t AddressOf(nb::handle view) {
  Py_buffer buffer{};
  if (PyObject_GetBuffer(view.ptr(), &buffer, PyBUF_FULL_RO) != 0) throw nb::python_error();
  const auto address = reinterpret_cast<uintptr_t>(buffer.buf);
  PyBuffer_Release(&buffer);
  return address;
}

}  // namespace

void BindMemory(nb::module_* module) {
  nb::class_<SharedMemory>(
      *module, "Buffer", nb::type_slots(buffer_slots),
      "Memory that the daemon of this host maps too.\n\nWritable, page-aligned, "
      "zeroed. Wrap it: memoryview(b), numpy.frombuffer(b, dtype), "
      "torch.frombuffer(b, dtype=torch.bfloat16), or anything that takes DLPack.")
      .def(nb::new_(&MakeBuffer), nb::arg("nbytes"))
      .def_prop_ro("nbytes", &SharedMemory::bytes, "Size in bytes, in whole pages.")
      .def_prop_ro(
          "address",
          [](const SharedMemory& self) { return reinterpret_cast<uintptr_t>(self.data()); },
          "Where it is mapped in this process.")
      .def_prop_ro(
          "fd", [](const SharedMemory& self) { return self.range().fd; },
          "The file behind it; it stays the Buffer's.")
      .def("__len__", &SharedMemory::bytes)
      .def("__dlpack__", &DlpackOf, "One dimension of uint8.")
      .def("__dlpack_device__", [](const SharedMemory&) { return nb::make_tuple(1, 0); })
      .def("__repr__", [](const SharedMemory& self) {
        return "<Buffer of " + std::to_string(self.bytes()) + " bytes, shared with the daemon>";
      });
  module->def("dlpack_place", &PlaceOf);
  module->def("buffer_address", &AddressOf);
}

}  // namespace crumb::python
