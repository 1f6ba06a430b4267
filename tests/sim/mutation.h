// Which planted bug of the product's own code is on. Only the program sim_mutants has any: its
// copies of some sources ask this (mutate.py makes them). Never part of the product.
#ifndef CRUMB_TESTS_SIM_MUTATION_H_
#define CRUMB_TESTS_SIM_MUTATION_H_

#include <string>
#include <vector>

namespace crumb::sim {

// Names of the bugs that this program's sources have; made by mutate.py, or empty.
const std::vector<std::string>& MutationNames();
// At most one is on.
void SetMutation(const std::string& name);
bool Mutated(const char* name);
// Counts the times that a bug's place was passed while it was on: true for every `nth`.
bool MutatedEvery(const char* name, unsigned nth);

}  // namespace crumb::sim

#endif  // CRUMB_TESTS_SIM_MUTATION_H_
