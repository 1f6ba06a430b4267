// Puts one page under a key, finds it, gets it back and compares. Usage: first_page [SERVER]
#include <crumb/client.h>
#include <crumb/layout_file.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

namespace cc = crumb::client;

constexpr char kLayout[] = R"(
name: first-page
model: example/model
revision: "1"
dtype: bf16
groups:
  - {kind: gqa, kv_heads: 8, k_dim: 128, v_dim: 128, layers: 0-3}
page_tokens: 64
codec: raw
)";

// Waits for the one request that is out.
cc::Completion Wait(cc::Client* client) {
  std::vector<cc::Completion> done;
  while (done.empty() && client->in_flight() > 0) client->Drain(1000, &done);
  return done.empty() ? cc::Completion() : done[0];
}

int Fail(const char* what, const cc::Status& status) {
  std::fprintf(stderr, "%s: %s\n", what, status.message.c_str());
  return 1;
}

int main(int argc, char** argv) {
  cc::Options options;
  if (argc > 1) options.server = argv[1];  // else CRUMB_SERVER, then the usual places
  std::unique_ptr<cc::Client> client;
  cc::Status status = cc::Client::Connect(options, &client);
  if (!status.ok()) return Fail("connect", status);
  std::printf("connected over %s\n", client->data_plane().c_str());

  cc::LayoutSpec spec;
  status = cc::ParseLayout(kLayout, "first-page", &spec);
  if (!status.ok()) return Fail("layout", status);
  cc::Layout layout;
  status = client->RegisterLayout(spec, &layout);
  if (!status.ok()) return Fail("register", status);

  // Two slots of one page each; the daemon reads and writes them itself.
  const uint64_t page_bytes = layout.raw_bytes[0];
  std::vector<uint8_t> memory(2 * page_bytes);
  for (uint64_t i = 0; i < page_bytes; ++i) memory[i] = static_cast<uint8_t>(i % 60 + i % 7);
  uint32_t region_set = 0;
  status = client->LendPages(layout, memory.data(), memory.size(), page_bytes, &region_set);
  if (!status.ok()) return Fail("lend", status);

  cc::Block block;
  block.key = "conversation-42/block-0";  // in an engine: the hash of the prefix
  block.token_start = 0;
  block.slot = 0;
  cc::Ticket ticket = 0;
  status = client->SubmitPut(layout, region_set, {block}, {}, &ticket);
  if (!status.ok()) return Fail("put", status);
  const cc::Completion put = Wait(client.get());
  if (put.prefix != 1) return Fail("put", {cc::Code::kIo, "was not stored"});
  std::printf("put: %s\n", cc::ToString(put.results[0].code));

  status = client->SubmitLookup(layout, {block}, {}, &ticket);
  if (!status.ok()) return Fail("lookup", status);
  const cc::Completion found = Wait(client.get());
  if (found.prefix != 1) return Fail("lookup", {cc::Code::kMiss, "not found"});
  std::printf("lookup: in %s\n", cc::ToString(found.results[0].tier));

  block.slot = 1;
  status = client->SubmitGet(layout, region_set, {block}, {}, &ticket);
  if (!status.ok()) return Fail("get", status);
  const cc::Completion got = Wait(client.get());
  // A miss is an answer, not a failure: a worker computes the page then.
  if (got.prefix != 1) return Fail("get", {cc::Code::kMiss, cc::ToString(got.code)});
  const bool same = std::memcmp(memory.data(), memory.data() + page_bytes, page_bytes) == 0;
  std::printf("get: %u bytes, %s\n", got.results[0].value_bytes, same ? "equal" : "DIFFERENT");
  return same ? 0 : 1;
}
