// Memory of Python objects: a buffer that crumbkv allocates and every library can wrap, and where
// the bytes of other objects lie. Thread: holds the interpreter's lock.
#ifndef CRUMB_CLIENT_PYTHON_SRC_MEMORY_H_
#define CRUMB_CLIENT_PYTHON_SRC_MEMORY_H_

#include <nanobind/nanobind.h>

namespace crumb::python {

// class Buffer, buffer_address(memoryview), dlpack_place(object).
void BindMemory(nanobind::module_* module);

}  // namespace crumb::python

#endif  // CRUMB_CLIENT_PYTHON_SRC_MEMORY_H_
