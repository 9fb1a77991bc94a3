package mgmt

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// Bounds of a page of ends, and of a verification.
const (
	maxEnds         = 1000
	defaultEnds     = 100
	defaultVerify   = 10 * time.Second
	longestVerify   = 10 * time.Minute
	longestIDLength = 255
)

// History tells what happened to messages, and whether replicas agree.
type History interface {
	// Ends asks a queue's leader for a page of its records of messages that have ended.
	Ends(ctx context.Context, q *catalog.Queue, r *peerpb.EndsRequest) (api.EndedPage, error)
	// Explain asks a queue's leader for the lives of messages.
	Explain(ctx context.Context, q *catalog.Queue, r *peerpb.ExplainRequest) (api.Explanation, error)
	// Verify compares the replicas of a queue at one entry, until ctx ends, and VerifyCatalog those
	// of the catalog.
	Verify(ctx context.Context, q *catalog.Queue) api.Verification
	VerifyCatalog(ctx context.Context) api.Verification
}

// history serves what happened to messages.
type history struct{ history History }

// deaths lists records of messages that have ended.
func (h history) deaths(w *responder, r *request) {
	q, query := w.readable(r), r.URL.Query()
	if q == nil {
		return
	}
	limit, err := pageLimit(query, defaultEnds, maxEnds)
	if err != nil {
		w.failed(err)
		return
	}
	m := &peerpb.EndsRequest{MessageId: query.Get("message_id"), Reason: query.Get("reason"), Limit: uint32(limit)}
	if m.After, err = strconv.ParseUint(cmp.Or(query.Get("after"), "0"), 10, 64); err != nil {
		w.badRequest("after must be the number of a record")
		return
	}
	if m.Since, err = strconv.ParseInt(cmp.Or(query.Get("since"), "0"), 10, 64); err != nil {
		w.badRequest("since must be a time in milliseconds since the epoch")
		return
	}
	if names := reasonNames(); m.Reason != "" && !slices.Contains(names, m.Reason) {
		w.badRequest(fmt.Sprintf("reason must be one of %v", names))
		return
	}
	page, err := h.history.Ends(r.Context(), q, m)
	w.result(page, err)
}

// reasonNames lists the reasons that a record may have.
func reasonNames() (names []string) {
	for no := range logpb.EndState_Reason_name {
		if no != 0 {
			names = append(names, queue.ReasonName(queue.EndReason(no)))
		}
	}
	slices.Sort(names)
	return names
}

// explain tells the lives of messages.
func (h history) explain(w *responder, r *request) {
	q, query := w.readable(r), r.URL.Query()
	if q == nil {
		return
	}
	m := &peerpb.ExplainRequest{MessageId: query.Get("message_id")}
	if text := query.Get("message"); text != "" {
		var err error
		if m.Message, err = strconv.ParseUint(text, 10, 64); err != nil || m.Message == 0 {
			w.badRequest("message must be the number of a message")
			return
		}
	}
	if (m.MessageId == "") == (m.Message == 0) || len(m.MessageId) > longestIDLength {
		w.badRequest("message_id or message is required")
		return
	}
	x, err := h.history.Explain(r.Context(), q, m)
	w.result(x, err)
}

// verify compares the replicas of a queue.
func (h history) verify(w *responder, r *request) {
	q := w.queue(r)
	if q == nil {
		return
	}
	verified(w, r, func(ctx context.Context) api.Verification { return h.history.Verify(ctx, q) })
}

// verifyCatalog compares the replicas of the catalog.
func (h history) verifyCatalog(w *responder, r *request) {
	verified(w, r, h.history.VerifyCatalog)
}

// verified answers with a comparison that ends in time.
func verified(w *responder, r *request, verify func(ctx context.Context) api.Verification) {
	wait := defaultVerify
	if text := r.URL.Query().Get("timeout"); text != "" {
		n, err := strconv.Atoi(text)
		if wait = time.Duration(n) * time.Millisecond; err != nil || n < 1 || wait > longestVerify {
			w.badRequest(fmt.Sprintf("timeout must be a number of milliseconds from 1 to %d", longestVerify.Milliseconds()))
			return
		}
	}
	ctx, cancel := context.WithTimeout(r.Context(), wait)
	defer cancel()
	w.answer(http.StatusOK, verify(ctx))
}
