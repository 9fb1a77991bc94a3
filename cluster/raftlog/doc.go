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
// Beside each store lies its ledger, a small file with a record per group of
// what was acknowledged: how far the log went, and which vote was given.
//
// What the package promises: StoreLogs, a changed term, a vote and a closed
// snapshot are durable when the call returns. A write that fails does not
// return: the reason is logged and the process ends with code 74. Data that
// fails its checksum is never handed out: it ends the process, and the next one
// finds the group empty. A group that has less than it acknowledged, for
// whatever reason, says so: Group.Doubt. Until Group.Prove it must not vote.
//
// What it does not do: it decides nothing about raft, and it does not know
// what a message is.
//
// DESIGN.md has the key layout, the rules in full and what was refused.
package raftlog
