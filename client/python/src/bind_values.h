// Enums, layouts, results and options as Python classes. Thread: holds the interpreter's lock.
#ifndef CRUMB_CLIENT_PYTHON_SRC_BIND_VALUES_H_
#define CRUMB_CLIENT_PYTHON_SRC_BIND_VALUES_H_

#include <nanobind/nanobind.h>

namespace crumb::python {

void BindEnums(nanobind::module_* module);
void BindLayouts(nanobind::module_* module);
void BindResults(nanobind::module_* module);
void BindOptions(nanobind::module_* module);

}  // namespace crumb::python

#endif  // CRUMB_CLIENT_PYTHON_SRC_BIND_VALUES_H_
