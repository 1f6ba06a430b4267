// Counting and joining of results.
#include "client/python/src/results.h"

#include <algorithm>
#include <map>

namespace crumb::python {

using client::Code;

Results::Results(client::Completion completion, size_t count, std::string message)
    : done_(std::move(completion)), message_(std::move(message)) {
  const Code missing = done_.code == Code::kOk ? Code::kIo : done_.code;
  while (done_.results.size() < count) done_.results.push_back({.code = missing, .note = {}});
}

Results Results::Refused(const client::Status& status, size_t count) {
  client::Completion completion;
  completion.code = status.code;
  return Results(std::move(completion), count, status.message);
}

bool Results::ok() const {
  return std::all_of(done_.results.begin(), done_.results.end(),
                     [](const client::Result& one) { return IsHit(one.code); });
}

size_t Results::hits() const {
  return static_cast<size_t>(
      std::count_if(done_.results.begin(), done_.results.end(),
                    [](const client::Result& one) { return IsHit(one.code); }));
}

void Results::Append(const Results& next) {
  if (done_.code == Code::kOk) {
    done_.code = next.code();
    message_ = next.message();
  }
  if (done_.prefix == size()) {
    done_.prefix += next.prefix();
    // A tail that is raw to its beginning goes on in the piece before it, but how far is not known.
    if (next.prefix() != 0) done_.raw_tail_tokens = next.raw_tail_tokens();
  }
  done_.results.insert(done_.results.end(), next.all().begin(), next.all().end());
}

std::string Results::Describe() const {
  std::map<std::string, size_t> counts;
  for (const client::Result& one : done_.results) ++counts[client::ToString(one.code)];
  std::string text = "<Results of " + std::to_string(size()) + ":";
  for (const auto& [name, count] : counts) text += " " + std::to_string(count) + " " + name;
  if (done_.code != Code::kOk) {
    text += "; request " + std::string(client::ToString(done_.code));
    if (!message_.empty()) text += " (" + message_ + ")";
  }
  return text + ">";
}

}  // namespace crumb::python
