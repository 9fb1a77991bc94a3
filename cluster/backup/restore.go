package backup

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/quorate/quorate/cluster/backup/archive"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/queues"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// Restore brings back what a stream holds, which is an excerpt of a backup
// (archive.Verified.Excerpt): first the definitions, then the messages queue by queue.
// It may be run again, with the same backup, until it succeeds: no message comes
// twice.
func (k *Keeper) Restore(ctx context.Context, from io.Reader) (api.Restored, error) {
	r := &restore{keeper: k, reader: archive.NewReader(from), next: map[uint64]map[uint64]uint64{}}
	err := r.run(ctx)
	var refusal *fsm.Refusal
	if err != nil && !errors.As(err, &refusal) && isOurs(err) {
		err = fsm.Refuse(fsm.Precondition, err.Error())
	}
	return r.done, err
}

// isOurs reports whether an error says that the stream is not what it should be.
func isOurs(err error) bool {
	return errors.Is(err, archive.ErrFormat) || errors.Is(err, archive.ErrDamaged) || errors.Is(err, archive.ErrTruncated)
}

// restore is one run.
type restore struct {
	keeper *Keeper
	reader *archive.Reader
	info   archive.Info
	// By queue and source: the number of the next letter of that source. A letter that
	// its target had at its own cut is not brought again.
	next map[uint64]map[uint64]uint64
	done api.Restored
}

// expect reads the next frame, which must be of a kind.
func (r *restore) expect(want archive.Kind) ([]byte, error) {
	kind, body, err := r.reader.Next()
	if err == nil && kind != want {
		err = fmt.Errorf("%w: a frame of kind %d instead of %d", archive.ErrDamaged, kind, want)
	}
	if err == io.EOF {
		err = archive.ErrTruncated
	}
	return body, err
}

func (r *restore) run(ctx context.Context) error {
	body, err := r.expect(archive.Header)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, &r.info); err != nil {
		return fmt.Errorf("%w: %w", archive.ErrDamaged, err)
	}
	if body, err = r.expect(archive.Definitions); err != nil {
		return err
	}
	var d logpb.CatalogSnapshot
	if err := logpb.Unmarshal(body, &d); err != nil {
		return fmt.Errorf("%w: %w", archive.ErrDamaged, err)
	}
	if body, err = r.expect(archive.Index); err != nil {
		return err
	}
	var index []archive.Section
	if err := json.Unmarshal(body, &index); err != nil {
		return fmt.Errorf("%w: %w", archive.ErrDamaged, err)
	}
	for _, s := range index {
		r.next[s.ID] = map[uint64]uint64{}
		for _, x := range s.Sources {
			r.next[s.ID][x.ID] = x.Next
		}
	}
	if err := r.define(ctx, &d); err != nil {
		return err
	}
	for {
		kind, body, err := r.reader.Next()
		if err == io.EOF {
			return nil
		}
		if err == nil && kind != archive.Queue {
			err = fmt.Errorf("%w: a frame of kind %d instead of the start of a queue", archive.ErrDamaged, kind)
		}
		if err != nil {
			return err
		}
		var s archive.Section
		if err := json.Unmarshal(body, &s); err != nil {
			return fmt.Errorf("%w: %w", archive.ErrDamaged, err)
		}
		if err := r.queue(ctx, &s); err != nil {
			return fmt.Errorf("queue '%s' in vhost '%s': %w", s.Name, s.VHost, err)
		}
		r.done.Queues++
	}
}

// find finds the queue of a section.
func (r *restore) find(s *archive.Section) (*catalog.Queue, bool) {
	v := r.keeper.Queues.View()
	if len(s.StoreOf) == 0 {
		return v.Queue(string(s.VHost), string(s.Name))
	}
	x, ok := v.Exchange(string(s.VHost), string(s.StoreOf))
	if !ok || x.Store == nil {
		return nil, false
	}
	return x.Store, true
}

// queue brings back the messages of one queue.
func (r *restore) queue(ctx context.Context, s *archive.Section) error {
	q, ok := r.find(s)
	if !ok {
		return fsm.Refuse(fsm.NotFoundKind, "there is no such queue to restore to")
	}
	to, err := r.keeper.Queues.Restore(ctx, q, sourceOf(r.info.ID, s.ID))
	if err != nil {
		return err
	}
	n, err := r.messages(ctx, s, to)
	if err != nil {
		ended, cancel := context.WithCancel(ctx)
		cancel()
		_, _, _ = to.Close(ended) // the next run brings what is unanswered
		return err
	}
	had, refused, err := to.Close(ctx)
	r.done.Messages += n - had
	r.done.Had, r.done.Refused = r.done.Had+had, r.done.Refused+refused
	return err
}

// messages brings the messages of a section, and returns how many.
func (r *restore) messages(ctx context.Context, s *archive.Section, to *queues.Restorer) (n uint64, err error) {
	for {
		kind, body, err := r.reader.Next()
		switch {
		case err == io.EOF:
			return n, archive.ErrTruncated
		case err != nil:
			return n, err
		case kind == archive.QueueEnd:
			return n, nil
		case kind != archive.Message:
			return n, fmt.Errorf("%w: a frame of kind %d within a queue", archive.ErrDamaged, kind)
		}
		state, payload, err := archive.CutMessage(body)
		if err != nil {
			return n, err
		}
		var st logpb.MessageState
		if err := st.UnmarshalVT(state); err != nil {
			return n, fmt.Errorf("%w: %w", archive.ErrDamaged, err)
		}
		if r.arrived(s.ID, &st) {
			continue // always the same ones, so that the others keep their numbers
		}
		payload = fsm.Readable(bytes.Clone(payload)) // it outlives the frame
		e := enqueueOf(&st, payload, string(s.Name))
		r.keeper.tally(to, e, payload)
		if err := to.Add(ctx, e, payload); err != nil {
			return n, err
		}
		n++
	}
}

