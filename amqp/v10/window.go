package v10

import "github.com/quorate/quorate/amqp/v10/wire"

// maxIncomingWindow is how many transfer frames a client may send before it is given a new window.
const maxIncomingWindow = 400

// ahead is how far a is behind b as serial numbers are: negative, if b comes first.
func ahead(a, b uint32) int32 { return int32(b - a) }

// incoming is a session's window for the client's transfers.
//
// Invariants: left ≤ maxIncomingWindow; left and grace are not both above 0.
type incoming struct {
	next  uint32 // id of the client's next transfer
	left  uint32
	grace uint32 // transfers that a closed window lets through: they were on their way
	shut  bool   // by a resource alarm

	// What the client says of its own window: how many it may send from the id from on.
	from, promised uint32
}

// begin starts with the id of the client's first transfer, and its own window.
func (w *incoming) begin(next, promised uint32, shut bool) {
	*w = incoming{next: next, shut: shut, from: next, promised: promised}
	if !shut {
		w.left = maxIncomingWindow
	}
}

// transfer counts a frame. false: the client had no window.
func (w *incoming) transfer() bool {
	switch {
	case w.left > 0:
		w.left--
	case w.grace > 0:
		w.grace--
	default:
		return false
	}
	w.next++
	return true
}

// remote is how many transfers the client may send by its own window.
func (w *incoming) remote() uint32 { return w.promised - min(w.promised, w.next-w.from) }

// isLow reports whether a new window is due.
func (w *incoming) isLow() bool { return !w.shut && w.left <= maxIncomingWindow/2 }

// refill opens the window, unless it is shut.
func (w *incoming) refill() {
	if !w.shut {
		w.left, w.grace = maxIncomingWindow, 0
	}
}

// setAlarm shuts the window, or opens it. It reports whether the client is to be told.
func (w *incoming) setAlarm(on bool) (tell bool) {
	if on == w.shut {
		return false
	}
	w.shut = on
	if on {
		w.left, w.grace = 0, maxIncomingWindow
	}
	w.refill()
	return true
}

// outgoing is the client's window for the transfers of a session.
type outgoing struct {
	next   uint32 // id of the next transfer
	window uint32
}

// flow takes in what the client says of its window. false: it knows of transfers that were never sent.
func (w *outgoing) flow(next wire.Optional[uint32], window uint32) bool {
	sent := ahead(next.Or(0), w.next) // the first id is 0
	if sent < 0 {
		return false
	}
	w.window = window - min(window, uint32(sent))
	return true
}

// take uses one transfer frame of the window. false: it is shut.
func (w *outgoing) take() bool {
	if w.window == 0 {
		return false
	}
	w.window--
	w.next++
	return true
}

// stamp fills in the fields that every flow has.
func (w *incoming) stamp(f *wire.Flow, out *outgoing) {
	f.NextIncomingID, f.IncomingWindow = wire.Some(w.next), w.left
	f.NextOutgoingID, f.OutgoingWindow = out.next, 1<<32-1
}
