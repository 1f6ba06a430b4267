// A line is bounded, so is the whole; a line that is no request ends the reading.
#include "client/cli/replay_trace.h"

#include <algorithm>
#include <bit>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

namespace crumb::cli {
namespace {

constexpr size_t kLineBytesMax = 16 << 20;
constexpr uint64_t kTokensMax = 1ull << 32;

absl::Status Bad(size_t line, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("line ", line, ": ", what,
                   R"(; each line is {"input_length": N, "hash_ids": [N, ...], ...})"));
}

struct Reader {
  Trace trace;
  absl::flat_hash_map<uint64_t, uint32_t> numbers;  // by id
  uint64_t tokens_per_block = 0;                    // at least

  absl::Status AddRequest(size_t line, const nlohmann::json& object);
};

absl::Status Reader::AddRequest(size_t line, const nlohmann::json& object) {
  if (!object.is_object() || !object.contains("hash_ids") || !object["hash_ids"].is_array()) {
    return Bad(line, "no array hash_ids");
  }
  const nlohmann::json& ids = object["hash_ids"];
  if (trace.reads.size() + ids.size() > kTraceReadsMax) {
    return Bad(line, absl::StrCat("the trace reads more than ", kTraceReadsMax, " blocks"));
  }
  uint32_t parent = Trace::kNoParent;
  for (const nlohmann::json& id : ids) {
    if (!id.is_number_unsigned()) return Bad(line, "an id is no whole number");
    const auto [it, fresh] = numbers.try_emplace(id.get<uint64_t>(), trace.blocks());
    if (fresh) trace.parents.push_back(parent);
    parent = it->second;
    trace.reads.push_back(parent);
  }
  trace.request_ends.push_back(static_cast<uint32_t>(trace.reads.size()));
  const auto length = object.find("input_length");
  if (length == object.end() || ids.empty()) return absl::OkStatus();
  if (!length->is_number_unsigned() || length->get<uint64_t>() > kTokensMax) {
    return Bad(line, "input_length is no number of tokens");
  }
  const uint64_t tokens = length->get<uint64_t>();
  tokens_per_block = std::max(tokens_per_block, (tokens + ids.size() - 1) / ids.size());
  return absl::OkStatus();
}

}  // namespace

std::span<const uint32_t> Trace::request(size_t index) const {
  const size_t begin = index == 0 ? 0 : request_ends[index - 1];
  return std::span(reads).subspan(begin, request_ends[index] - begin);
}

absl::StatusOr<Trace> ReadTrace(std::istream& in) {
  Reader reader;
  std::string text;
  for (size_t line = 1; std::getline(in, text); ++line) {
    if (text.size() > kLineBytesMax) return Bad(line, "longer than 16 MiB");
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    const nlohmann::json object = nlohmann::json::parse(text, nullptr, false);
    if (object.is_discarded()) return Bad(line, "not JSON");
    CRUMB_TRY(reader.AddRequest(line, object));
  }
  if (reader.trace.reads.empty()) return absl::InvalidArgumentError("the trace has no request");
  // Full blocks have a power of two of tokens; the longest mean comes close to it.
  reader.trace.block_tokens =
      static_cast<uint32_t>(std::bit_ceil(std::max<uint64_t>(reader.tokens_per_block, 1)));
  return std::move(reader.trace);
}

absl::StatusOr<Trace> ReadTraceFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  absl::StatusOr<Trace> trace = ReadTrace(in);
  if (trace.ok()) return trace;
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", trace.status().message()));
}

}  // namespace crumb::cli
