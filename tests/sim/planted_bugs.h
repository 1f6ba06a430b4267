// Bugs on purpose, as decorators of the seams, so that it is proved that the simulator's rules find
// them. Never part of the product. Bugs inside the product's own code are mutation.h's affair.
//   volatile_sync  a device that acknowledges syncs and durable writes it did not make durable
//   lost_write     a device that drops a durable record now and then
//   early_job      a device queue that reports a job done that never ran
//   early_push     a transport that reports a push done before the data is at the worker
//   wrong_page     a device that now and then delivers another page's bytes, its header made to fit
#ifndef CRUMB_TESTS_SIM_PLANTED_BUGS_H_
#define CRUMB_TESTS_SIM_PLANTED_BUGS_H_

#include <string>

#include "tests/sim/sim_world.h"

namespace crumb::sim {

// "none" plants nothing. False: unknown name.
bool FindPlant(const std::string& name, Planted* planted);
// "none, volatile_sync, ..."
std::string PlantNames();

}  // namespace crumb::sim

#endif  // CRUMB_TESTS_SIM_PLANTED_BUGS_H_
