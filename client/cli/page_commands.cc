// crumbctl put / get / lookup / rm / pin: one page, or a list of keys, at a time.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cachesvc/base/bytes.h"
#include "cachesvc/base/clock.h"
#include "cachesvc/base/hash.h"
#include "cachesvc/base/identity.h"
#include "cachesvc/base/page_header.h"
#include "client/cli/cli.h"
#include "client/cli/file_io.h"
#include "client/cli/format.h"
#include "client/cli/put_mismatch.h"
#include "client/cli/stop_signals.h"

namespace crumb::cli {
namespace {

constexpr size_t kKeyBytesMax = 256;

struct PageArgs {
  std::string layout, file, form = "raw", transport = "grpc";
  std::string key, parent;
  std::vector<std::string> keys;
  bool hex = false, durable = false, stop_at_gap = false;
  int64_t token_start = -1;
  uint32_t token_count = 0, part = 0, wait_ms = 0, ttl_ms = 60000;
};
using Args = std::shared_ptr<PageArgs>;

bool ParseKey(Context* context, const PageArgs& args, std::string* key) {
  if (args.hex) {
    std::string bytes(key->size() / 2, '\0');
    const MutableBytes out(reinterpret_cast<uint8_t*>(bytes.data()), bytes.size());
    if (key->size() % 2 != 0 || !ParseHex(*key, out)) {
      context->Usage(absl::StrCat("key \"", *key, "\" is not hexadecimal (--hex)"));
      return false;
    }
    *key = bytes;
  }
  if (key->empty() || key->size() > kKeyBytesMax) {
    context->Usage(absl::StrCat("a key of ", key->size(), " bytes; keys have 1 to ", kKeyBytesMax));
    return false;
  }
  return true;
}

// Connection, layout and checked keys that every command of this file starts with.
struct Setup {
  std::unique_ptr<client::Client> client;
  client::Layout layout;
  std::vector<std::string> keys;
  std::string parent;
};

bool Prepare(Context* context, const PageArgs& args, Setup* out) {
  out->keys = args.keys;
  if (!args.key.empty() || args.keys.empty()) out->keys.push_back(args.key);
  for (std::string& key : out->keys) {
    if (!ParseKey(context, args, &key)) return false;
  }
  out->parent = args.parent;
  if (!args.parent.empty() && !ParseKey(context, args, &out->parent)) return false;
  out->client = OpenClient(context, PlaneOf(args.transport));
  if (out->client == nullptr) return false;
  if (!FindLayout(context, out->client.get(), args.layout, &out->layout)) return false;
  if (args.part >= out->layout.raw_bytes.size()) {
    context->Usage(
        absl::StrCat("part ", args.part, " of a layout with ", out->layout.raw_bytes.size()));
    return false;
  }
  return true;
}

bool ParseForm(Context* context, const Setup& setup, const std::string& text, client::Form* form) {
  if (text == "bf16" && setup.layout.dtype != "bf16") {
    context->Usage(
        absl::StrCat("--form bf16: the layout's dtype is ", setup.layout.dtype, "; ask for raw"));
    return false;
  }
  *form = text == "packed" ? client::Form::kPacked
                           : (text == "page" ? client::Form::kPage : client::Form::kRaw);
  return true;
}

// The one completion of `ticket`; false after reporting.
bool Await(Context* context, client::Client* client, client::Ticket ticket,
           client::Completion* out) {
  std::vector<client::Completion> done;
  while (done.empty()) {
    client->Drain(1000, &done);
    if (done.empty() && client->in_flight() == 0) break;
  }
  if (done.empty() || done[0].ticket != ticket) {
    context->Fail(client::Status{client::Code::kUnavailable, "the daemon was lost"});
    return false;
  }
  *out = std::move(done[0]);
  return true;
}

// Where a page is and how it is packed: nothing is known of what is not there, and a verb that
// names no tier (rm) says nothing of precision either.
bool IsSomewhere(const client::Result& result) { return result.tier != client::Tier::kNone; }

nlohmann::json WhereJson(const client::Result& result) {
  nlohmann::json out = {{"result", client::ToString(result.code)},
                        {"tier", nullptr},
                        {"precision", nullptr},
                        {"lossy_depth", nullptr}};
  // A prefetch says where a page is that it did not raise.
  if (result.tier != client::Tier::kNone) out["tier"] = client::ToString(result.tier);
  if (!IsSomewhere(result)) return out;
  out["precision"] = client::ToString(result.precision);
  out["lossy_depth"] = result.lossy_depth;
  return out;
}

const char* TierText(const client::Result& result) {
  return result.tier != client::Tier::kNone ? client::ToString(result.tier) : "-";
}

const char* PrecisionText(const client::Result& result) {
  return IsSomewhere(result) ? client::ToString(result.precision) : "-";
}

std::string Explain(const client::Result& result) {
  return result.note.empty() ? client::ToString(result.code)
                             : absl::StrCat(client::ToString(result.code), ": ", result.note);
}

client::Block BlockFor(const PageArgs& args, const Setup& setup) {
  client::Block block;
  block.key = setup.keys[0];
  block.parent = setup.parent;
  if (args.token_start >= 0) block.token_start = static_cast<uint32_t>(args.token_start);
  block.token_count = args.token_count;
  block.part = args.part;
  return block;
}

void Put(Context* context, const PageArgs& args) {
  Setup setup;
  client::RequestOptions options;
  if (!Prepare(context, args, &setup)) return;
  if (!ParseForm(context, setup, args.form, &options.form)) return;
  const uint64_t raw_bytes = setup.layout.raw_bytes[args.part];
  absl::StatusOr<std::string> value = ReadFile(args.file, kRawPageBytesMax + kPageHeaderBytes);
  if (!value.ok()) return context->Fail(value.status());
  if (options.form == client::Form::kRaw && value->size() != raw_bytes) {
    return context->Usage(absl::StrCat(args.file, ": ", value->size(),
                                       " bytes; a raw page of part ", args.part, " of layout ",
                                       setup.layout.name, " has ", raw_bytes));
  }
  if (value->empty()) return context->Usage(absl::StrCat(args.file, ": empty"));
  uint32_t region_set = 0;
  client::Status status = setup.client->LendPages(setup.layout, value->data(), value->size(),
                                                  value->size(), &region_set);
  client::Block block = BlockFor(args, setup);
  if (options.form != client::Form::kRaw) block.value_bytes = static_cast<uint32_t>(value->size());
  options.durable = args.durable;
  client::Ticket ticket = 0;
  client::Completion done;
  if (status.ok()) {
    status = setup.client->SubmitPut(setup.layout, region_set, {block}, options, &ticket);
  }
  if (!status.ok()) return context->Fail(status);
  if (!Await(context, setup.client.get(), ticket, &done)) return;
  const client::Result& result = done.results[0];
  context->exit = ExitOf(result.code);
  const bool stored = context->exit == kExitOk;
  if (context->globals.json) {
    nlohmann::json document = WhereJson(result);
    document.erase("lossy_depth");
    document["durable"] = stored && args.durable;
    context->out << document.dump() << "\n";
  }
  if (!stored) {
    context->err << "crumbctl: put: " << Explain(result);
    if (result.code == client::Code::kMismatch) {
      context->err << ": "
                   << ExplainMismatch(setup.layout, args.part, args.token_count, options.form,
                                      AsBytes(*value));
    }
    context->err << "\n";
  } else if (!context->globals.json) {
    context->out << client::ToString(result.code) << " " << TierText(result) << " "
                 << PrecisionText(result) << (args.durable ? " durable" : "") << "\n";
  }
}

void Get(Context* context, const PageArgs& args) {
  Setup setup;
  client::RequestOptions options;
  if (!Prepare(context, args, &setup)) return;
  if (!ParseForm(context, setup, args.form, &options.form)) return;
  const uint64_t raw_bytes = setup.layout.raw_bytes[args.part];
  // A packed page is never longer than the raw one and its header.
  const uint64_t room =
      options.form == client::Form::kRaw
          ? raw_bytes
          : std::max(raw_bytes, setup.layout.payload_bytes[args.part]) + kPageHeaderBytes;
  std::string value(room, '\0');
  uint32_t region_set = 0;
  client::Status status =
      setup.client->LendPages(setup.layout, value.data(), value.size(), room, &region_set);
  options.wait_ms = args.wait_ms;
  client::Ticket ticket = 0;
  client::Completion done;
  if (status.ok()) {
    status = setup.client->SubmitGet(setup.layout, region_set, {BlockFor(args, setup)}, options,
                                     &ticket);
  }
  if (!status.ok()) return context->Fail(status);
  if (!Await(context, setup.client.get(), ticket, &done)) return;
  const client::Result& result = done.results[0];
  context->exit = ExitOf(result.code);
  if (context->exit == kExitOk) {
    const Bytes content(reinterpret_cast<const uint8_t*>(value.data()), result.value_bytes);
    if (absl::Status written = WriteFile(args.file, content); !written.ok()) {
      return context->FailOutput(args.file, written);
    }
  }
  // With -o - the data is on stdout: words go to stderr.
  std::ostream& words = args.file == "-" ? context->err : context->out;
  if (context->globals.json) {
    nlohmann::json document = WhereJson(result);
    document["bytes"] = result.value_bytes;
    words << document.dump() << "\n";
  }
  if (context->exit != kExitOk) {
    context->err << "crumbctl: get: " << Explain(result) << "\n";
  } else if (!context->globals.json) {
    words << result.value_bytes << " bytes from " << client::ToString(result.tier) << ", "
          << client::ToString(result.precision) << "\n";
  }
}

std::vector<client::Block> BlocksFor(const PageArgs& args, const Setup& setup) {
  std::vector<client::Block> blocks;
  for (const std::string& key : setup.keys) {
    client::Block& block = blocks.emplace_back();
    block.key = key;
    block.part = args.part;
  }
  return blocks;
}

void ShowKeys(Context* context, const PageArgs& args, const client::Completion& done) {
  const std::vector<client::Result>& results = done.results;
  nlohmann::json all = nlohmann::json::array();
  uint32_t prefix = 0;
  bool whole = true;
  std::string rows = "KEY\tRESULT\tTIER\tPRECISION\n";
  for (size_t i = 0; i < results.size(); ++i) {
    const client::Result& result = results[i];
    const std::string& key = i < args.keys.size() ? args.keys[i] : args.key;
    whole = whole && result.code == client::Code::kOk;
    if (whole) ++prefix;
    if (result.code != client::Code::kOk && context->exit == kExitOk) {
      context->exit = ExitOf(result.code);
    }
    all.push_back(WhereJson(result));
    all.back()["key"] = key;
    absl::StrAppend(&rows, key, "\t", client::ToString(result.code), "\t", TierText(result), "\t",
                    PrecisionText(result), "\n");
  }
  if (context->globals.json) {
    // Keys may be any bytes: what is no UTF-8 is replaced.
    const nlohmann::json document = {
        {"keys", all}, {"prefix", prefix}, {"raw_tail_tokens", done.raw_tail_tokens}};
    context->out << document.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
  } else {
    context->out << Table(rows);
    if (done.raw_tail_tokens > 0) {
      context->err << done.raw_tail_tokens << " tokens at the end of the prefix are raw\n";
    }
  }
}

void Lookup(Context* context, const PageArgs& args) {
  Setup setup;
  if (!Prepare(context, args, &setup)) return;
  client::RequestOptions options;
  options.stop_at_gap = args.stop_at_gap;
  client::Ticket ticket = 0;
  client::Completion done;
  const client::Status status =
      setup.client->SubmitLookup(setup.layout, BlocksFor(args, setup), options, &ticket);
  if (!status.ok()) return context->Fail(status);
  if (Await(context, setup.client.get(), ticket, &done)) ShowKeys(context, args, done);
}

void Prefetch(Context* context, const PageArgs& args) {
  Setup setup;
  if (!Prepare(context, args, &setup)) return;
  client::Ticket ticket = 0;
  client::Completion done;
  const client::Status status =
      setup.client->SubmitPrefetch(setup.layout, BlocksFor(args, setup), {}, &ticket);
  if (!status.ok()) return context->Fail(status);
  if (Await(context, setup.client.get(), ticket, &done)) ShowKeys(context, args, done);
}

void Remove(Context* context, const PageArgs& args) {
  Setup setup;
  if (!Prepare(context, args, &setup)) return;
  client::Ticket ticket = 0;
  client::Completion done;
  const client::Status status =
      setup.client->SubmitDelete(setup.layout, BlocksFor(args, setup), &ticket);
  if (!status.ok()) return context->Fail(status);
  if (Await(context, setup.client.get(), ticket, &done)) ShowKeys(context, args, done);
}

// Pins are of the session, so crumbctl stays as long as they shall last. Renewing them to the same
// end keeps an idle session open and finds a daemon that went, or a page that did.
class Hold {
 public:
  Hold(Context* context, const PageArgs& args, const Setup& setup)
      : context_(context), setup_(setup), blocks_(BlocksFor(args, setup)), names_(args.keys) {
    until_us_ = clock_.now_us() + uint64_t{args.ttl_ms} * 1000;
  }