// arrived reports whether a message is a letter that all of its targets have had
// already at their own cuts.
func (r *restore) arrived(id uint64, st *logpb.MessageState) bool {
	for _, t := range st.Transfers {
		if next, known := r.next[t.Target]; !known || next[id] <= t.Number {
			return false
		}
	}
	return len(st.Transfers) > 0
}

// sourceOf is what a queue of a backup is called as a source of messages.
func sourceOf(backup []byte, id uint64) fsm.QueueID {
	sum := sha256.Sum256(binary.BigEndian.AppendUint64(bytes.Clone(backup), id))
	return fsm.QueueID(binary.BigEndian.Uint64(sum[:]) | queues.RestoredSource)
}

// enqueueOf returns the command that brings a message back to a queue.
func enqueueOf(st *logpb.MessageState, payload fsm.Payload, name string) *logpb.Enqueue {
	e := &logpb.Enqueue{
		Size: uint32(len(payload)), Head: uint32(payload.HeadSize()), HasExpiration: st.HasExpiration, PriorityPlusOne: st.Priority + 1,
		Routed: len(payload.Exchange()) > 0, Deaths: st.Deaths, ScheduledFor: st.ScheduledFor, Hops: st.Hops,
		GroupId: st.GroupId, MessageId: st.MessageId, CorrelationId: st.CorrelationId, Annotations: st.Annotations, UniqueKey: st.UniqueKey,
		Restored: &logpb.Restored{ExpireAt: st.ExpireAt, Acquired: st.Acquired, Failed: min(st.Failed, st.Acquired)},
	}
	schedule := func(at int64) {
		e.DueAt, e.TtlPlusOne, e.TtlCeilingPlusOne = at, st.TtlPlusOne, st.TtlCeilingPlusOne
		e.Restored = &logpb.Restored{Scheduled: true}
	}
	switch place := queue.Place(st.Place); {
	case place == queue.Scheduled:
		schedule(st.DueAt)
		e.ScheduleId = st.ScheduleId
	case place == queue.CheckedOut:
		e.Restored.Acquired = max(e.Restored.Acquired+1, e.Restored.Acquired)
	case place != queue.Outbox && place != queue.Waiting || st.Forwarded:
	case st.Reason == logpb.Death_NONE: // it had become due
		schedule(st.ScheduledFor)
	default:
		e.Restored.Reason, e.Restored.ExpireAt = st.Reason, 0
		e.Deaths = undied(st.Deaths, st.Reason, name)
	}
	return e
}

// tally completes the command that brings a message to a queue: by what it counts there.
func (k *Keeper) tally(to *queues.Restorer, e *logpb.Enqueue, p fsm.Payload) {
	if by := to.Tally(); by != "" {
		e.Tally = fsm.Label(k.Properties.Property(p, by))
	}
}

// undied returns a history without the death that a letter is about to die again.
func undied(deaths []*logpb.Death, reason logpb.Death_Reason, name string) (out []*logpb.Death) {
	for _, d := range deaths {
		if d.Reason == reason && d.Queue == name {
			if d.Count <= 1 {
				continue
			}
			d.Count--
		}
		out = append(out, d)
	}
	return out
}

// define brings the definitions back, each after those that it needs.
func (r *restore) define(ctx context.Context, d *logpb.CatalogSnapshot) error {
	for c := range commands(d) {
		if err := r.keeper.Queues.Define(ctx, c); err != nil {
			return err
		}
		r.done.Definitions++
	}
	return nil
}

// commands iterates over what makes the definitions of a backup again. What a vhost
// has by itself is left out.
func commands(d *logpb.CatalogSnapshot) func(yield func(*logpb.CatalogCommand) bool) {
	var list []*logpb.CatalogCommand
	for _, m := range d.Settings {
		list = append(list, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutSetting{PutSetting: m}})
	}
	for _, m := range d.Vhosts {
		list = append(list, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutVhost{PutVhost: m}})
	}
	for _, m := range d.Users {
		list = append(list, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutUser{PutUser: m}})
	}
	for _, m := range d.Permissions {
		list = append(list, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutPermission{PutPermission: m}})
	}
	for _, m := range d.Policies {
		list = append(list, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutPolicy{PutPolicy: m}})
	}
	for _, m := range d.Exchanges {
		if m.Name != "" && !strings.HasPrefix(m.Name, "amq.") {
			list = append(list, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeclareExchange{DeclareExchange: m}})
		}
	}
	for _, m := range d.TopicPermissions {
		list = append(list, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutTopicPermission{PutTopicPermission: m}})
	}
	for _, q := range d.Queues {
		if m := q.GetDeclared(); m.GetStoreOf() == "" {
			if q.GetAdopted() != nil {
				m.Arguments = q.Adopted.GetArguments()
			}
			list = append(list, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeclareQueue{DeclareQueue: m}})
		}
	}
	for _, m := range d.Bindings {
		list = append(list, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_Bind{Bind: m}})
	}
	for _, m := range d.GlobalParameters {
		list = append(list, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutGlobalParameter{PutGlobalParameter: m}})
	}
	for _, m := range d.Limits {
		list = append(list, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutLimit{PutLimit: m}})
	}
	return func(yield func(*logpb.CatalogCommand) bool) {
		for _, c := range list {
			if !yield(c) {
				return
			}
		}
	}
}
