package backup

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/quorate/quorate/cluster/backup/lines"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/queues"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// lineBuffer is how many bytes of lines are written at a time.
const lineBuffer = 64 << 10

// replicated finds a queue that has a log.
func (k *Keeper) replicated(vhost, name string) (*catalog.Queue, error) {
	q, ok := k.Queues.View().Queue(vhost, name)
	switch {
	case !ok:
		return nil, fsm.Refuse(fsm.NotFoundKind, fmt.Sprintf("no queue '%s' in vhost '%s'", name, vhost))
	case q.Local:
		return nil, fsm.Refuse(fsm.Precondition, fmt.Sprintf("queue '%s' in vhost '%s' is exclusive or not durable: it is in the memory of one node", name, vhost))
	}
	return q, nil
}

// Export writes the messages of a queue, as a backup has them, as lines for people. If
// it fails after the first line, the last one says so.
func (k *Keeper) Export(ctx context.Context, to io.Writer, vhost, name string, rate int64) error {
	q, err := k.replicated(vhost, name)
	if err != nil {
		return err
	}
	if rate <= 0 {
		rate = DefaultRate
	}
	buffer := bufio.NewWriterSize(&paced{ctx: ctx, to: to, rate: rate}, lineBuffer)
	w, begun := lines.NewWriter(buffer, k.Properties), false
	var end lines.End
	settled, gone, err := k.Queues.Backup(ctx, q, func(queues.Cut) error {
		begun = true
		return w.Head(lines.NewHead(k.Cluster, k.Product, vhost, name, k.Now().UnixMilli()))
	}, func(state, payload []byte) error {
		m := lines.Message{State: &logpb.MessageState{}, Payload: fsm.Readable(payload)}
		if err := m.State.UnmarshalVT(state); err != nil {
			return err
		}
		end.Messages++
		return w.Message(m)
	})
	if gone {
		err = fsm.Refuse(fsm.NotFoundKind, fmt.Sprintf("queue '%s' in vhost '%s' has ended", name, vhost))
	}
	switch {
	case err == nil:
		end.Settled = settled
		return errors.Join(w.End(end), buffer.Flush())
	case begun:
		return errors.Join(err, w.Failed(err), buffer.Flush())
	}
	return err
}

// CheckLines reads lines that Import would bring back, and returns how many messages
// they are.
func (k *Keeper) CheckLines(from io.Reader) (messages uint64, err error) {
	for r := lines.NewReader(from, k.Properties); ; messages++ {
		if _, err := r.Next(); err != nil {
			return messages, ourLines(err)
		}
	}
}

// ourLines is the error of a run that ended with one of a reader; nil at the end.
func ourLines(err error) error {
	switch {
	case err == io.EOF:
		return nil
	case errors.Is(err, lines.ErrLine), errors.Is(err, lines.ErrNotWhole):
		return fsm.Refuse(fsm.Precondition, err.Error())
	}
	return err
}

// Import brings messages that are given as lines to a queue. id names the lines: those
// that the queue has of an earlier run with the same id are not brought again. Without
// one all are new.
func (k *Keeper) Import(ctx context.Context, from io.Reader, vhost, name string, id []byte) (done api.Restored, err error) {
	q, err := k.replicated(vhost, name)
	if err != nil {
		return done, err
	}
	if len(id) == 0 {
		id = make([]byte, 16)
		if _, err := rand.Read(id); err != nil {
			return done, err
		}
	}
	to, err := k.Queues.Restore(ctx, q, sourceOf(id, 0))
	if err != nil {
		return done, err
	}
	n, err := k.bring(ctx, lines.NewReader(from, k.Properties), to, name)
	closing := ctx
	if err != nil {
		var cancel context.CancelFunc
		closing, cancel = context.WithCancel(ctx)
		cancel() // the next run brings what is unanswered
	}
	had, refused, failed := to.Close(closing)
	done.Messages, done.Had, done.Refused = n-min(had, n), had, refused
	if err == nil {
		err = failed
	}
	if err == nil {
		done.Queues = 1
	}
	return done, err
}

// bring brings messages, and returns how many.
func (k *Keeper) bring(ctx context.Context, r *lines.Reader, to *queues.Restorer, name string) (n uint64, err error) {
	for ; ; n++ {
		m, err := r.Next()
		if err != nil {
			return n, ourLines(err)
		}
		e := k.publishOf(m.Payload)
		if m.State != nil {
			e = enqueueOf(m.State, m.Payload, name)
		}
		k.tally(to, e, m.Payload)
		if err := to.Add(ctx, e, m.Payload); err != nil {
			return n, err
		}
	}
}

// publishOf returns the command for a message that was in no queue: its time to live
// begins.
func (k *Keeper) publishOf(p fsm.Payload) *logpb.Enqueue {
	e := &logpb.Enqueue{Size: uint32(len(p)), Head: uint32(p.HeadSize()), Routed: len(p.Exchange()) > 0}
	if ttl, err := strconv.ParseUint(k.Properties.Expiration(p), 10, 63); err == nil {
		e.HasExpiration, e.TtlPlusOne = true, ttl+1
	}
	for _, f := range k.Properties.Describe(&fsm.Message{Payload: p}).GetFields() {
		if f.GetName() == "priority" {
			e.PriorityPlusOne = uint32(f.GetValue().GetInt()) + 1
		}
	}
	return e
}
