package v091

import (
	"context"
	"log/slog"
	"sync/atomic"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/v091/wire"
)

// channelEnd is the progress of a channel's close. Either side may begin it, or
// both at once. The channel's gate guards all fields except where noted.
//
// Invariants: ignoring and sessionClosing only if the channel is not open;
// crossed only if ignoring; finished is closed with state channelClosed. After
// a close by the server that state requires both sessionClosed and answered.
type channelEnd struct {
	state          channelState
	sessionClosing bool // the session is being closed, or has been
	sessionClosed  bool // after a close by the server
	answered       bool // the client has sent channel.close-ok

	ignoring   atomic.Bool   // channel.close was sent: frames are ignored; set under the gate
	crossed    atomic.Bool   // and the client's own close was answered meanwhile
	ignored    chan struct{} // closed with ignoring
	finished   chan struct{} // closed when the number is free
	beforeFree func()        // called just before finished is closed

	seen seenEnd // reader only
}

type channelState uint8

const (
	channelOpen    channelState = iota
	channelClosing              // a close is in progress: the server's, or the connection's
	channelClosed
)

// seenEnd is what the reader has seen of the end of a channel.
type seenEnd uint8

const (
	seenNothing seenEnd = iota
	seenClose           // channel.close
	seenCloseOK         // channel.close-ok
)

func newChannelEnd(beforeFree func()) channelEnd {
	return channelEnd{ignored: make(chan struct{}), finished: make(chan struct{}), beforeFree: beforeFree}
}

func (e *channelEnd) isOpen() bool { return e.state == channelOpen }

// begin ends the open state. It returns false if it has ended already.
func (e *channelEnd) begin() bool {
	if e.state != channelOpen {
		return false
	}
	e.state = channelClosing
	return true
}

// ignore makes the reader ignore frames from now on. It is called once.
func (e *channelEnd) ignore() {
	e.ignoring.Store(true)
	close(e.ignored)
}

// claimSession returns false if another goroutine is closing, or has closed,
// the session.
func (e *channelEnd) claimSession() bool {
	if e.sessionClosing {
		return false
	}
	e.sessionClosing = true
	return true
}

// sessionIsClosed records the server's part of its own close.
func (e *channelEnd) sessionIsClosed() {
	e.sessionClosed = true
	if e.answered {
		e.finish()
	}
}

// isAnswered records the client's part of the server's close.
func (e *channelEnd) isAnswered() {
	e.answered = true
	if e.sessionClosed {
		e.finish()
	}
}

// finish frees the number.
func (e *channelEnd) finish() {
	if e.state != channelClosed {
		e.state = channelClosed
		e.beforeFree()
		close(e.finished)
	}
}

// isFinished may be called by any goroutine.
func (e *channelEnd) isFinished() bool {
	select {
	case <-e.finished:
		return true
	default:
		return false
	}
}

// wait blocks the reader, which must not hold the gate, while a close is in
// progress. It returns false if the number is not free afterwards, because the
// server's own close came first.
func (e *channelEnd) wait(r *reader) (free bool, err error) {
	ignored := e.ignored
	if e.seen == seenCloseOK {
		ignored = nil
	}
	for {
		select {
		case <-e.finished:
			return true, nil
		case <-ignored:
			e.seen = seenNothing
			return false, nil
		case <-r.relieved:
			r.dropRelieved()
		case <-r.over:
			return false, amqp.ErrEnding
		}
	}
}

// raise answers an error of the method with this id by closing the channel or
// the connection. The gate is held.
func (ch *channel) raise(err error, id uint32) {
	if !ch.end.begin() {
		return
	}
	if isInternal(err) && ch.conn.Context().Err() == nil {
		ch.conn.Log.Error("method failed", slog.Int("channel", int(ch.number)), slog.Any("error", err))
	}
	e := protocolError(err, id)
	if e.Code == wire.CodeAccessRefused {
		ch.conn.refused(e)
	}
	if endsConnection(e.Code) {
		ch.conn.fail(e)
		return
	}
	ch.conn.Log.Info("channel error", slog.Int("channel", int(ch.number)), slog.Any("error", e))
	ch.consumers.close()
	ch.end.ignore()
	ch.tx.drop()
	ch.publisher.closeWith(&wire.ChannelClose{
		ReplyCode: e.Code, ReplyText: wire.ReplyText(e.Code, e.Text), FailedClass: e.ClassID, FailedMethod: e.MethodID,
	})
	if ch.queue.has(requestClose) {
		ch.answerCrossing()
	}
}

// answerCrossing answers the client's close after the server's own has been
// sent. The channel still ends with the client's close-ok.
func (ch *channel) answerCrossing() {
	ch.end.crossed.Store(true)
	ch.conn.out.push(ch.number, &wire.ChannelCloseOK{})
}

// closeSession returns what the channel holds.
func (ch *channel) closeSession() {
	ctx, cancel := context.WithTimeout(ch.conn.ServerContext(), ch.conn.Config().OperationTimeout)
	defer cancel()
	ch.session.Close(ctx)
}

// closeByClient answers channel.close once the channel's deliveries are back in
// their queues.
func (ch *channel) closeByClient() {
	ch.consumers.close()
	ch.gate.Lock()
	ch.settler.flush()
	ch.end.begin()
	ch.end.claimSession()
	ch.gate.Unlock()
	ch.closeSession()
	ch.publisher.closeWith(&wire.ChannelCloseOK{})
	ch.gate.Lock()
	ch.end.finish()
	ch.gate.Unlock()
}

// closeByServer closes the session of a channel after channel.close has been sent.
func (ch *channel) closeByServer() {
	ch.closeSession()
	ch.gate.Lock()
	ch.end.sessionIsClosed()
	ch.gate.Unlock()
}

// readClose handles channel.close of the client. The reader calls it.
func (ch *channel) readClose() error {
	accepted, err := ch.submit(&request{kind: requestClose})
	switch {
	case accepted:
		ch.end.seen = seenClose
	case ch.end.ignoring.Load():
		ch.answerCrossing()
	}
	return err
}

// readCloseOK handles channel.close-ok of the client. The reader calls it.
func (ch *channel) readCloseOK() {
	ch.end.seen = seenCloseOK
	ch.gate.Lock()
	ch.end.isAnswered()
	ch.gate.Unlock()
}

// shut ends the channel with its connection.
func (ch *channel) shut() {
	ch.consumers.close()
	ch.publisher.close()
	ch.gate.Lock()
	ch.end.begin()
	ch.gate.Unlock()
}

// beginClose is called before the connection closes the session, and passes on
// pending settlements. It returns false if another goroutine is closing, or has
// closed, the session.
func (ch *channel) beginClose() bool {
	ch.gate.Lock()
	defer ch.gate.Unlock()
	if !ch.end.claimSession() {
		return false
	}
	ch.settler.flush()
	return true
}