  // The first time: `results` are those of all keys. False after reporting.
  bool Begin(uint32_t ttl_ms, std::vector<client::Result>* results) {
    return Pin(ttl_ms, results) && Keep(*results, nullptr);
  }
  size_t size() const { return blocks_.size(); }

  // Until the time is over or nothing is left to hold.
  void UntilTheEnd(const StopSignals& stop) {
    while (!blocks_.empty()) {
      const uint64_t now_us = clock_.now_us();
      if (now_us >= until_us_) return;
      const auto left_ms = static_cast<uint32_t>((until_us_ - now_us + 999) / 1000);
      if (const int number = stop.Wait(std::min(left_ms, kRenewMs)); number != 0) {
        return LetGo(number);
      }
      if (left_ms > kRenewMs && !Renew(left_ms - kRenewMs)) return;
    }
  }

 private:
  static constexpr uint32_t kRenewMs = 500;

  bool Pin(uint32_t ttl_ms, std::vector<client::Result>* results) {
    const client::Status status = setup_.client->Pin(setup_.layout, blocks_, ttl_ms, results);
    if (!status.ok()) context_->Fail(status);
    return status.ok();
  }

  // Goes on with the pages that are held; `gone` is what the others are said to be.
  bool Keep(const std::vector<client::Result>& results, const char* gone) {
    std::vector<client::Block> held;
    std::vector<std::string> names;
    for (size_t i = 0; i < blocks_.size(); ++i) {
      if (results[i].code == client::Code::kOk) {
        held.push_back(blocks_[i]);
        names.push_back(names_[i]);
      } else if (gone != nullptr) {
        context_->err << "crumbctl: pin: " << names_[i] << " " << gone << ": "
                      << client::ToString(results[i].code) << "\n";
        context_->exit = ExitOf(results[i].code);
      }
    }
    blocks_ = std::move(held);
    names_ = std::move(names);
    return !blocks_.empty();
  }

