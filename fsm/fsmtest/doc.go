// Package fsmtest tests the queue machine against the rules, not against
// itself.
//
// It holds a model of a queue that is as naive as it can be: lists in the
// order of the rules, scanned from the front, no index, no cache, nothing
// remembered that can be computed. Histories are generated, applied to the
// model and to several replicas of the machine (one straight through, one
// restored from snapshots, one restarted, one without effects, one through the
// wire encoding), and everything that can be seen is compared after every
// command. A failing history is shrunk, printed, and kept below testdata.
//
// A rule that is misread in the model and in the machine alike shows to neither.
// So a witness follows the machine as well, which knows no rules but the promises
// to users: what was refused is never delivered, what was confirmed is held or
// accounted for, nothing is early, nothing is handed out past its end.
//
// The package also simulates what surrounds dead letters: several queues, and
// a sender between them that loses, repeats and reorders.
//
// `go test ./fsm/fsmtest` tries 2,000 histories of 200 commands on average, from
// a fixed seed; QUORATE_FSM_LONG=1 tries 100,000 longer ones from new seeds, and
// -rapid.checks, -rapid.steps and -rapid.seed set each by itself. A history that
// fails is printed in the form of testdata/*.log: put there, it is replayed by
// TestRegressions.
//
// Nothing here is used in production.
package fsmtest
