package mgmt

import (
	"fmt"
	"net/http"
	"strconv"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// pauses pauses the consumers of queues, and resumes them: for who may configure the queue.
type pauses struct {
	messages Messages
	node     Node
}

func (p pauses) pause(w *responder, r *request) {
	b, ok := w.body(r)
	if !ok {
		return
	}
	c := &logpb.Pause{By: r.user.GetName()}
	var err error
	if c.Reason, err = b.text("reason"); err != nil {
		w.failed(err)
		return
	}
	if len(c.Reason) > fsm.MaxPauseText {
		w.badRequest(fmt.Sprintf("reason must have at most %d bytes", fsm.MaxPauseText))
		return
	}
	now := int64(p.node.Now())
	for key, from := range map[string]int64{"until": 0, "for": now} {
		if _, given := b[key]; !given {
			continue
		}
		n, err := strconv.ParseInt(b.word(key), 10, 64)
		if c.Until != 0 || err != nil || n <= 0 || n > int64(fsm.MaxTime)-from || from+n <= now {
			w.badRequest("until must be a time to come, in ms since the epoch, or for a time in ms from 1; not both")
			return
		}
		c.Until = from + n
	}
	p.perform(w, r, c)
}

func (p pauses) resume(w *responder, r *request) {
	if _, ok := w.body(r); ok {
		p.perform(w, r, &logpb.Pause{Resume: true})
	}
}

func (p pauses) perform(w *responder, r *request, c *logpb.Pause) {
	q := w.usable(r, catalog.Configure)
	if q == nil {
		return
	}
	if err := catalog.CheckPause(r.view.FSMVersion()); err != nil {
		w.failed(err)
		return
	}
	done, err := p.messages.Command(r.Context(), q, &logpb.Command{Kind: logpb.Command_PAUSE, Pause: c})
	if err != nil {
		w.failed(err)
		return
	}
	w.answer(http.StatusOK, api.Changed{Changed: done[0].Count > 0})
}
