package peer

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	grpcpeer "google.golang.org/grpc/peer"
)

const (
	// complainEvery is how often it is logged that a node did the same wrong thing
	// again.
	complainEvery = time.Minute
	// maxComplaints bounds how many things are remembered.
	maxComplaints = 1024
)

// complaints remembers what was logged about other nodes: who is refused dials
// again several times a second, and the log needs to say so once a minute.
type complaints struct {
	mu    sync.Mutex
	said  map[complaint]time.Time
	swept time.Time // what is a minute old was last forgotten
}

// complaint is what a node, or an address that has not said who it is, did wrong.
type complaint struct{ who, cause string }

// first reports whether that is to be logged. With too much to remember nothing
// new is, until a minute has passed: names cost nothing.
func (r *complaints) first(who, cause string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, key := time.Now(), complaint{who, cause}
	if at, said := r.said[key]; said && now.Sub(at) < complainEvery {
		return false
	}
	if len(r.said) >= maxComplaints && now.Sub(r.swept) >= complainEvery/10 {
		r.swept = now
		for k, at := range r.said {
			if now.Sub(at) >= complainEvery {
				delete(r.said, k)
			}
		}
	}
	if len(r.said) >= maxComplaints {
		return false
	}
	if r.said == nil {
		r.said = map[complaint]time.Time{}
	}
	r.said[key] = now
	return true
}

// causes tell errors apart where they are counted together. The
// text of an error may be the other node's.
var causes = []error{
	errCrowd, errHandshake, errUnproven, errProtocol, errShort, errTooMuch, errCrowded, errLate, errFar, errEntry, ErrUnknownNode, ErrUnknownGroup, ErrBacklog, ErrBusy,
	errStranger, ErrBroken, ErrClosed, errPanic, context.Canceled,
}

func causeOf(err error) string {
	for _, c := range causes {
		if errors.Is(err, c) {
			return c.Error()
		}
	}
	return "other"
}

// Complain logs what another node has done wrong, once a minute for each node
// and cause: what is a constant text.
func (m *Mesh) Complain(node, what string, err error) {
	if m.complaints.first(node, what+": "+causeOf(err)) {
		m.log.Warn(what, slog.String("node", node), slog.Any("error", err))
	}
}

// distrust breaks the link to a node that gives answers which make no sense.
func (m *Mesh) distrust(node string, err error) {
	m.Complain(node, "malformed answer from a node", err)
	if p := m.peer(node); p != nil {
		if l := p.link.Load(); l != nil {
			l.cancel(err)
		}
	}
}

// host is where a stream comes from, for what has not said who it is.
func host(ctx context.Context) string {
	p, ok := grpcpeer.FromContext(ctx)
	if !ok {
		return ""
	}
	h, _, err := net.SplitHostPort(p.Addr.String())
	if err != nil {
		return p.Addr.String()
	}
	return h
}
