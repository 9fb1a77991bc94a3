// Package clock is the time that a node stamps entries with.
//
// Each node has a wall clock that may be wrong and a monotonic clock that may
// not. A Clock runs by the monotonic one and is set by the median of the wall
// clocks of all nodes, so that one wrong clock, or one that is set while the
// node runs, moves nothing. A Stamper stamps the entries of one group: it
// never runs back, and jumps ahead only where nobody can be surprised by it.
//
// Nothing here does I/O; the wall clock, the monotonic clock and the readings
// of other nodes' clocks come from outside.
package clock
