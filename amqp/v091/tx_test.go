package v091_test

import (
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/fsm"
)

// TestClientCommitWaits: a commit is answered when the last of its publishes
// has its outcome, in whatever order they come.
func TestClientCommitWaits(t *testing.T) {
	s := mustServe(t, nil)
	ch := mustChannel(t, s.mustOpen())
	mustDeclare(t, ch, "q")
	must(t, ch.Publish("", "q", false, false, amqp091.Publishing{})) // no business of the commit
	must(t, ch.Tx())
	s.broker.HoldConfirms()
	for range 10 {
		must(t, ch.Publish("", "q", false, false, amqp091.Publishing{}))
	}
	if n := s.broker.Published(); n != 1 {
		t.Fatalf("%d messages published before the commit", n-1)
	}
	committed := make(chan error, 1)
	go func() { committed <- ch.TxCommit() }()
	s.broker.AwaitPublished(11)
	select {
	case err := <-committed:
		t.Fatalf("committed without outcomes: %v", err)
	default:
	}
	s.broker.ReleaseConfirms(true)
	must(t, receive(t, committed))
}

// TestClientCommitLost: a commit whose session the broker gives up ends the
// channel with the broker's reason.
func TestClientCommitLost(t *testing.T) {
	s := mustServe(t, nil)
	ch := mustChannel(t, s.mustOpen())
	mustDeclare(t, ch, "q")
	must(t, ch.Tx())
	s.broker.HoldConfirms()
	must(t, ch.Publish("", "q", false, false, amqp091.Publishing{}))
	closed := ch.NotifyClose(make(chan *amqp091.Error, 1))
	committed := make(chan error, 1)
	go func() { committed <- ch.TxCommit() }()
	s.broker.AwaitPublished(1)
	s.broker.Lose(fsm.Refuse(fsm.Unavailable, "session lost"))
	if e := receive(t, closed); e.Code != 406 || e.Reason != "PRECONDITION_FAILED - session lost" {
		t.Errorf("%v", e)
	}
	if err := receive(t, committed); err == nil {
		t.Error("the commit succeeds")
	}
}

// TestClientTxPublishRefused: what the broker refuses to publish ends the channel when
// it is published, not when it is committed.
func TestClientTxPublishRefused(t *testing.T) {
	s := mustServe(t, nil)
	ch := mustChannel(t, s.mustOpen())
	must(t, ch.Tx())
	closed := ch.NotifyClose(make(chan *amqp091.Error, 1))
	must(t, ch.Publish("nothing", "q", false, false, amqp091.Publishing{}))
	if e := receive(t, closed); e.Code != 404 {
		t.Errorf("%v", e)
	}
}
