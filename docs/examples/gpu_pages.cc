// Puts one page out of GPU memory and gets it back into other slots of it, behind the work of a
// stream. Usage: gpu_pages [SERVER]
#include <crumb/client.h>
#include <crumb/layout_file.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <memory>
#include <vector>

namespace cc = crumb::client;

constexpr char kLayout[] = R"(
name: gpu-pages
model: example/gpu-pages
revision: "1"
dtype: bf16
groups:
  - {kind: gqa, kv_heads: 8, k_dim: 128, v_dim: 128, layers: 0-3}
page_tokens: 64
codec: hadamard-int4
)";
constexpr uint32_t kLayers = 4, kHeads = 8, kDim = 128;
constexpr uint32_t kSlotTokens = 16, kSlots = 8;  // a page takes four slots
constexpr uint64_t kRow = kDim * 2, kToken = kHeads * kRow, kSlot = kSlotTokens * kToken;
constexpr uint64_t kTensor = kSlots * kSlot, kAll = 2 * kLayers * kTensor;

int Fail(const char* what, const cc::Status& status) {
  std::fprintf(stderr, "%s: %s\n", what, status.message.c_str());
  return 1;
}

cc::Completion Wait(cc::Client* client) {
  std::vector<cc::Completion> done;
  while (done.empty() && client->in_flight() > 0) client->Drain(1000, &done);
  return done.empty() ? cc::Completion() : done[0];
}

int main(int argc, char** argv) {
  // Memory of cudaMalloc outlives the client. One allocation for all tensors, or one for each.
  char* memory = nullptr;
  cudaStream_t stream = nullptr;
  if (cudaMalloc(&memory, kAll) != cudaSuccess || cudaStreamCreate(&stream) != cudaSuccess) {
    std::fprintf(stderr, "no GPU: %s\n", cudaGetErrorString(cudaGetLastError()));
    return 77;
  }
  cc::Options options;
  if (argc > 1) options.server = argv[1];
  std::unique_ptr<cc::Client> client;
  cc::Status status = cc::Client::Connect(options, &client);
  cc::LayoutSpec spec;
  cc::Layout layout;
  if (status.ok()) status = cc::ParseLayout(kLayout, "gpu-pages", &spec);
  if (status.ok()) status = client->RegisterLayout(spec, &layout);
  if (!status.ok()) return Fail("layout", status);

  // K, then V of each layer: [slot][token][head][dim].
  cc::GpuRegions regions;
  regions.slots = kSlots;
  regions.tokens_per_slot = kSlotTokens;
  for (uint32_t tensor = 0; tensor < 2 * kLayers; ++tensor) {
    regions.tensors.push_back({.base = memory + tensor * kTensor,
                               .bytes = kTensor,
                               .slot_stride = kSlot,
                               .token_stride = kToken,
                               .head_stride = kRow});
  }
  uint32_t set = 0;
  status = client->RegisterGpuRegions(layout, regions, &set);
  if (!status.ok()) return Fail("lend", status);

  // An engine's kernels would write here; the put is behind them without anybody waiting. The byte
  // makes BF16 values of 0.75, all alike.
  if (cudaMemsetAsync(memory, 0x3f, kAll, stream) != cudaSuccess) return 1;
  const uint32_t from[] = {2, 0, 3, 1}, into[] = {7, 4, 6, 5};
  cc::Block block;
  block.key = "gpu-pages/block-0";
  block.slots = from;
  cc::RequestOptions behind;
  behind.stream = stream;
  cc::Ticket ticket = 0;
  status = client->SubmitPut(layout, set, {block}, behind, &ticket);
  if (!status.ok()) return Fail("put", status);
  const cc::Completion put = Wait(client.get());
  if (put.prefix != 1) return Fail("put", {cc::Code::kIo, "was not stored"});
  std::printf("put: %s in %s\n", cc::ToString(put.results[0].code),
              cc::ToString(put.results[0].tier));

  // Zeros, then the page over them: a get writes behind what is on its stream.
  if (cudaMemsetAsync(memory, 0, kAll, stream) != cudaSuccess) return 1;
  block.slots = into;
  status = client->SubmitGet(layout, set, {block}, behind, &ticket);
  if (!status.ok()) return Fail("get", status);
  const cc::Completion got = Wait(client.get());
  if (got.prefix != 1) return Fail("get", {cc::Code::kMiss, cc::ToString(got.code)});
  uint16_t first = 0;  // of the page's first token: an answer says that the GPU is done
  if (cudaMemcpy(&first, memory + into[0] * kSlot, 2, cudaMemcpyDeviceToHost) != cudaSuccess) {
    return 1;
  }
  std::printf("get: from %s, %04x\n", cc::ToString(got.results[0].tier), first);
  return first >> 8 == 0x3f ? 0 : 1;
}
