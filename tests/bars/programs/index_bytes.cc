// Memory that a page on disk alone costs, everything that is kept for it counted: pages are put, go
// through a small memory to the NVMe tier, and are recovered by another engine. Prints resident
// bytes per page of both and how long the recovery took. Usage: bar_index_bytes PAGES
#include <malloc.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "cachesvc/base/check.h"
#include "tests/bars/programs/footer_device.h"
#include "tests/bars/programs/page_bench.h"

namespace crumb::bars {
namespace {

constexpr uint32_t kTokens = 7;            // of 512 bytes: a page takes one block of the disk
constexpr uint64_t kChainPages = 64;       // a conversation
constexpr uint64_t kFirst = 16384;         // put before anything is measured: memory is full then
constexpr uint64_t kPoolBytes = 16 << 20;  // a quarter of them

uint64_t Resident() {
  malloc_trim(0);
  std::ifstream statm("/proc/self/statm");
  uint64_t size = 0, resident = 0;
  statm >> size >> resident;
  CRUMB_CHECK(resident > 0);
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

std::shared_ptr<const Layout> OneHead() {
  Identity identity;
  identity.model = "bar";
  identity.revision = "1";
  identity.weights_dtype = "bf16";
  identity.page_tokens = kTokens;
  identity.groups.push_back({.kind = AttentionKind::kGqa,
                             .kv_heads = 1,
                             .k_dim = 128,
                             .v_dim = 128,
                             .window = 0,
                             .layer_ids = {0}});
  auto made = Layout::Make(identity);
  CRUMB_CHECK(made.ok());
  return std::make_shared<const Layout>(*std::move(made));
}

void Put(PageBench* bench, uint64_t begin, uint64_t end) {
  const std::vector<uint8_t> raw(kTokens * 512);
  for (uint64_t i = begin; i < end; ++i) {
    const uint64_t place = i % kChainPages;
    const PageBench::Page page{.key = i + 1,
                               .parent = place == 0 ? 0 : i,
                               .token_start = static_cast<uint32_t>(place * kTokens)};
    CRUMB_CHECK(bench->Put(page, raw).result == BlockResult::kOk);
  }
}

double PerPage(uint64_t before, uint64_t after, uint64_t pages) {
  return (static_cast<double>(after) - static_cast<double>(before)) / static_cast<double>(pages);
}

int Run(uint64_t pages) {
  // Footers and tombstones take less than a twentieth.
  const uint64_t bytes = (pages + pages / 16 + (64 << 10)) * kPageAlignment;
  FooterDevice device(bytes, std::move(*Arena::Map(bytes / 8, HugePages::kNo)));
  PageBenchOptions options;
  options.pool_bytes = kPoolBytes;
  options.layout = OneHead();
  options.ladder = {CodecDescriptor::Default(CodecKind::kRaw, Sha256{})};
  options.index_entries_max = static_cast<uint32_t>(bytes / kPageAlignment);  // as the daemon's
  options.nvme = &device;
  double through_memory = 0;
  {
    PageBench bench(options);
    Put(&bench, 0, kFirst);
    const uint64_t before = Resident() - device.kept_bytes();
    Put(&bench, kFirst, pages);
    through_memory = PerPage(before, Resident() - device.kept_bytes(), pages - kFirst);
    CRUMB_CHECK(bench.stats().index_entries == pages && bench.stats().evicted_dropped == 0);
    bench.Close();
  }
  const uint64_t before = Resident();
  const auto begin = std::chrono::steady_clock::now();
  PageBench bench(options);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  const double recovered = PerPage(before, Resident(), pages);
  CRUMB_CHECK(bench.stats().index_entries == pages && bench.stats().pool_pages == 0);
  CRUMB_CHECK(bench.Lookup(pages / 2).tier == Tier::kNvme);
  std::printf("%llu pages: %.1f bytes a page that came through memory, %.1f recovered in %.1f s\n",
              static_cast<unsigned long long>(pages), through_memory, recovered, took.count());
  return 0;
}

}  // namespace
}  // namespace crumb::bars

int main(int argc, char** argv) {
  constexpr unsigned long long kLeast = 100'000, kMost = 20'000'000;
  const unsigned long long pages = argc == 2 ? std::strtoull(argv[1], nullptr, 10) : 0;
  if (pages >= kLeast && pages <= kMost) return crumb::bars::Run(pages);
  std::fprintf(stderr, "usage: bar_index_bytes PAGES (100000 to 20000000)\n");
  return 2;
}
