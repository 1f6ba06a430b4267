// The module crumbkv._crumbkv: Core and its verbs. What people call is crumbkv/_client.py.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <sys/mman.h>

#include <map>
#include <string>

#include "client/python/src/bind_values.h"
#include "client/python/src/core.h"
#include "client/python/src/memory.h"

namespace nb = nanobind;

namespace crumb::python {
namespace {

using client::Layout;
using client::LayoutSpec;
using client::Status;

// (form, durable, stop_at_gap, wait_ms, deadline_ms, verify, stream).
client::RequestOptions OptionsOf(const nb::tuple& fields) {
  client::RequestOptions options;
  options.form = static_cast<client::Form>(nb::cast<int>(fields[0]));
  options.durable = nb::cast<bool>(fields[1]);
  options.stop_at_gap = nb::cast<bool>(fields[2]);
  options.wait_ms = nb::cast<uint32_t>(fields[3]);
  options.deadline_ms = nb::cast<uint32_t>(fields[4]);
  options.verify = nb::cast<bool>(fields[5]);
  options.stream = reinterpret_cast<void*>(nb::cast<uintptr_t>(fields[6]));
  return options;
}

// What is asked, but for its keys. Keeps its layout alive.
struct Question {
  Verb verb;
  nb::object layout_object;
  const Layout* layout;
  uint32_t region_set;
};

Question MakeQuestion(int verb, const nb::object& layout, uint32_t region_set) {
  return {static_cast<Verb>(verb), layout, nb::cast<const Layout*>(layout), region_set};
}

Results Ask(Core* core, const Question& what, const nb::tuple& blocks, const nb::tuple& options) {
  const BlockBatch batch(blocks);
  return core->Ask({what.verb, what.layout, what.region_set, OptionsOf(options)}, batch);
}

client::Ticket Submit(Core* core, const Question& what, const nb::tuple& blocks,
                      const nb::tuple& options) {
  const BlockBatch batch(blocks);
  return core->Submit({what.verb, what.layout, what.region_set, OptionsOf(options)}, batch);
}

Layout RegisterLayout(Core* core, const LayoutSpec& spec) {
  Layout layout;
  core->Use([&](client::Client* client) { return client->RegisterLayout(spec, &layout); });
  core->Know(layout);
  return layout;
}

std::vector<Layout> ListLayouts(Core* core) {
  std::vector<Layout> layouts;
  core->Use([&](client::Client* client) { return client->ListLayouts(&layouts); });
  for (const Layout& layout : layouts) core->Know(layout);
  return layouts;
}

// memory: (fd, offset in the file, address, bytes).
void Share(Core* core, const nb::tuple& memory) {
  const client::SharedRange range{
      .fd = nb::cast<int>(memory[0]),
      .offset = nb::cast<uint64_t>(memory[1]),
      .address = reinterpret_cast<void*>(nb::cast<uintptr_t>(memory[2])),
      .bytes = nb::cast<uint64_t>(memory[3])};
  core->Use([&](client::Client* client) { return client->ShareMemory(range); });
}

// pages: (address, bytes, bytes of a slot).
uint32_t LendPages(Core* core, const Layout& layout, const nb::tuple& pages) {
  core->CheckKnown(layout);
  void* const base = reinterpret_cast<void*>(nb::cast<uintptr_t>(pages[0]));
  const auto bytes = nb::cast<uint64_t>(pages[1]);
  const auto slot_bytes = nb::cast<uint64_t>(pages[2]);
  uint32_t set = 0;
  core->Use([&](client::Client* client) {
    return client->LendPages(layout, base, bytes, slot_bytes, &set);
  });
  return set;
}

// tensors: of (address, bytes, slot stride, token stride, head stride).
std::vector<client::TensorMemory> TensorsOf(const nb::list& tensors) {
  std::vector<client::TensorMemory> out;
  for (const nb::handle& one : tensors) {
    const auto fields = nb::cast<nb::tuple>(one);
    out.push_back({.base = reinterpret_cast<void*>(nb::cast<uintptr_t>(fields[0])),
                   .bytes = nb::cast<uint64_t>(fields[1]),
                   .slot_stride = nb::cast<uint64_t>(fields[2]),
                   .token_stride = nb::cast<uint64_t>(fields[3]),
                   .head_stride = nb::cast<uint64_t>(fields[4])});
  }
  return out;
}

// shape: (slots, tokens of a slot).
uint32_t LendTensors(Core* core, const Layout& layout, const nb::list& tensors,
                     const nb::tuple& shape) {
  core->CheckKnown(layout);
  const std::vector<client::TensorMemory> memory = TensorsOf(tensors);
  const auto slots = nb::cast<uint32_t>(shape[0]);
  const auto tokens = nb::cast<uint32_t>(shape[1]);
  uint32_t set = 0;
  core->Use([&](client::Client* client) {
    return client->LendTensors(layout, memory, slots, tokens, &set);
  });
  return set;
}

// place: (pages or None, slots, tokens of a slot, first head group, head groups, codec place).
uint32_t LendGpu(Core* core, const Layout& layout, const nb::list& tensors,
                 const nb::tuple& place) {
  core->CheckKnown(layout);
  client::GpuRegions regions;
  regions.tensors = TensorsOf(tensors);
  if (!place[0].is_none()) {
    const auto pages = nb::cast<nb::tuple>(place[0]);
    regions.base = reinterpret_cast<void*>(nb::cast<uintptr_t>(pages[0]));
    regions.bytes = nb::cast<uint64_t>(pages[1]);
    regions.slot_bytes = nb::cast<uint64_t>(pages[2]);
  }
  regions.slots = nb::cast<uint32_t>(place[1]);
  regions.tokens_per_slot = nb::cast<uint32_t>(place[2]);
  regions.head_group_first = nb::cast<uint32_t>(place[3]);
  regions.head_group_count = nb::cast<uint32_t>(place[4]);
  regions.place = static_cast<client::CodecPlace>(nb::cast<int>(place[5]));
  uint32_t set = 0;
  core->Use(
      [&](client::Client* client) { return client->RegisterGpuRegions(layout, regions, &set); });
  return set;
}

Results Pin(Core* core, const Layout& layout, const nb::tuple& blocks, uint32_t ttl_ms) {
  core->CheckKnown(layout);
  const BlockBatch batch(blocks);
  client::Completion completion;
  core->Use([&](client::Client* client) {
    return client->Pin(layout, batch.blocks(), ttl_ms, &completion.results);
  });
  while (completion.prefix < completion.results.size() &&
         Results::IsHit(completion.results[completion.prefix].code)) {
    ++completion.prefix;
  }
  return Results(std::move(completion), batch.size(), {});
}

bool SlotIsOwned(Core* core, uint32_t region_set, uint32_t slot) {
  bool owned = false;
  core->Use([&](client::Client* client) {
    owned = client->SlotIsOwned(region_set, slot);
    return Status();
  });
  return owned;
}

std::map<std::string, uint64_t> StatsOf(Core* core) {
  client::ClientStats stats;
  core->Use([&](client::Client* client) {
    stats = client->stats();
    return Status();
  });
  return {{"circuit_open", stats.circuit == client::Circuit::kClosed ? 0 : 1},
          {"circuit_opened", stats.circuit_opened},
          {"circuit_refused", stats.circuit_refused},
          {"requests", stats.requests},
          {"completions", stats.completions},
          {"timeouts", stats.timeouts},
          {"cancelled", stats.cancelled},
          {"losses", stats.losses},
          {"reconnects", stats.reconnects},
          {"refused_busy", stats.refused_busy},
          {"in_flight", stats.in_flight},
          {"unanswered", stats.unanswered},
          {"bytes_in_flight", stats.bytes_in_flight}};
}

// (data plane, connected).
nb::tuple StateOf(Core* core) {
  std::string plane;
  bool connected = false;
  core->Use([&](client::Client* client) {
    plane = client->data_plane();
    connected = client->connected();
    return Status();
  });
  return nb::make_tuple(plane, connected);
}

void BindCore(nb::module_* module) {
  nb::class_<Question>(*module, "Question")
      .def(nb::new_(&MakeQuestion))
      .def_prop_ro("layout", [](const Question& self) { return self.layout_object; });
  nb::class_<Core>(*module, "Core")
      .def(nb::init<const client::Options&>())
      .def("close", &Core::Close)
      .def_prop_ro("closed", &Core::closed)
      .def("ask", &Ask)
      .def("submit", &Submit)
      .def("drain", &Core::Drain)
      .def("cancel", &Core::Cancel)
      .def("fileno", &Core::fd)
      .def("register_layout", &RegisterLayout)
      .def("list_layouts", &ListLayouts)
      .def("share", &Share)
      .def("lend_pages", &LendPages)
      .def("lend_tensors", &LendTensors)
      .def("lend_gpu", &LendGpu)
      .def("pin", &Pin)
      .def("slot_is_owned", &SlotIsOwned)
      .def("stats",
           [](Core* core) {
             nb::dict out;
             for (const auto& [name, value] : StatsOf(core)) out[name.c_str()] = value;
             return out;
           })
      .def("state", &StateOf)
      .def("unlend",
           [](Core* core, uint32_t set) {
             core->Use([set](client::Client* client) { return client->Unlend(set); });
           })
      .def("flush",
           [](Core* core, const Layout& layout) {
             core->CheckKnown(layout);
             core->Use([&layout](client::Client* client) { return client->Flush(layout); });
           })
      .def("reconnect", [](Core* core) {
        core->Use([](client::Client* client) { return client->Reconnect(); });
      });
  module->def("check_fork", &CheckFork);
}

}  // namespace
}  // namespace crumb::python

NB_MODULE(_crumbkv, module) {
  crumb::python::BindEnums(&module);
  crumb::python::BindLayouts(&module);
  crumb::python::BindResults(&module);
  crumb::python::BindOptions(&module);
  crumb::python::BindMemory(&module);
  crumb::python::BindCore(&module);
}
