// The simulator of the product as it is: no planted bug in its own code.
#include "tests/sim/mutation.h"

namespace crumb::sim {

const std::vector<std::string>& MutationNames() {
  static const std::vector<std::string>* const names = new std::vector<std::string>;
  return *names;
}

}  // namespace crumb::sim
