// Checks, then the Hub without the interpreter's lock.
#include "client/python/src/core.h"

#include <unistd.h>

#include <cmath>

namespace nb = nanobind;

namespace crumb::python {
namespace {

using client::Code;
using client::Status;

constexpr double kDrainSecondsMax = 4'000'000;

// The process that first had a client. A forked child inherits it.
pid_t first_pid = 0;

// False: a signal's handler raised; the exception waits to be thrown.
bool NoSignal() {
  const nb::gil_scoped_acquire locked;
  return PyErr_CheckSignals() == 0;
}

[[noreturn]] void ThrowFork() {
  const nb::object make = nb::module_::import_("crumbkv._errors").attr("fork_error");
  const nb::object error = make();
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw nb::python_error();
}

[[noreturn]] void ThrowClosed() {
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  const nb::object make = nb::module_::import_("crumbkv._errors").attr("closed_error");
  const nb::object error = make();
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw nb::python_error();
}

}  // namespace

void CheckFork() {
  if (first_pid != 0 && first_pid != ::getpid()) ThrowFork();
}

Core::Core(const client::Options& options) : pid_(::getpid()) {
  CheckFork();
  first_pid = pid_;
  Status status;
  {
    const nb::gil_scoped_release unlocked;
    status = Hub::Open(options, &hub_);
  }
  ThrowUnlessOk(status);
}

Core::~Core() {
  if (pid_ != ::getpid()) static_cast<void>(hub_.release());
}

void Core::Close() {
  if (closed_) return;
  closed_ = true;
  if (pid_ != ::getpid()) return;
  const nb::gil_scoped_release unlocked;
  hub_->Close();
}

Hub* Core::hub() {
  if (pid_ != ::getpid()) ThrowFork();
  if (closed_) ThrowClosed();
  return hub_.get();
}

void Core::Use(const std::function<Status(client::Client*)>& use) {
  Hub* const to = hub();
  Status status;
  bool open = false;
  {
    const nb::gil_scoped_release unlocked;
    open = to->With([&](client::Client* client) { status = use(client); });
  }
  if (!open) ThrowClosed();
  ThrowUnlessOk(status);
}

void Core::CheckKnown(const client::Layout& layout) const {
  const auto found = hashes_.find(layout.handle);
  if (found != hashes_.end() && found->second == layout.hash_hex) return;
  Throw(Code::kInvalid, "layout: " + layout.name +
                            " is another client's; register it with this one (register_layout)");
}

Results Core::Ask(const Query& query, const BlockBatch& batch) {
  CheckKnown(*query.layout);
  Hub* const to = hub();
  client::Completion completion;
  Status status;
  {
    const nb::gil_scoped_release unlocked;
    status = to->Ask({query.verb, query.layout, query.region_set, &batch.blocks(), query.options},
                     NoSignal, &completion);
  }
  if (status.ok()) return Results(std::move(completion), batch.size(), {});
  if (status.code == Code::kBusy || status.code == Code::kUnavailable) {
    return Results::Refused(status, batch.size());
  }
  if (status.code == Code::kCancelled) ThrowClosed();
  Throw(status.code, status.message);
}

client::Ticket Core::Submit(const Query& query, const BlockBatch& batch) {
  CheckKnown(*query.layout);
  Hub* const to = hub();
  client::Ticket ticket = 0;
  Status status;
  {
    const nb::gil_scoped_release unlocked;
    status = to->Submit(
        {query.verb, query.layout, query.region_set, &batch.blocks(), query.options}, &ticket);
  }
  ThrowUnlessOk(status);
  return ticket;
}

std::vector<Results> Core::Drain(double seconds) {
  if (!(seconds >= 0)) Throw(Code::kInvalid, "timeout: seconds from 0 on, or None");
  const double bounded = std::fmin(seconds, kDrainSecondsMax);
  const auto timeout_ms = static_cast<uint32_t>(std::ceil(bounded * 1000));
  Hub* const to = hub();
  std::vector<client::Completion> done;
  bool good = false;
  {
    const nb::gil_scoped_release unlocked;
    good = to->Drain(timeout_ms, NoSignal, &done);
  }
  if (!good && done.empty()) ThrowClosed();
  std::vector<Results> out;
  out.reserve(done.size());
  for (client::Completion& one : done) {
    const size_t count = one.results.size();
    out.emplace_back(std::move(one), count, std::string());
  }
  return out;
}

void Core::Cancel(client::Ticket ticket) {
  Use([ticket](client::Client* client) {
    const Status status = client->Cancel(ticket);
    return status.code == Code::kMiss ? Status() : status;
  });
}

int Core::fd() { return hub()->fd(); }

}  // namespace crumb::python
