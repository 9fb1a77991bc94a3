// Package raftlog keeps what raft must not forget: logs, terms, votes and
// snapshots.
//
// All queue groups of a node share one Store, so that their appends share
// syncs. A log entry lies there in two parts: its header (raft.Log.Data) and
// its payload section (raft.Log.Extensions), under separate keys. Truncation
// is logical: an entry that raft has let go of loses its header, but its
// payload section stays until the machine says, by Release, that no live
// message is left in it.
//
// The catalog's group has a store of its own, Catalog.
//
// What the package promises: StoreLogs, a changed term, a vote and a closed
// snapshot are durable when the call returns. A write that fails does not
// return: the reason is logged and the process ends with code 74. Data that
// fails its checksum is never handed out: the group is marked as damaged, the
// process ends, and Store.Group refuses the group until it was dropped.
//
// What it does not do: it decides nothing about raft, and it does not know
// what a message is.
//
// DESIGN.md has the key layout, the rules in full and what was refused.
package raftlog
