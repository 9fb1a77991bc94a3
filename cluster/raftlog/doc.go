// Package raftlog stores what raft must not forget: logs, terms, votes and snapshots.
//
// All queue groups of a node share one Store, so that their appends share syncs. A log entry is
// stored in two parts under separate keys: its header (raft.Log.Data) and its payload section
// (raft.Log.Extensions). Truncation is logical: an entry that raft has discarded loses its header,
// but its payload section stays until the machine reports, by Release, that it holds no live
// message. Once UseSegments is called, large payload sections lie in files that all groups share, and
// are written once.
//
// The catalog's group has a store of its own, Catalog.
//
// Beside each store lies its ledger, a small file with a record per group of what was
// acknowledged: how far the log reached, and which vote was given.
//
// What the package promises: StoreLogs, a vote and a closed snapshot are durable when the call returns;
// with Group.Overlap, StoreLogs when WhenDurable says so, and a vote when WhenVoted does. A changed term
// is durable with the first of these that follows it. A write that fails does not return: the reason is logged and the process
// ends with code 74. Data that fails its checksum is never returned: the process ends, and the
// next one finds the group empty. A group that has less than it acknowledged, for whatever reason,
// reports it: Group.Doubt. Until Group.Prove it must not vote.
//
// What it does not do: it decides nothing about raft, and it does not know what a message is.
//
// DESIGN.md has the key layout, the rules in full and the refused alternatives.
package raftlog
