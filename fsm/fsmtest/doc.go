// Package fsmtest tests the queue machine against the rules, not against
// itself.
//
// It has a model of a queue that is as naive as possible: lists in the order of
// the rules, scanned from the front, without index or cache, and storing
// nothing that can be computed. Generated histories are applied to the model
// and to several replicas of the machine (one straight through, one restored
// from snapshots, one restarted, one without effects, one through the wire
// encoding), and everything visible is compared after every command. A failing
// history is shrunk, printed, and kept below testdata.
//
// A rule that both the model and the machine misread goes unnoticed. So a
// witness also follows the machine. It knows no rules but the promises to
// users: what was refused is never delivered, what was confirmed is held or
// accounted for, nothing is early, nothing is handed out after its end.
//
// Model and witness look at all that the machine holds after each command, so their
// histories stay below most bounds. TestFlood passes these, with bursts of thousands
// of commands that an observer follows by commands, answers and effects alone;
// -flood.histories says how many.
//
// The package also simulates the environment of dead letters: several queues,
// and a sender between them that loses, repeats and reorders.
//
// `go test ./fsm/fsmtest` tries 2,000 histories of 200 commands on average,
// from a fixed seed; QUORATE_FSM_LONG=1 tries 100,000 longer ones from new
// seeds, and -rapid.checks, -rapid.steps and -rapid.seed set each individually.
// A failing history is printed in the form of testdata/*.log: placed there, it
// is replayed by TestRegressions.
//
// Nothing here is used in production.
package fsmtest
