package v091

import (
	"errors"
	"testing"

	"github.com/quorate/quorate/amqp"
)

// TestChannelEnd: the number is free once the session is closed and, if the
// close was the server's, the client has answered; in whatever order that comes.
func TestChannelEnd(t *testing.T) {
	for name, steps := range map[string]struct {
		do   []func(*channelEnd)
		free int // after so many steps
	}{
		"client":          {[]func(*channelEnd){begin, claim, (*channelEnd).finish}, 3},
		"server":          {[]func(*channelEnd){begin, (*channelEnd).ignore, claim, (*channelEnd).sessionIsClosed, (*channelEnd).isAnswered}, 5},
		"answered first":  {[]func(*channelEnd){begin, (*channelEnd).ignore, claim, (*channelEnd).isAnswered, (*channelEnd).sessionIsClosed}, 5},
		"answered twice":  {[]func(*channelEnd){begin, (*channelEnd).ignore, claim, (*channelEnd).isAnswered, (*channelEnd).isAnswered, (*channelEnd).sessionIsClosed}, 6},
		"finished before": {[]func(*channelEnd){begin, claim, (*channelEnd).finish, (*channelEnd).finish}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			freed := 0
			e := newChannelEnd(func() { freed++ })
			for i, step := range steps.do {
				step(&e)
				if want := i+1 >= steps.free; e.isFinished() != want || (freed == 1) != want {
					t.Fatalf("step %d: finished %v, freed %d", i+1, e.isFinished(), freed)
				}
				if e.isOpen() {
					t.Fatal("still open")
				}
			}
		})
	}
}

func begin(e *channelEnd) { e.begin() }

func claim(e *channelEnd) { e.claimSession() }

// TestChannelEndOnce: a close begins once, and one closes the session.
func TestChannelEndOnce(t *testing.T) {
	e := newChannelEnd(func() {})
	if !e.begin() || e.begin() {
		t.Error("begun twice, or never")
	}
	if !e.claimSession() || e.claimSession() {
		t.Error("the session is closed twice, or never")
	}
}

// TestChannelEndWait: the reader goes on when the number is free, when the
// server's close has come before the client's, or when the connection is over.
func TestChannelEndWait(t *testing.T) {
	closed := make(chan struct{})
	close(closed)
	over, running := &reader{over: closed}, &reader{}
	e := newChannelEnd(func() {})
	e.begin()
	e.seen = seenClose
	if free, err := e.wait(over); free || !errors.Is(err, amqp.ErrEnding) {
		t.Errorf("connection over: %v %v", free, err)
	}
	e.ignore()
	if free, err := e.wait(running); free || err != nil || e.seen != seenNothing {
		t.Errorf("closed by the server: %v %v", free, err)
	}
	// With the client's answer only the end of the channel counts.
	e.seen = seenCloseOK
	if free, err := e.wait(over); free || !errors.Is(err, amqp.ErrEnding) {
		t.Errorf("connection over: %v %v", free, err)
	}
	e.finish()
	if free, err := e.wait(running); !free || err != nil {
		t.Errorf("finished: %v %v", free, err)
	}
}
