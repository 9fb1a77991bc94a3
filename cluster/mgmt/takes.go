package mgmt

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/cluster/mgmt/api"
	leader "github.com/quorate/quorate/cluster/queues"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// Bounds of one request that takes messages.
const (
	maxTaken = leader.MaxSelected
	// maxRedriveRate is how many messages a second may be asked for: more is as fast as it goes.
	maxRedriveRate = 10_000
)

// taking deletes, moves, copies or redrives messages that are ready: for who may read the queue, and write to that where
// they go.
type taking struct {
	messages Messages
	action   logpb.Take_Action
}

// conditions are the keys of a body that say which messages are meant.
var conditions = []string{"messages", "message_id", "headers", "older_than", "younger_than", "reason", "source"}

func (t taking) perform(w *responder, r *request) {
	b, ok := w.body(r)
	if !ok || !w.hasQueue(r, r.PathValue("vhost"), r.PathValue("name")) {
		return
	}
	_, rated := b["rate"]
	_, all := b["all"]
	goesOn := t.action == logpb.Take_REDRIVE && (rated || all) // the queue itself
	by := catalog.Client{User: r.user.GetName()}
	from, err := r.view.TakeFrom(by, r.PathValue("vhost"), r.PathValue("name"))
	if err != nil {
		w.failed(err)
		return
	}
	redrive := &logpb.Redrive{By: by.User}
	if goesOn {
		err = b.bounds(redrive)
	}
	if err != nil {
		w.failed(err)
		return
	}
	s, err := b.selection(t.action)
	if err != nil {
		w.failed(err)
		return
	}
	var to *catalog.Queue
	if name, _ := b["to"].(string); name != "" {
		if to, err = r.view.UseQueue(by, catalog.Write, from.VHost, name); err != nil {
			w.failed(err)
			return
		}
	}
	if err := catalog.CheckTake(r.view.FSMVersion(), from, to); err != nil {
		w.failed(err)
		return
	}
	if goesOn {
		if to != nil {
			redrive.Target, redrive.To = uint64(to.ID), to.Name
		}
		n, err := t.begin(r, from, redrive, s)
		w.result(api.Redriving{Number: n}, err)
		return
	}
	s.Sources = t.action == logpb.Take_REDRIVE && to == nil
	answer, err := t.take(r, by, from, to, s)
	w.result(answer, err)
}

// bounds reads how a redrive that the queue goes on with is bounded, and takes that out of the body.
func (b body) bounds(to *logpb.Redrive) error {
	if v, given := b["all"]; given && v != true {
		return fsm.Refuse(fsm.Precondition, "all must be true")
	}
	for key, at := range map[string]*uint64{"rate": &to.Rate, "limit": &to.Limit} {
		if _, given := b[key]; !given {
			continue
		}
		var err error
		if *at, err = strconv.ParseUint(b.word(key), 10, 63); err != nil || *at == 0 || to.Rate > maxRedriveRate {
			return fsm.Refuse(fsm.Precondition, fmt.Sprintf("rate must be a whole number from 1 to %d, and limit one from 1", maxRedriveRate))
		}
	}
	for _, key := range []string{"messages", "after"} {
		if _, given := b[key]; given {
			return fsm.Refuse(fsm.Precondition, key+" cannot be given with rate or all")
		}
	}
	for _, key := range []string{"all", "rate", "limit"} {
		delete(b, key)
	}
	return nil
}

// begin has a queue begin a redrive, and go on with it.
func (t taking) begin(r *request, from *catalog.Queue, c *logpb.Redrive, s *peerpb.SelectRequest) (number uint64, err error) {
	s.Limit = 0
	if c.Conditions, err = proto.Marshal(s); err != nil {
		return 0, err
	}
	if len(c.Conditions) > fsm.MaxConditions {
		return 0, fsm.Refuse(fsm.Precondition, fmt.Sprintf("the conditions take more than %d bytes", fsm.MaxConditions))
	}
	done, err := t.messages.Command(r.Context(), from, &logpb.Command{Kind: logpb.Command_REDRIVE, Redrive: c})
	if err != nil {
		return 0, err
	}
	return done[0].Count, nil
}

// cancel ends the redrive that a queue goes on with.
func (t taking) cancel(w *responder, r *request) {
	q := w.usable(r, catalog.Read)
	if q == nil {
		return
	}
	if err := catalog.CheckTake(r.view.FSMVersion(), q, nil); err != nil {
		w.failed(err)
		return
	}
	c := &logpb.Redrive{Cancels: true, Why: fsm.Cut("cancelled by "+r.user.GetName(), fsm.MaxPauseText)}
	done, err := t.messages.Command(r.Context(), q, &logpb.Command{Kind: logpb.Command_REDRIVE, Redrive: c})
	if err != nil {
		w.failed(err)
		return
	}
	w.answer(http.StatusOK, api.Changed{Changed: done[0].Count > 0})
}

