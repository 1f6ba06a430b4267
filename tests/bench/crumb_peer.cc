// Keys are numbers in text; values are random bytes that begin with their number.
#include "tests/bench/crumb_peer.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace crumb::bench {
namespace {

void Check(const client::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "bench: %s\n", status.message.c_str());
  std::exit(1);
}

}  // namespace

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double Tally::Percentile(double share) {
  if (latencies_us.empty()) return 0;
  std::sort(latencies_us.begin(), latencies_us.end());
  return static_cast<double>(
      latencies_us[static_cast<size_t>(share * static_cast<double>(latencies_us.size() - 1))]);
}

uint64_t LastLevelCacheBytes() {
  uint64_t largest = 0;
  for (int index = 0; index < 8; ++index) {
    std::ifstream file(absl::StrCat("/sys/devices/system/cpu/cpu0/cache/index", index, "/size"));
    uint64_t kib = 0;
    if (file >> kib) largest = std::max(largest, kib << 10);
  }
  return largest == 0 ? 32ull << 20 : largest;
}

std::string KeyOf(uint64_t number) { return absl::StrCat("bench/", number); }

void Stamp(uint64_t number, MutableBytes value) {
  std::memcpy(value.data(), &number, sizeof(number));
}

void FillRandom(MutableBytes memory) {
  Rng rng(memory.size());
  for (size_t i = 0; i + 8 <= memory.size(); i += 8) {
    const uint64_t word = rng.Next();
    std::memcpy(memory.data() + i, &word, sizeof(word));
  }
}

std::unique_ptr<ChildDaemon> StartDaemon(const Settings& settings, const std::string& dir,
                                         uint64_t pool_bytes) {
  std::ofstream(dir + "/crumbd.yaml") << "data_dir: " << dir << "/data\nlisten:\n"
                                      << "  grpc: 127.0.0.1:0\n  http: off\n  socket: " << dir
                                      << "/s\npool:\n  dram_bytes: " << pool_bytes
                                      << "\nnvme:\n  bytes: 0\nlog:\n  level: warning\n";
  auto daemon = ChildDaemon::Spawn(
      {.program = settings.crumbd, .config_file = dir + "/crumbd.yaml", .log_file = dir + "/log"});
  if (daemon.ok()) {
    if (const absl::Status ready = (*daemon)->WaitReady(30'000); !ready.ok()) daemon = ready;
  }
  if (!daemon.ok()) {
    std::fprintf(stderr, "bench: %s\n", std::string(daemon.status().message()).c_str());
    return nullptr;
  }
  return *std::move(daemon);
}

CrumbPeer::CrumbPeer(const Settings& settings, uint64_t keys, const ChildDaemon& daemon)
    : settings_(settings), keys_(keys), lanes_(settings.depth) {
  client::Options options;
  options.server = daemon.socket().empty() ? daemon.grpc() : absl::StrCat("unix:", daemon.socket());
  options.spin_us = settings.spin_us;
  options.data_plane =
      settings.transport == "shm" ? client::DataPlane::kShm : client::DataPlane::kUcx;
  Check(client::Client::Connect(options, &client_));
  Check(client_->RegisterLayout(Spec(), &layout_));
  const uint64_t bytes = settings.depth * settings.batch * settings.value_bytes;
  Check(client::SharedMemory::Create(bytes, &memory_));
  FillRandom({memory_->data(), bytes});
  Check(client_->ShareMemory(memory_->range()));
  Check(client_->LendPages(layout_, memory_->data(), bytes, settings.value_bytes, &region_set_));
  names_.resize(settings.batch);
  blocks_.resize(settings.batch);
  Fill();
}

Tally CrumbPeer::Run(const std::string& verb) {
  Tally tally;
  const double begin = Now();
  uint64_t done = 0;
  double now = begin;
  bool go_on = true;
  while (go_on || client_->in_flight() > 0) {
    for (size_t lane = 0; go_on && lane < lanes_.size(); ++lane) {
      if (lanes_[lane].ticket == 0) Submit(lane, verb == "put");
    }
    done += Reap(&tally);
    now = Now();
    go_on = now - begin < settings_.seconds;
  }
  tally.values = done;
  tally.mib_per_s = static_cast<double>(done * settings_.value_bytes) / (now - begin) / (1 << 20);
  return tally;
}

client::LayoutSpec CrumbPeer::Spec() const {
  client::LayoutSpec spec;
  spec.name = spec.model = "bench";
  spec.revision = "1";
  spec.weights_dtype = spec.rope_kind = "none";
  spec.dtype = "opaque";
  spec.codec = "raw";
  spec.page_tokens = static_cast<uint32_t>(std::max<uint64_t>(settings_.value_bytes / 4096, 1));
  client::LayerGroup& group = spec.groups.emplace_back();
  group.kind = "mha";
  group.kv_heads = 1;
  group.k_dim = static_cast<uint32_t>(settings_.value_bytes / spec.page_tokens);
  group.layer_ids = {0};
  return spec;
}

void CrumbPeer::Submit(size_t lane, bool put) {
  for (size_t i = 0; i < settings_.batch; ++i) {
    const uint64_t key = put ? next_key_++ : rng_.Below(keys_);
    const size_t slot = lane * settings_.batch + i;
    names_[i] = KeyOf(key);
    blocks_[i].key = names_[i];
    blocks_[i].slot = static_cast<uint32_t>(slot);
    if (put) Stamp(key, {memory_->data() + slot * settings_.value_bytes, 8});
  }
  lanes_[lane].sent = Now();
  Check(put ? client_->SubmitPut(layout_, region_set_, blocks_, {}, &lanes_[lane].ticket)
            : client_->SubmitGet(layout_, region_set_, blocks_, {}, &lanes_[lane].ticket));
}

uint64_t CrumbPeer::Reap(Tally* tally) {
  done_.clear();
  client_->Drain(1000, &done_);
  uint64_t values = 0;
  for (const client::Completion& one : done_) {
    for (Lane& lane : lanes_) {
      if (lane.ticket != one.ticket) continue;
      tally->latencies_us.push_back(static_cast<float>((Now() - lane.sent) * 1e6));
      lane.ticket = 0;
    }
    for (const client::Result& result : one.results) {
      if (result.code != client::Code::kOk) {
        Check({result.code, absl::StrCat("a value answered ", client::ToString(result.code))});
      }
      ++values;
    }
  }
  client_->Recycle(&done_);
  return values;
}

void CrumbPeer::Fill() {
  Tally unused;
  while (next_key_ < keys_ || client_->in_flight() > 0) {
    for (size_t lane = 0; next_key_ < keys_ && lane < lanes_.size(); ++lane) {
      if (lanes_[lane].ticket == 0) Submit(lane, true);
    }
    Reap(&unused);
  }
}

}  // namespace crumb::bench
