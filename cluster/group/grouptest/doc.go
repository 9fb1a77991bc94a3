// Package grouptest stands in for the cluster in tests: a catalog without
// raft, and a queue's log and machine without raft. Nothing in it has a
// goroutine of its own, and time passes only when the test says so.
//
// It is for tests only, and knows none of the packages that are tested with it
// but cluster/group.
package grouptest

import (
	"runtime"
	"time"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// Fatal is what fails a test: a testing.TB or a rapid.T.
type Fatal interface {
	Helper()
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
}

// Commands decodes a batch.
func Commands(t Fatal, b group.Batch) []*logpb.Command {
	t.Helper()
	var e logpb.Entry
	if err := e.UnmarshalVT(b.Commands); err != nil {
		t.Fatalf("a batch cannot be decoded: %v", err)
	}
	if len(e.Commands) != b.Count {
		t.Fatalf("a batch has %d commands and says %d", len(e.Commands), b.Count)
	}
	return e.Commands
}

// OK is the answer that commands first … first+run-1 have succeeded.
func OK(first, run uint64) group.Outcome { return group.Outcome{First: first, Run: run} }

// Code is the answer to one command.
func Code(seq uint64, c fsm.Code) group.Outcome {
	return group.Outcome{First: seq, Run: 1, Result: fsm.Result{Code: c}}
}

// Payload is that of a message to the default exchange, with routing key k.
func Payload(body string) fsm.Payload {
	return append(fsm.AppendPayloadHead(nil, "", "k", nil), body...)
}

// Enqueue is a batch with one message.
func Enqueue(p fsm.Payload) group.Batch {
	return group.Batch{
		Commands: group.AppendCommand(nil, &logpb.Command{
			Kind: logpb.Command_ENQUEUE, Enqueue: &logpb.Enqueue{Size: uint32(len(p))},
		}),
		Count: 1, Payloads: [][]byte{p}, Bytes: len(p),
	}
}

// Eventually waits for a state that other goroutines bring about.
func Eventually(t Fatal, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("not in time")
		}
	}
}