// take takes what a selection finds. Nothing is taken of what one search finds if some of it is to go where the user may
// not write.
func (t taking) take(r *request, by catalog.Client, from, to *catalog.Queue, s *peerpb.SelectRequest) (answer api.Taken, err error) {
	target := fsm.QueueID(0)
	if to != nil {
		target = to.ID
	}
	err = leader.SelectAll(s, func() (*peerpb.SelectReply, error) { return t.messages.Select(r.Context(), from, s) }, func(found *peerpb.SelectReply) error {
		f := leader.FoundOf(r.view, by, from.VHost, t.action, target, found)
		answer.SourceGone, answer.NoSource = answer.SourceGone+f.SourceGone, answer.NoSource+f.NoSource
		if f.Why != nil || len(f.Takes) == 0 {
			return f.Why
		}
		var commands []*logpb.Command
		for _, c := range f.Takes {
			commands = append(commands, &logpb.Command{Kind: logpb.Command_TAKE, Take: c})
		}
		done, err := t.messages.Command(r.Context(), from, commands...)
		for _, d := range done {
			answer.Messages += d.Count
		}
		return err
	})
	if err != nil {
		return answer, err
	}
	answer.Next = next(s.After, s.UpTo)
	return answer, nil
}

// next is where to go on after a search; empty: it has seen all.
func next(seen, upTo uint64) string {
	if seen >= upTo {
		return ""
	}
	return fmt.Sprintf("%d-%d", seen, upTo)
}

// goOn has a search go on after another one.
func goOn(s *peerpb.SelectRequest, next string) error {
	if n, _ := fmt.Sscanf(next, "%d-%d", &s.After, &s.UpTo); n != 2 || s.UpTo == 0 {
		return fsm.Refuse(fsm.Precondition, "after must be the value next of an answer")
	}
	return nil
}

// letters counts what one search sees by its last death in another queue: for who may read the queue.
func (ms messages) letters(w *responder, r *request) {
	s := &peerpb.SelectRequest{Count: true}
	if q := r.URL.Query(); q.Has("after") {
		if err := goOn(s, q.Get("after")); err != nil {
			w.failed(err)
			return
		}
	}
	q := w.readable(r)
	if q == nil {
		return
	}
	found, err := ms.messages.Select(r.Context(), q, s)
	if err != nil {
		w.failed(err)
		return
	}
	answer := api.Letters{Kinds: []api.LetterKind{}, Next: next(found.Seen, found.UpTo)}
	for _, c := range found.Counts {
		answer.Messages += c.Messages
		switch {
		case c.Other:
			answer.Other = c.Messages
		case c.Reason == "":
			answer.NoSource = c.Messages
		default:
			answer.Kinds = append(answer.Kinds, api.LetterKind{Reason: c.Reason, Source: c.Source, Messages: c.Messages})
		}
	}
	slices.SortStableFunc(answer.Kinds, func(a, b api.LetterKind) int { return cmp.Compare(b.Messages, a.Messages) })
	w.answer(http.StatusOK, answer)
}

// selection reads which messages a request is about.
func (b body) selection(action logpb.Take_Action) (s *peerpb.SelectRequest, err error) {
	s = &peerpb.SelectRequest{Limit: maxTaken}
	some := false
	for key := range b { // det: any is refused
		isCondition := slices.Contains(conditions, key)
		if some = some || isCondition || key == "limit"; !isCondition && !slices.Contains([]string{"limit", "after", "to"}, key) {
			return nil, fsm.Refuse(fsm.Precondition, fmt.Sprintf("%s is no condition: these are %q, besides limit, after and to", key, conditions))
		}
	}
	to, err := b.text("to")
	switch {
	case err != nil:
		return nil, err
	case action == logpb.Take_DELETE && to != "" || (action == logpb.Take_MOVE || action == logpb.Take_COPY) && to == "":
		return nil, fsm.Refuse(fsm.Precondition, "what is moved or copied needs a queue to go to, and what is deleted has none")
	case action == logpb.Take_DELETE && !some:
		return nil, fsm.Refuse(fsm.Precondition, fmt.Sprintf("limit or a condition is required: %q", conditions))
	}
	for key, at := range map[string]*string{"message_id": &s.MessageId, "reason": &s.Reason, "source": &s.Source} {
		if *at, err = b.text(key); err != nil {
			return nil, err
		}
	}
	limit := uint64(maxTaken)
	for key, at := range map[string]*uint64{"older_than": &s.OlderThan, "younger_than": &s.YoungerThan, "limit": &limit} {
		if _, given := b[key]; !given {
			continue
		}
		if *at, err = strconv.ParseUint(b.word(key), 10, 63); err != nil || *at == 0 || limit > maxTaken {
			return nil, fsm.Refuse(fsm.Precondition, fmt.Sprintf("older_than and younger_than must be ms from 1, and limit a whole number from 1 to %d", maxTaken))
		}
	}
	s.Limit = uint32(limit)
	if _, given := b["after"]; given {
		if err := goOn(s, b.word("after")); err != nil {
			return nil, err
		}
	}
	headers, err := b.object("headers")
	if err != nil {
		return nil, err
	}
	s.Headers = map[string]string{}
	for name, v := range headers {
		s.Headers[name] = fmt.Sprint(v)
	}
	return s, b.numbers(s)
}

// numbers reads which messages a request names.
func (b body) numbers(s *peerpb.SelectRequest) error {
	v, given := b["messages"]
	list, ok := v.([]any)
	if given && (!ok || len(list) == 0 || len(list) > maxTaken) {
		return fsm.Refuse(fsm.Precondition, fmt.Sprintf("messages must be 1 to %d numbers of messages", maxTaken))
	}
	for _, v := range list {
		text, _ := v.(json.Number)
		n, err := strconv.ParseUint(text.String(), 10, 63)
		if err != nil || n == 0 {
			return fsm.Refuse(fsm.Precondition, fmt.Sprintf("%v is no number of a message", v))
		}
		s.Messages = append(s.Messages, n)
	}
	slices.Sort(s.Messages)
	return nil
}
