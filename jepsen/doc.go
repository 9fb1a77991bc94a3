// Package jepsen tests quorate from outside: it starts real nodes, breaks
// them, and checks what clients saw. It knows the binary, its HTTP API and an
// AMQP client, and imports nothing of the project.
//
// The folders carry the names of Jepsen's parts: cluster (processes), client
// (publishers and consumers that record what happened), nemesis (faults),
// workload (what clients do), history (the record) and checker (pure
// functions from a history to problems).
package jepsen
