// Plain data as Python sees it: read-only where Python only reads.
#include "client/python/src/bind_values.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <string>

#include "client/python/src/blocks.h"
#include "client/python/src/results.h"
#include "crumb/client.h"
#include "crumb/layout_file.h"

namespace nb = nanobind;

namespace crumb::python {
namespace {

using client::Code;
using client::Layout;
using client::LayoutSpec;
using client::Options;
using client::Result;

std::string ResultText(const Result& one) {
  std::string text = std::string("<Result ") + client::ToString(one.code);
  if (one.tier != client::Tier::kNone) {
    text.append(" ").append(client::ToString(one.tier));
    text.append(" ").append(client::ToString(one.precision));
  }
  if (one.value_bytes != 0) text += " " + std::to_string(one.value_bytes) + " bytes";
  if (!one.note.empty()) text += " (" + one.note + ")";
  return text + ">";
}

std::string LayoutText(const Layout& layout) {
  const uint64_t bytes = layout.raw_bytes.empty() ? 0 : layout.raw_bytes[0];
  return "<Layout " + layout.name + ": " + std::to_string(layout.page_tokens) + " tokens of " +
         layout.dtype + ", " + std::to_string(layout.raw_bytes.size()) + " part(s) of " +
         std::to_string(bytes) + " bytes, codec " + layout.codec + ">";
}

Result ItemOf(const Results& self, Py_ssize_t index) {
  const auto size = static_cast<Py_ssize_t>(self.size());
  if (index < 0) index += size;
  if (index < 0 || index >= size) throw nb::index_error("Results index out of range");
  return self.all()[static_cast<size_t>(index)];
}

nb::list HitsOf(const Results& self) {
  nb::list hits;
  for (const Result& one : self.all()) hits.append(Results::IsHit(one.code));
  return hits;
}

void RaiseForStatus(const Results& self) {
  for (size_t i = 0; i < self.size(); ++i) {
    const Result& one = self.all()[i];
    if (Results::IsHit(one.code)) continue;
    std::string text = "result " + std::to_string(i) + " of " + std::to_string(self.size());
    if (!one.note.empty()) text += ": " + one.note;
    if (!self.message().empty()) text += ": " + self.message();
    Throw(one.code, text);
  }
}

LayoutSpec ParseSpec(const std::string& yaml, const std::string& name) {
  LayoutSpec spec;
  ThrowUnlessOk(client::ParseLayout(yaml, name, &spec));
  return spec;
}

}  // namespace

void BindEnums(nb::module_* module) {
  nb::enum_<Code>(*module, "Code", nb::is_arithmetic(), "What became of a key or a request.")
      .value("OK", Code::kOk)
      .value("MISS", Code::kMiss)
      .value("BUSY", Code::kBusy)
      .value("NO_SPACE", Code::kNoSpace)
      .value("QUOTA", Code::kQuota)
      .value("TIMEOUT", Code::kTimeout)
      .value("INVALID", Code::kInvalid)
      .value("UNAVAILABLE", Code::kUnavailable)
      .value("CORRUPT", Code::kCorrupt)
      .value("IO", Code::kIo)
      .value("EXISTS", Code::kExists)
      .value("CANCELLED", Code::kCancelled)
      .value("NON_FINITE", Code::kNonFinite)
      .value("MISMATCH", Code::kMismatch)
      .value("NOT_DURABLE", Code::kNotDurable)
      .value("DENIED", Code::kDenied);
  nb::enum_<client::Tier>(*module, "Tier", nb::is_arithmetic(), "Where a page lies.")
      .value("NONE", client::Tier::kNone)
      .value("HBM", client::Tier::kHbm)
      .value("DRAM", client::Tier::kDram)
      .value("NVME", client::Tier::kNvme)
      .value("PEER", client::Tier::kPeer);
  nb::enum_<client::Precision>(*module, "Precision", nb::is_arithmetic(), "How a page is stored.")
      .value("RAW", client::Precision::kRaw)
      .value("INT4", client::Precision::kInt4)
      .value("K3V2", client::Precision::kK3V2)
      .value("INT2", client::Precision::kInt2);
  nb::enum_<client::Form>(*module, "Form", nb::is_arithmetic(), "What lies at a slot.")
      .value("RAW", client::Form::kRaw)
      .value("PACKED", client::Form::kPacked)
      .value("PAGE", client::Form::kPage);
}

void BindLayouts(nb::module_* module) {
  nb::class_<LayoutSpec>(*module, "LayoutSpec").def(nb::new_(&ParseSpec));
  nb::class_<Layout>(*module, "Layout",
                     "What the bytes of pages mean; of the client that registered it. Layouts that "
                     "differ in anything share no pages.")
      .def_ro("name", &Layout::name)
      .def_ro("model", &Layout::model)
      .def_ro("revision", &Layout::revision)
      .def_ro("dtype", &Layout::dtype, "bf16, fp16, fp8_e4m3, fp8_e5m2 or opaque.")
      .def_ro("page_tokens", &Layout::page_tokens, "Tokens of a page.")
      .def_ro("hash", &Layout::hash_hex, "SHA-256 of the identity, in hexadecimal.")
      .def_ro("codec", &Layout::codec, "The codec in effect.")
      .def_ro("codec_note", &Layout::codec_note, "Why it is not the one asked for; else empty.")
      .def_ro("rotation", &Layout::rotation, "Hash of the rotation set in effect; else empty.")
      .def_ro("windows", &Layout::windows, "Tokens that stay raw: sink/recent (source), or off.")
      .def_ro("part_bytes", &Layout::raw_bytes, "Bytes of a raw page, for each part.")
      .def_ro("packed_bytes", &Layout::payload_bytes, "Bytes of a packed page, for each part.")
      .def_prop_ro(
          "page_bytes",
          [](const Layout& self) {
            return self.raw_bytes.empty()
                       ? uint64_t{0}
                       : *std::max_element(self.raw_bytes.begin(), self.raw_bytes.end());
          },
          "Bytes of a raw page, of the largest part: the room that a slot needs.")
      .def("__repr__", &LayoutText);
}

void BindResults(nb::module_* module) {
  nb::class_<Result>(*module, "Result", "What became of one key; true if it is a hit.")
      .def_ro("code", &Result::code)
      .def_ro("tier", &Result::tier, "Where the page was found.")
      .def_ro("precision", &Result::precision, "How it is stored.")
      .def_ro("lossy_depth", &Result::lossy_depth, "Lossy pages in its history.")
      .def_ro("value_bytes", &Result::value_bytes, "get: bytes at the slot now.")
      .def_ro("note", &Result::note, "More than the code says, where more is known.")
      .def_prop_ro("hit", [](const Result& self) { return Results::IsHit(self.code); })
      .def("__bool__", [](const Result& self) { return Results::IsHit(self.code); })
      .def("__repr__", &ResultText);
  nb::class_<Results>(*module, "Results",
                      "What a request came to: a sequence of Result, a key each.")
      .def_prop_ro("code", &Results::code, "Of the request as a whole.")
      .def_prop_ro("message", &Results::message, "Why it was refused, and what to do; else empty.")
      .def_prop_ro("ticket", &Results::ticket, "Of submit_*: which request this answers.")
      .def_prop_ro("prefix", &Results::prefix, "Keys at the beginning that are there.")
      .def_prop_ro("raw_tail_tokens", &Results::raw_tail_tokens,
                   "lookup: tokens at the end of that prefix that are raw.")
      .def_prop_ro("hits", &HitsOf, "list of bool, one for each key.")
      .def_prop_ro("hit_count", &Results::hits)
      .def_prop_ro(
          "codes",
          [](const Results& self) {
            nb::list codes;
            for (const Result& one : self.all()) codes.append(one.code);
            return codes;
          },
          "list of Code, one for each key.")
      .def_prop_ro("ok", &Results::ok, "True if every key is a hit (for a put: stored).")
      .def("raise_for_status", &RaiseForStatus,
           "Raises the exception of the first result that is no hit; else nothing.")
      .def("append", &Results::Append)
      .def("__len__", &Results::size)
      .def("__getitem__", &ItemOf)
      .def("__repr__", &Results::Describe);
  module->def("refused", [](Code code, const std::string& message, size_t count) {
    return Results::Refused({code, message}, count);
  });
}

void BindOptions(nb::module_* module) {
  nb::enum_<client::DataPlane>(*module, "DataPlane")
      .value("auto", client::DataPlane::kAuto)
      .value("ucx", client::DataPlane::kUcx)
      .value("grpc", client::DataPlane::kGrpc)
      .value("shm", client::DataPlane::kShm);
  nb::class_<Options>(*module, "Options")
      .def(nb::init<>())
      .def_rw("server", &Options::server)
      .def_rw("data_plane", &Options::data_plane)
      .def_rw("auto_ucx", &Options::auto_ucx)
      .def_rw("deadline_ms", &Options::deadline_ms)
      .def_rw("connect_ms", &Options::connect_ms)
      .def_rw("grace_ms", &Options::grace_ms)
      .def_rw("requests_in_flight_max", &Options::requests_in_flight_max)
      .def_rw("bytes_in_flight_max", &Options::bytes_in_flight_max)
      .def_rw("bounce_bytes", &Options::bounce_bytes)
      .def_rw("staging_bytes", &Options::staging_bytes)
      .def_rw("spin_us", &Options::spin_us)
      .def_rw("auto_reconnect", &Options::auto_reconnect)
      .def_rw("breaker_failures", &Options::breaker_failures)
      .def_rw("breaker_open_ms", &Options::breaker_open_ms)
      .def_rw("breaker_open_ms_max", &Options::breaker_open_ms_max)
      .def_rw("client_name", &Options::client_name)
      .def_rw("ucx_tls", &Options::ucx_tls)
      .def_rw("ucx_net_devices", &Options::ucx_net_devices)
      .def_rw("token_file", &Options::token_file)
      .def_rw("tls_ca", &Options::tls_ca)
      .def_rw("tls_cert", &Options::tls_cert)
      .def_rw("tls_key", &Options::tls_key);
}

}  // namespace crumb::python
