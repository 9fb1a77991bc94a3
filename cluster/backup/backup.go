// Package backup makes backups of a running cluster and brings them back: the
// definitions, and the messages of all queues that are replicated. DESIGN.md says
// what a backup promises and what it does not.
//
// It decides what is in a backup and in which order; cluster/backup/archive has the
// format, and cluster/queues reads and fills the queues.
package backup

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/quorate/quorate/cluster/backup/archive"
	"github.com/quorate/quorate/cluster/backup/lines"
	"github.com/quorate/quorate/cluster/queues"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

const (
	// DefaultRate is how many bytes of a backup are read in a second.
	DefaultRate = 32 << 20
	// attempts is how often a queue is begun anew whose leader goes away meanwhile.
	attempts = 5
)

// Keeper makes backups and restores them.
type Keeper struct {
	Queues  *queues.Backups
	Product string
	Cluster string
	Now     func() time.Time
	// Defaults are the node's settings for queues that do not say otherwise.
	Defaults catalog.Defaults
	// Properties are for messages that people see.
	Properties lines.Properties
}

// Backup writes a backup of everything to a stream, at most rate bytes in a second; 0:
// DefaultRate. If it fails, the stream says so, too, and is not whole.
func (k *Keeper) Backup(ctx context.Context, to io.Writer, rate int64) error {
	if rate <= 0 {
		rate = DefaultRate
	}
	w := archive.NewWriter(&paced{ctx: ctx, to: to, rate: rate})
	err := k.write(ctx, w)
	if err == nil {
		return w.Close()
	}
	return errors.Join(err, w.Frame(archive.Failed, []byte(err.Error())))
}

func (k *Keeper) write(ctx context.Context, w *archive.Writer) error {
	v := k.Queues.View()
	queues := k.order(v)
	id := make([]byte, 16)
	if _, err := rand.Read(id); err != nil {
		return err
	}
	info := archive.Info{ID: id, Product: k.Product, Cluster: k.Cluster, Begun: k.Now().UnixMilli(), Queues: len(queues)}
	if err := w.JSON(archive.Header, info); err != nil {
		return err
	}
	definitions, err := logpb.Marshal(definitionsOf(v))
	if err != nil {
		return err
	}
	if err := w.Frame(archive.Definitions, definitions); err != nil {
		return err
	}
	for _, q := range queues {
		if err := k.queue(ctx, w, q); err != nil {
			return fmt.Errorf("queue '%s' in vhost '%s': %w", q.Name, q.VHost, err)
		}
	}
	return nil
}

// order lists the queues of a backup: those with letters to send come before the
// others, so that a message that dies meanwhile is in the backup at least once.
func (k *Keeper) order(v *catalog.View) (list []*catalog.Queue) {
	for _, q := range v.Queues() {
		if !q.Local {
			list = append(list, q)
		}
	}
	rank := func(q *catalog.Queue) int {
		if c := v.Settings(q, k.Defaults); c.GetDeadLetter() || c.GetForward() || c.GetDelayedStore() {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(list, func(a, b *catalog.Queue) int { return rank(a) - rank(b) })
	return list
}

// queue writes the section of a queue. One whose leader goes away is begun anew; one
// that has ended is left out.
func (k *Keeper) queue(ctx context.Context, w *archive.Writer, q *catalog.Queue) error {
	for attempt := 1; ; attempt++ {
		begun := false
		var t archive.Total
		settled, gone, err := k.Queues.Backup(ctx, q, func(c queues.Cut) error {
			begun = true
			return w.JSON(archive.Queue, sectionOf(q, c))
		}, func(state, payload []byte) error {
			t.Messages, t.Bytes = t.Messages+1, t.Bytes+uint64(len(payload))
			return w.Message(state, payload)
		})
		switch {
		case gone:
			return nil
		case err == nil:
			t.Settled = settled
			return w.JSON(archive.QueueEnd, t)
		case attempt == attempts || !errors.Is(err, queues.ErrCutLost):
			return err
		}
		if begun {
			if err := w.Frame(archive.Discard); err != nil {
				return err
			}
		}
	}
}

func sectionOf(q *catalog.Queue, c queues.Cut) archive.Section {
	s := archive.Section{
		VHost: []byte(q.VHost), Name: []byte(q.Name), ID: uint64(q.ID), StoreOf: []byte(q.StoreOf),
		Index: c.Index, Term: c.Term, Clock: int64(c.Clock),
	}
	for _, x := range c.Sources {
		s.Sources = append(s.Sources, archive.Source{ID: uint64(x.ID), Next: x.Next})
	}
	return s
}

// definitionsOf returns what a backup holds of a catalog: not its nodes and where
// queues are on them, no tokens, no key of locks, and nothing that lives with a
// connection or a node.
func definitionsOf(v *catalog.View) *logpb.CatalogSnapshot {
	s := v.Snapshot()
	d := &logpb.CatalogSnapshot{
		Version: s.Version, Index: s.Index, Clock: s.Clock, Vhosts: s.Vhosts, Users: s.Users, Permissions: s.Permissions,
		Exchanges: s.Exchanges, Settings: s.Settings, Policies: s.Policies, TopicPermissions: s.TopicPermissions, Limits: s.Limits, GlobalParameters: s.GlobalParameters,
	}
	for _, q := range s.Queues {
		if !q.GetDeclared().GetLocal() {
			d.Queues = append(d.Queues, &logpb.QueueState{Declared: q.Declared, Id: q.Id})
		}
	}
	for _, b := range s.Bindings {
		if q, ok := v.Queue(b.GetVhost(), b.GetDestination()); b.GetToExchange() || ok && !q.Local {
			d.Bindings = append(d.Bindings, b)
		}
	}
	return d
}

// paced writes at most rate bytes in a second.
type paced struct {
	ctx  context.Context
	to   io.Writer
	rate int64
	free time.Time // when the next bytes may go
}

// Write implements io.Writer.
func (p *paced) Write(b []byte) (int, error) {
	if now := time.Now(); p.free.Before(now) {
		p.free = now
	}
	n, err := p.to.Write(b)
	p.free = p.free.Add(time.Duration(float64(n) / float64(p.rate) * float64(time.Second)))
	if wait := time.Until(p.free); err == nil && wait > time.Millisecond {
		select {
		case <-time.After(wait):
		case <-p.ctx.Done():
			err = p.ctx.Err()
		}
	}
	return n, err
}
