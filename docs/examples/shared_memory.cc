// An engine's loop over shared memory: puts, prefetches and gets in flight at once, one event fd,
// one cancelled wait. Usage: shared_memory [SERVER]
#include <crumb/client.h>
#include <crumb/layout_file.h>
#include <poll.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace cc = crumb::client;

constexpr char kLayout[] = R"(
name: shared-memory
model: example/shared-memory
revision: "1"
dtype: bf16
groups:
  - {kind: gqa, kv_heads: 8, k_dim: 128, v_dim: 128, layers: 0}
page_tokens: 64
codec: raw
)";
constexpr uint32_t kPages = 16;

int Fail(const char* what, const cc::Status& status) {
  std::fprintf(stderr, "%s: %s\n", what, status.message.c_str());
  return 1;
}

// What an engine does between steps: sleeps on the fd if it has nothing else to do, then drains.
void Step(cc::Client* client, std::map<cc::Ticket, cc::Code>* outcomes) {
  pollfd wait{.fd = client->event_fd(), .events = POLLIN, .revents = 0};
  ::poll(&wait, 1, 1000);
  static std::vector<cc::Completion> done;  // its memory goes back and forth
  client->Drain(0, &done);
  for (const cc::Completion& one : done) {
    cc::Code worst = one.code;
    for (const cc::Result& result : one.results) {
      if (result.code != cc::Code::kOk && result.code != cc::Code::kExists) worst = result.code;
    }
    (*outcomes)[one.ticket] = worst;
  }
  client->Recycle(&done);
}

int main(int argc, char** argv) {
  cc::Options options;
  if (argc > 1) options.server = argv[1];
  options.client_name = "shared_memory";
  options.spin_us = 20;                      // a short poll before Drain sleeps
  std::unique_ptr<cc::SharedMemory> memory;  // outlives the client
  std::unique_ptr<cc::Client> client;
  cc::Status status = cc::Client::Connect(options, &client);
  if (!status.ok()) return Fail("connect", status);
  std::printf("connected over %s\n", client->data_plane().c_str());
  cc::LayoutSpec spec;
  cc::Layout layout;
  status = cc::ParseLayout(kLayout, "shared-memory", &spec);
  if (status.ok()) status = client->RegisterLayout(spec, &layout);
  if (!status.ok()) return Fail("layout", status);

  // Slots 0..15 are put, slots 16..31 are got. An engine that has a mapping of its own, of a file
  // in /dev/shm say, names that with ShareMemory instead.
  const uint64_t page_bytes = layout.raw_bytes[0];
  status = cc::SharedMemory::Create(2 * kPages * page_bytes, &memory);
  if (status.ok()) status = client->ShareMemory(memory->range());
  uint32_t set = 0;
  if (status.ok()) {
    status = client->LendPages(layout, memory->data(), memory->bytes(), page_bytes, &set);
  }
  if (!status.ok()) return Fail("memory", status);
  std::memset(memory->data(), 0, memory->bytes());

  std::map<cc::Ticket, cc::Code> outcomes;
  std::vector<std::string> keys(kPages);
  std::vector<cc::Block> blocks(kPages);
  for (uint32_t i = 0; i < kPages; ++i) {
    std::memset(memory->data() + i * page_bytes, static_cast<int>(i + 1), page_bytes);
    keys[i] = "shared-memory/" + std::to_string(i);
    blocks[i].key = keys[i];
    blocks[i].slot = i;
    blocks[i].token_start = i * layout.page_tokens;
    if (i > 0) blocks[i].parent = keys[i - 1];
  }
  cc::Ticket put = 0;
  status = client->SubmitPut(layout, set, blocks, {}, &put);
  if (!status.ok()) return Fail("put", status);
  while (outcomes.count(put) == 0) Step(client.get(), &outcomes);

  // All of this is in flight at once; kBusy would say "drain first".
  cc::Ticket prefetch = 0, wait = 0;
  status = client->SubmitPrefetch(layout, blocks, {}, &prefetch);
  if (!status.ok()) return Fail("prefetch", status);
  cc::Block never;
  never.key = "shared-memory/never";
  never.slot = 0;
  cc::RequestOptions waiting;
  waiting.wait_ms = 60'000;
  status = client->SubmitGet(layout, set, {never}, waiting, &wait);
  if (!status.ok()) return Fail("waiting get", status);
  std::vector<cc::Ticket> gets(kPages);
  for (uint32_t i = 0; i < kPages; ++i) {
    blocks[i].slot = kPages + i;
    status = client->SubmitGet(layout, set, {blocks[i]}, {}, &gets[i]);
    if (!status.ok()) return Fail("get", status);
  }
  status = client->Cancel(wait);  // its completion comes when its slot is ours again
  if (!status.ok()) return Fail("cancel", status);
  while (client->in_flight() > 0) Step(client.get(), &outcomes);

  uint32_t equal = 0;
  for (uint32_t i = 0; i < kPages; ++i) {
    const bool hit = outcomes[gets[i]] == cc::Code::kOk;  // else: compute it
    const uint8_t* page = memory->data() + i * page_bytes;
    if (hit && std::memcmp(page, page + kPages * page_bytes, page_bytes) == 0) ++equal;
  }
  std::printf("put %s, prefetch %s, wait %s, %u of %u pages equal\n", cc::ToString(outcomes[put]),
              cc::ToString(outcomes[prefetch]), cc::ToString(outcomes[wait]), equal, kPages);
  return equal == kPages ? 0 : 1;
}
