// See kill9_books.h.
#include "tests/bench/kill9_books.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/check.h"
#include "cachesvc/base/clock.h"

namespace crumb {

using client::Client;

client::LayoutSpec SpecOf(const Kind& kind) {
  client::LayoutSpec spec;
  spec.name = kind.name;
  spec.model = absl::StrCat("kill9-", kind.name);
  spec.revision = "1";
  client::LayerGroup& group = spec.groups.emplace_back();
  group.layer_ids = {0};
  if (kind.lossy) {
    spec.page_tokens = 32;
    group.kv_heads = 2;
    group.k_dim = group.v_dim = 64;
    group.layer_ids = {0, 1};
    spec.codec = "crumb-int4";
    return spec;
  }
  spec.dtype = "opaque";
  spec.weights_dtype = "none";
  spec.rope_kind = "none";
  spec.codec = "raw";
  spec.page_tokens = 1;
  group.kind = "mha";
  group.kv_heads = 1;
  group.k_dim = static_cast<uint32_t>(kind.bytes);
  return spec;
}

void Figures::Accuse(uint64_t key, const std::string& what, const std::string& history) {
  if (what.empty()) return;
  ++accusations[what.substr(0, what.find(':'))];
  if (first.size() < 10) {
    first.push_back(
        absl::StrCat("key ", absl::Hex(key), ": ", what, "; life:verb=answer", history));
  }
}

void Figures::Take(const Figures& from) {
  for (const auto& [mine, other] :
       {std::pair(&puts, from.puts), std::pair(&durable, from.durable), std::pair(&gets, from.gets),
        std::pair(&hits, from.hits), std::pair(&misses, from.misses),
        std::pair(&deletes, from.deletes), std::pair(&unknown, from.unknown),
        std::pair(&refused, from.refused), std::pair(&checked, from.checked),
        std::pair(&durable_checked, from.durable_checked), std::pair(&nvme_hits, from.nvme_hits),
        std::pair(&hangs, from.hangs)}) {
    *mine += other;
  }
  answer_us_max = std::max(answer_us_max, from.answer_us_max);
  for (const auto& [what, count] : from.accusations) accusations[what] += count;
  for (const std::string& one : from.first) {
    if (first.size() < 10) first.push_back(one);
  }
}

std::unique_ptr<Client> ConnectTo(const Settings& settings, const std::string& server) {
  client::Options options;
  options.server = server;
  options.data_plane =
      settings.transport == "ucx"
          ? client::DataPlane::kUcx
          : (settings.transport == "shm" ? client::DataPlane::kShm : client::DataPlane::kGrpc);
  options.deadline_ms = settings.deadline_ms;
  options.client_name = "kill9";
  std::unique_ptr<Client> out;
  const client::Status status = Client::Connect(options, &out);
  if (!status.ok()) std::fprintf(stderr, "connect: %s\n", status.message.c_str());
  return out;
}

std::unique_ptr<ChildDaemon> StartDaemon(Place* place, Rng* rng, Figures* figures) {
  const SteadyClock clock;
  for (;;) {
    auto daemon = place->Spawn();
    CRUMB_CHECK(daemon.ok());
    if (rng != nullptr && rng->Chance(1, 10)) {
      const uint64_t until_us = clock.now_us() + rng->Below(60'000);
      const bool ready =
          (*daemon)->WaitReady(static_cast<uint32_t>((until_us - clock.now_us()) / 1000)).ok();
      static_cast<void>(ready);
      (*daemon)->Kill();
      ++figures->killed_starting;
      continue;
    }
    const absl::Status status = (*daemon)->WaitReady(kStartMs);
    if (!status.ok()) {
      std::fprintf(stderr, "%s\n%s\n", std::string(status.message()).c_str(),
                   place->LogTail().c_str());
      return nullptr;
    }
    figures->ready_us_max = std::max(figures->ready_us_max, (*daemon)->ready_us());
    return *std::move(daemon);
  }
}

}  // namespace crumb
