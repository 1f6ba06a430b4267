// Blocks of a request, made of Python sequences. The keys' bytes stay in the Python objects, which
// are held here: views are valid as long as the batch, whatever other threads do to the lists.
#ifndef CRUMB_CLIENT_PYTHON_SRC_BLOCKS_H_
#define CRUMB_CLIENT_PYTHON_SRC_BLOCKS_H_

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <vector>

#include "crumb/types.h"

namespace crumb::python {

// Throws the Python exception of crumbkv._errors for a code.
[[noreturn]] void Throw(client::Code code, const std::string& message);
void ThrowUnlessOk(const client::Status& status);

class BlockBatch {
 public:
  // (keys, slots, parents, token_starts, token_counts, parts, value_bytes, provenance); all but the
  // keys may be None. Throws InvalidError, which names the argument and its index.
  explicit BlockBatch(const nanobind::tuple& fields);

  const std::vector<client::Block>& blocks() const { return blocks_; }
  size_t size() const { return blocks_.size(); }

 private:
  void TakeKeys(nanobind::handle keys);
  void TakeSlots(nanobind::handle slots);
  void TakeParents(nanobind::handle parents);
  void TakeNumbers(nanobind::handle values, const char* name, uint32_t client::Block::*field);
  std::string_view View(nanobind::handle key, const char* name, size_t index);

  std::vector<nanobind::object> held_;
  std::vector<client::Block> blocks_;
  std::vector<std::vector<uint32_t>> slots_;  // of blocks with several
};

}  // namespace crumb::python

#endif  // CRUMB_CLIENT_PYTHON_SRC_BLOCKS_H_
