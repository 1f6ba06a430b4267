// The parts of a page's way through the shard, each by itself, each beside what bounds it: memory
// bandwidth for what reads bytes (measured first), one cache miss for what reads tables, one
// instruction's throughput for the cipher. One thread.
#include <benchmark/benchmark.h>

#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "cachesvc/base/check.h"
#include "cachesvc/base/hash.h"
#include "cachesvc/base/keys.h"
#include "cachesvc/base/loop.h"
#include "cachesvc/base/rng.h"
#include "cachesvc/base/wire.h"
#include "cachesvc/core/eviction_policy.h"
#include "cachesvc/core/index.h"
#include "gpu/pool/page_pool.h"

namespace crumb {
namespace {

constexpr size_t kPageBytes = 256 << 10;
constexpr size_t kSetBytes = 128 << 20;  // over any last-level cache

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Bytes a second of one thread: reading, and copying.
struct Bandwidth {
  double read = 0, copy = 0;
  Bandwidth() {
    std::vector<uint64_t> from(kSetBytes / 8, 1), to(kSetBytes / 8, 2);
    double begin = Seconds();
    uint64_t sum = 0;
    for (const uint64_t word : from) sum += word;
    benchmark::DoNotOptimize(sum);
    read = kSetBytes / (Seconds() - begin);
    begin = Seconds();
    std::memcpy(to.data(), from.data(), kSetBytes);
    benchmark::DoNotOptimize(to.data());
    copy = kSetBytes / (Seconds() - begin);
  }
};
const Bandwidth& Limits() {
  static const Bandwidth limits;
  return limits;
}
void BoundBy(benchmark::State& state, const char* what, double bytes_per_s) {
  state.SetLabel(absl::StrFormat("limit: %s %.1f GB/s", what, bytes_per_s / 1e9));
}

// Pages spread over more memory than caches hold.
struct Pages {
  std::vector<uint8_t> memory = std::vector<uint8_t>(kSetBytes, 7);
  size_t at = 0;
  Bytes Next() {
    at = at + kPageBytes == kSetBytes ? 0 : at + kPageBytes;
    return {memory.data() + at, kPageBytes};
  }
};

void Hash(benchmark::State& state) {
  Pages pages;
  for (auto unused : state) benchmark::DoNotOptimize(Xxh3(pages.Next()));
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(kPageBytes));
  BoundBy(state, "reading", Limits().read);
}
BENCHMARK(Hash);

// As page jobs do it: piece by piece, so that what was copied is hashed while it is near.
void CopyAndHash(benchmark::State& state) {
  Pages pages;
  std::vector<uint8_t> to(kPageBytes);
  constexpr size_t kPiece = 16 << 10;
  for (auto unused : state) {
    const Bytes page = pages.Next();
    Xxh3Stream hash;
    for (size_t i = 0; i < kPageBytes; i += kPiece) {
      std::memcpy(to.data() + i, page.data() + i, kPiece);
      hash.Add(Bytes(to.data() + i, kPiece));
    }
    benchmark::DoNotOptimize(hash.Digest());
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(kPageBytes));
  BoundBy(state, "copying", Limits().copy);
}
BENCHMARK(CopyAndHash);

void Keys(benchmark::State& state) {
  const KeyDeriver deriver(ClusterSecret{}, "", IdentityHash{});
  std::vector<BlockKey> keys(static_cast<size_t>(state.range(0)));
  for (auto unused : state) {
    deriver.DeriveInPlace(absl::MakeSpan(keys));
    benchmark::DoNotOptimize(keys.data());
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
  state.SetLabel("limit: AES-128, 10 rounds a key, one or two a cycle");
}
BENCHMARK(Keys)->Arg(1)->Arg(32)->Arg(128);

BlockKey RandomKey(uint64_t number) {
  Rng rng(number);
  BlockKey key;
  for (size_t i = 0; i < key.bytes.size(); i += 8) {
    const uint64_t word = rng.Next();
    std::memcpy(key.bytes.data() + i, &word, sizeof(word));
  }
  return key;
}

void IndexProbe(benchmark::State& state) {
  const auto entries = static_cast<uint32_t>(state.range(0));
  core::Index index = std::move(core::Index::Create(entries, nullptr)).value();
  for (uint32_t i = 0; i < entries; ++i) CRUMB_CHECK(index.Insert(RandomKey(i)) != core::kNoId);
  std::vector<BlockKey> keys;
  Rng rng(1);
  for (int i = 0; i < 1 << 16; ++i) keys.push_back(RandomKey(rng.Below(entries)));
  constexpr size_t kBatch = 128;
  size_t at = 0;
  for (auto unused : state) {
    const BlockKey* const batch = &keys[at];
    at = (at + kBatch) % keys.size();
    for (size_t i = 0; i < kBatch; ++i) index.PrefetchCell(batch[i].prefix64());
    for (size_t i = 0; i < kBatch; ++i) index.PrefetchEntry(batch[i].prefix64());
    for (size_t i = 0; i < kBatch; ++i) benchmark::DoNotOptimize(index.Find(batch[i]));
  }
  state.SetItemsProcessed(state.iterations() * kBatch);
  state.SetLabel("limit: two or three cache misses a key, overlapped");
}
BENCHMARK(IndexProbe)->Arg(10'000)->Arg(1'000'000);

void PolicyTurn(benchmark::State& state) {
  constexpr uint32_t kEntries = 1'000'000;
  auto policy =
      std::move(core::MakePolicy(static_cast<PolicyKind>(state.range(0)), kEntries)).value();
  for (uint32_t id = 0; id < kEntries; ++id) policy->Insert(id, {.size_class = 64, .key = id});
  Rng rng(1);
  for (auto unused : state) {
    policy->Touch(static_cast<core::PageId>(rng.Below(kEntries)));
    const core::PageId victim = policy->Victim(64);
    policy->Erase(victim, {.why = core::Leaving::kEvicted, .key = victim});
    policy->Insert(victim, {.size_class = 64, .key = victim});
  }
  state.SetItemsProcessed(state.iterations());
  state.SetLabel(absl::StrFormat("%s: touch, victim, erase, insert; limit: cache misses",
                                 ToString(static_cast<PolicyKind>(state.range(0)))));
}
BENCHMARK(PolicyTurn)->Arg(0)->Arg(1);

void PoolAllocate(benchmark::State& state) {
  auto pool = std::move(PagePool::Create({.bytes = 256 << 20, .staging_bytes = 64 << 20})).value();
  for (auto unused : state) {
    const SlotId slot = pool->Allocate(kPageBytes);
    pool->Pin(slot);
    pool->Unpin(slot);
    pool->Release(slot);
  }
  state.SetItemsProcessed(state.iterations());
  state.SetLabel("limit: tens of instructions");
}
BENCHMARK(PoolAllocate);

void MailboxRoundTrip(benchmark::State& state) {
  Mailbox mailbox(1024);
  Task task;
  for (auto unused : state) {
    mailbox.Push({.run = [](void*) {}, .arg = &mailbox});
    mailbox.Pop(&task);
  }
  state.SetItemsProcessed(state.iterations());
  state.SetLabel("limit: two atomic exchanges");
}
BENCHMARK(MailboxRoundTrip);

void IdleTurn(benchmark::State& state) {
  const SteadyClock clock;
  Loop loop(clock);
  for (auto unused : state) benchmark::DoNotOptimize(loop.Turn());
  state.SetItemsProcessed(state.iterations());
  state.SetLabel("limit: one atomic load");
}
BENCHMARK(IdleTurn);

void ParseMessage(benchmark::State& state) {
  WireHeader header;
  header.type = WireType::kLookup;
  header.block_count = 128;
  std::vector<uint8_t> message(RequestBytes(128, 0));
  WriteWireHeader(header, absl::MakeSpan(message));
  for (uint32_t i = 0; i < 128; ++i) {
    WireBlock block;
    block.digest.bytes = RandomKey(i).bytes;
    WriteWireBlock(i, block, {}, absl::MakeSpan(message));
  }
  FinishWireMessage(absl::MakeSpan(message));
  WireRequest request;
  for (auto unused : state) {
    CRUMB_CHECK(ParseRequest(message, &request) == WireCheck::kOk);
    benchmark::DoNotOptimize(request);
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(message.size()));
  state.SetItemsProcessed(state.iterations() * 128);
  BoundBy(state, "reading", Limits().read);
}
BENCHMARK(ParseMessage);

}  // namespace
}  // namespace crumb

BENCHMARK_MAIN();
