// Package clock provides the time with which a node stamps entries.
//
// Each node has a wall clock that may be wrong and a monotonic clock that is not. A Clock advances
// by the monotonic clock and is set by the median of the wall clocks of all nodes, so that one
// wrong clock, or one that is set while the node runs, changes nothing. A Stamper stamps the
// entries of one group: it never runs backwards, and jumps ahead only where nobody can be
// surprised by it.
//
// Nothing here does I/O; the wall clock, the monotonic clock and the readings of other nodes'
// clocks are passed in.
package clock
