// See mutation.h. One thread.
#include "tests/sim/mutation.h"

#include <cstring>

namespace crumb::sim {
namespace {

struct Chosen {
  char name[64] = "";
  unsigned passed = 0;
};
constinit Chosen chosen;

}  // namespace

void SetMutation(const std::string& name) {
  chosen = {};
  std::strncpy(chosen.name, name.c_str(), sizeof(chosen.name) - 1);
}

bool Mutated(const char* name) { return std::strcmp(chosen.name, name) == 0; }

bool MutatedEvery(const char* name, unsigned nth) {
  return Mutated(name) && ++chosen.passed % nth == 0;
}

}  // namespace crumb::sim
