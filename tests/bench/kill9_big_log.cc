// See kill9_big_log.h.
#include "tests/bench/kill9_big_log.h"

#include <array>
#include <cstdio>

#include "absl/strings/str_cat.h"

namespace crumb {

using client::Block;
using client::Code;
using client::Completion;
using client::Ticket;

bool BigLog::Run() {
  Place place({.crumbd = settings_.crumbd,
               .parent = settings_.parent,
               .volume = settings_.volume,
               .dram_bytes = 64ull << 20,
               .nvme_bytes = settings_.fill_bytes + (1ull << 30),
               .segment_bytes = 64ull << 20});
  std::unique_ptr<ChildDaemon> daemon = StartDaemon(&place, nullptr, figures_);
  if (daemon == nullptr || !Open(place) || !Each(Verb::kPut, 1)) return false;
  daemon->Kill();
  client_.reset();
  daemon = StartDaemon(&place, nullptr, figures_);
  if (daemon == nullptr) return false;
  ready_us_ = daemon->ready_us();
  return Open(place) && Each(Verb::kGet, 1);
}

bool BigLog::Open(const Place& place) {
  client_ = ConnectTo(settings_, place.Server());
  if (client_ == nullptr) return false;
  const Kind kind{"big", false, kBytes, 0};
  memory_.resize(kDepth * kBytes);
  client::Status status = client_->RegisterLayout(SpecOf(kind), &layout_);
  if (status.ok()) {
    status = client_->LendPages(layout_, memory_.data(), memory_.size(), kBytes, &set_);
  }
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.message.c_str());
  return status.ok();
}

bool BigLog::Each(Verb verb, uint64_t first) {
  const uint64_t last = first + settings_.fill_bytes / kBytes;
  std::array<uint64_t, kDepth> keys{};
  std::array<Ticket, kDepth> tickets{};
  std::vector<Completion> done;
  for (uint64_t next = first; next < last || client_->in_flight() > 0;) {
    for (uint32_t lane = 0; lane < kDepth && next < last; ++lane) {
      if (tickets[lane] != 0) continue;
      keys[lane] = next;
      const MutableBytes slot(memory_.data() + lane * kBytes, kBytes);
      if (verb == Verb::kPut) FillValue(next, 1, slot);
      const std::string name = absl::StrCat("big/", next);
      Block block;
      block.key = name;
      block.slot = lane;
      client::RequestOptions options;
      options.durable = verb == Verb::kPut;
      const client::Status status =
          verb == Verb::kPut ? client_->SubmitPut(layout_, set_, {block}, options, &tickets[lane])
                             : client_->SubmitGet(layout_, set_, {block}, options, &tickets[lane]);
      if (!status.ok()) break;
      ++next;
    }
    done.clear();
    if (client_->Drain(kPatienceMs, &done) == 0) return false;
    for (const Completion& completion : done) {
      for (uint32_t lane = 0; lane < kDepth; ++lane) {
        if (tickets[lane] != completion.ticket) continue;
        tickets[lane] = 0;
        Learn(verb, keys[lane], completion.results.at(0).code,
              {memory_.data() + lane * kBytes, kBytes});
      }
    }
  }
  return true;
}

void BigLog::Learn(Verb verb, uint64_t key, Code code, Bytes value) {
  if (verb == Verb::kPut) {
    if (code == Code::kOk) {
      ++stored_;
    } else {
      figures_->Accuse(key, absl::StrCat("a durable put was refused: ", client::ToString(code)));
    }
  } else if (code != Code::kOk) {
    figures_->Accuse(key, absl::StrCat("a durable page is gone: ", client::ToString(code)));
  } else if (GenerationOf(key, value) != 1) {
    figures_->Accuse(key, "wrong bytes");
  }
}

}  // namespace crumb
