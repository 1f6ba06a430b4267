// Counts the allocations of the program it is linked into. Any thread.
#ifndef CRUMB_TESTS_UNIT_CLIENT_ALLOCATION_COUNTER_H_
#define CRUMB_TESTS_UNIT_CLIENT_ALLOCATION_COUNTER_H_

#include <cstdint>

namespace crumb::testing {

uint64_t Allocations();

}  // namespace crumb::testing

#endif  // CRUMB_TESTS_UNIT_CLIENT_ALLOCATION_COUNTER_H_