  bool Renew(uint32_t ttl_ms) {
    std::vector<client::Result> results;
    return Pin(ttl_ms, &results) && Keep(results, "is not held any more");
  }

  void LetGo(int number) {
    std::vector<client::Result> results;
    if (Pin(0, &results)) context_->exit = number == SIGTERM ? kExitTerminated : kExitInterrupted;
  }

  Context* context_;
  const Setup& setup_;
  std::vector<client::Block> blocks_;
  std::vector<std::string> names_;  // as they were given
  SteadyClock clock_;
  uint64_t until_us_ = 0;
};

void Pin(Context* context, const PageArgs& args) {
  Setup setup;
  if (!Prepare(context, args, &setup)) return;
  absl::StatusOr<std::unique_ptr<StopSignals>> stop = StopSignals::Take();
  if (!stop.ok()) return context->Fail(stop.status());
  const absl::Time until = absl::Now() + absl::Milliseconds(args.ttl_ms);
  Hold hold(context, args, setup);
  std::vector<client::Result> results;
  const bool held = hold.Begin(args.ttl_ms, &results);
  if (!results.empty()) {
    client::Completion pinned;
    pinned.results = results;
    ShowKeys(context, args, pinned);
  }
  if (!held) return;
  // Whoever reads the output must have it while the pages are held.
  context->out.flush();
  context->err << "holding " << hold.size() << (hold.size() == 1 ? " page" : " pages") << " until "
               << absl::FormatTime("%H:%M:%S", until, absl::LocalTimeZone())
               << "; Ctrl-C lets go\n";
  context->err.flush();
  hold.UntilTheEnd(**stop);
}

void AddCommon(CLI::App* command, const Args& args) {
  command->add_option("--layout", args->layout, "Name of the layout, or a prefix of its hash")
      ->required();
  command->add_flag("--hex", args->hex, "Keys are given in hexadecimal");
  command->add_option("--part", args->part, "Part of the block (0)");
  command->add_option("--transport", args->transport, "Data plane")
      ->check(CLI::IsMember({"shm", "ucx", "grpc"}));
}

void AddPut(CLI::App* app, Context* context) {
  auto args = std::make_shared<PageArgs>();
  CLI::App* put = app->add_subcommand("put", "Stores one page from a file");
  AddCommon(put, args);
  put->add_option("--key", args->key, "Key, 1 to 256 bytes")->required();
  put->add_option("--parent", args->parent, "Key of the page before it");
  put->add_option("--token-start", args->token_start, "Position of its first token")
      ->check(CLI::Range(int64_t{0}, int64_t{0xfffffffe}));
  put->add_option("--token-count", args->token_count, "Tokens in a partial page");
  put->add_option("--form", args->form, "What FILE holds")
      ->check(CLI::IsMember({"raw", "bf16", "packed", "page"}));
  put->add_flag("--durable", args->durable, "Answer after the write to NVMe");
  put->add_option("FILE", args->file, "The page; - is standard input")->required();
  put->footer("Example: crumbctl put --layout smollm2 --key block-0 --durable page.bin\n");
  put->callback([context, args] { Put(context, *args); });
}

void AddGet(CLI::App* app, Context* context) {
  auto args = std::make_shared<PageArgs>();
  CLI::App* get = app->add_subcommand("get", "Fetches one page into a file");
  AddCommon(get, args);
  get->add_option("--key", args->key, "Key, 1 to 256 bytes")->required();
  get->add_option("--token-count", args->token_count, "Tokens in a partial page");
  get->add_option("--form", args->form, "What to fetch; page is header and payload")
      ->check(CLI::IsMember({"raw", "bf16", "packed", "page"}));
  get->add_option("--wait", args->wait_ms, "Milliseconds to wait for a put of the key")
      ->check(CLI::Range(0, 600000));
  get->add_option("-o,--output", args->file, "Output file; - is standard output")->required();
  get->footer("Example: crumbctl get --layout smollm2 --key block-0 --form page -o page.crpg\n");
  get->callback([context, args] { Get(context, *args); });
}

CLI::App* AddKeysCommand(CLI::App* app, const char* name, const char* text, const Args& args) {
  CLI::App* command = app->add_subcommand(name, text);
  AddCommon(command, args);
  command->add_option("KEY", args->keys, "Keys, at most 256")->required()->expected(1, 256);
  command->footer(absl::StrCat("Example: crumbctl ", name, " --layout smollm2 block-0 block-1\n"));
  return command;
}

}  // namespace

void AddPageCommands(CLI::App* app, Context* context) {
  AddPut(app, context);
  AddGet(app, context);
  auto lookup = std::make_shared<PageArgs>();
  CLI::App* command = AddKeysCommand(app, "lookup", "Says where keys are, in order", lookup);
  command->add_flag("--stop-at-gap", lookup->stop_at_gap, "Stop at the first miss");
  command->callback([context, lookup] { Lookup(context, *lookup); });
  auto prefetch = std::make_shared<PageArgs>();
  AddKeysCommand(app, "prefetch", "Raises pages from NVMe to memory, ahead of their gets", prefetch)
      ->callback([context, prefetch] { Prefetch(context, *prefetch); });
  auto rm = std::make_shared<PageArgs>();
  AddKeysCommand(app, "rm", "Deletes keys in every tier", rm)->callback([context, rm] {
    Remove(context, *rm);
  });
  auto pin = std::make_shared<PageArgs>();
  command = AddKeysCommand(app, "pin", "Holds pages in memory, and stays until it is over", pin);
  command->add_option("--ttl", pin->ttl_ms, "Milliseconds (60000)")->check(CLI::Range(1, 3600000));
  command->callback([context, pin] { Pin(context, *pin); });
}

}  // namespace crumb::cli
