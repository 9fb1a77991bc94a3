// Package jepsen tests quorate from outside: it starts real nodes, injects faults, and
// checks what clients saw. It uses the binary, its HTTP API and an AMQP client, and
// imports nothing of the server.
//
// The folders are named after the parts of Jepsen: cluster (processes), client
// (publishers and consumers that record what happened), nemesis (faults), workload
// (what clients do), history (the record) and checker (pure functions from a history
// to problems). report tells what runs have shown, and bench what the same clients and
// nodes measure under load.
package jepsen
