package broker

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"slices"
	"time"

	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// leaderWait bounds how long a declare waits for the new queue's leader.
const leaderWait = 15 * time.Second

// client is who a session's requests come from.
func (s *Session) by() catalog.Client {
	return catalog.Client{User: s.conn.user, Owner: s.conn.owner()}
}

func (c *Connection) owner() catalog.Owner {
	return catalog.Owner{Node: fsm.NodeID(c.broker.self.Load()), Boot: c.broker.boot.Load(), Connection: c.number}
}

// mayPublish refuses what a user may not publish to.
func (s *Session) mayPublish(v *catalog.View, exchange string) error {
	return v.CheckPublish(s.conn.user, s.conn.vhost, exchange)
}

// mayCommand refuses a command by a user who may not give any. What a verb does
// to a queue or an exchange needs rights on that, too.
func (s *Session) mayCommand(v *catalog.View, p *fsm.Publish) error {
	if err := v.CheckCommand(s.conn.user, s.conn.vhost); err != nil {
		return err
	}
	return s.mayClaim(v, p)
}

// mayPublishWith refuses routing keys that a user may not publish with, and a
// user-id as mayClaim does.
func (s *Session) mayPublishWith(v *catalog.View, p *fsm.Publish) error {
	if s.topics != nil {
		for _, key := range s.message.Keys {
			if err := s.topics.Check(catalog.Write, key); err != nil {
				return err
			}
		}
	}
	return s.mayClaim(v, p)
}

// mayClaim refuses a user-id that is not the user's own unless the user may
// impersonate.
func (s *Session) mayClaim(v *catalog.View, p *fsm.Publish) error {
	if p.UserError == nil {
		return nil
	}
	if u, ok := v.User(s.conn.user); ok && slices.Contains(u.GetTags(), impersonator) {
		return nil
	}
	return p.UserError
}

// impersonator is the tag of users who may publish in the name of others.
const impersonator = "impersonator"

// propose commits one catalog command and turns its refusal into an error.
func (b *Broker) propose(ctx context.Context, what string, c *logpb.CatalogCommand) (*logpb.CatalogResult, error) {
	if b.config.Catalog.Isolated() != "" {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, b.config.LeaderlessGrace)
		defer cancel()
	}
	results, err := b.config.Catalog.Propose(ctx, c)
	if err != nil {
		b.slog.Warn("catalog does not answer", "operation", what, "error", err)
		text := fmt.Sprintf("Could not %s on node '%s' because the metadata store operation timed out", what, b.config.Node)
		if why := b.config.Catalog.Isolated(); why != "" {
			text += ": " + why
		}
		return nil, fsm.Refuse(fsm.Internal, text)
	}
	r := results[0]
	if r.Refusal != 0 {
		return r, fsm.Refuse(fsm.Kind(r.Refusal), r.Text)
	}
	return r, nil
}

// DeclareExchange makes an exchange, or checks the one that is there.
func (s *Session) DeclareExchange(ctx context.Context, spec fsm.ExchangeSpec) error {
	v := s.broker().freshView(ctx)
	if spec.Passive {
		err := v.PassiveExchange(s.by(), s.conn.vhost, spec.Name)
		if err == nil {
			s.broker().agree(ctx)
		}
		return err
	}
	d := &logpb.DeclareExchange{
		Vhost: s.conn.vhost, Name: spec.Name, Type: spec.Type, Durable: spec.Durable,
		AutoDelete: spec.AutoDelete, Internal: spec.Internal, Arguments: spec.Arguments,
	}
	x, err := v.CheckDeclareExchange(s.by(), d)
	if x != nil && err == nil {
		s.broker().used(x)
		s.broker().agree(ctx)
	}
	if x != nil || err != nil {
		return err
	}
	if d.Type == catalog.Delayed {
		d.StoreMembers = s.broker().place(&logpb.DeclareQueue{})
	}
	_, err = s.propose(ctx, fmt.Sprintf("declare exchange '%s' in vhost '%s'", spec.Name, s.conn.vhost),
		&logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeclareExchange{DeclareExchange: d}})
	return err
}

// DeleteExchange removes an exchange; one that is not there is fine.
func (s *Session) DeleteExchange(ctx context.Context, name string, ifUnused bool) error {
	m := &logpb.DeleteExchange{Vhost: s.conn.vhost, Name: name, IfUnused: ifUnused}
	exists, err := s.broker().freshView(ctx).CheckDeleteExchange(s.by(), m)
	if err == nil && !exists {
		s.broker().agree(ctx)
	}
	if err != nil || !exists {
		return err
	}
	_, err = s.propose(ctx, fmt.Sprintf("delete exchange '%s' in vhost '%s'", name, s.conn.vhost),
		&logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeleteExchange{DeleteExchange: m}})
	return err
}

func (s *Session) bind(spec fsm.BindSpec) *logpb.Bind {
	return &logpb.Bind{
		Vhost: s.conn.vhost, Source: spec.Source, Destination: spec.Destination,
		ToExchange: spec.ToExchange, RoutingKey: spec.RoutingKey, Arguments: spec.Arguments,
	}
}

// Bind makes a binding; one that is there already is fine.
func (s *Session) Bind(ctx context.Context, spec fsm.BindSpec) error {
	m := s.bind(spec)
	exists, err := s.broker().freshView(ctx).CheckBind(s.by(), m)
	if exists && err == nil {
		s.broker().usedEnds(m)
		s.broker().agree(ctx)
	}
	if err != nil || exists {
		return err
	}
	_, err = s.propose(ctx, fmt.Sprintf("bind to exchange '%s' in vhost '%s'", spec.Source, s.conn.vhost),
		&logpb.CatalogCommand{Body: &logpb.CatalogCommand_Bind{Bind: m}})
	if err == nil {
		s.used(ctx, m)
	}
	return err
}

// used tells a queue that is deleted when idle that its bindings have changed,
// which is use. A queue that does not hear of it is no worse off than before.
func (s *Session) used(ctx context.Context, m *logpb.Bind) {
	b := s.broker()
	q, ok := b.view().Queue(m.Vhost, m.Destination)
	if m.ToExchange || !ok || b.view().Settings(q, b.config.Defaults).AutoDeleteOnIdle == 0 {
		return
	}
	if _, err := s.do(ctx, q, &logpb.Command{Kind: logpb.Command_TOUCH, Touch: &logpb.Touch{IdleOnly: true}}); err != nil {
		b.slog.Debug("idle queue not told of a binding", "queue", q.Name, "vhost", q.VHost, "error", err)
	}
}

// Unbind removes a binding; one that is not there is fine.
func (s *Session) Unbind(ctx context.Context, spec fsm.BindSpec) error {
	m := s.bind(spec)
	exists, err := s.broker().freshView(ctx).CheckUnbind(s.by(), m)
	if err == nil && !exists {
		s.broker().agree(ctx)
	}
	if err != nil || !exists {
		return err
	}
	_, err = s.propose(ctx, fmt.Sprintf("unbind from exchange '%s' in vhost '%s'", spec.Source, s.conn.vhost),
		&logpb.CatalogCommand{Body: &logpb.CatalogCommand_Unbind{Unbind: m}})
	if err == nil {
		s.used(ctx, m)
	}
	return err
}

// DeclareQueue makes a queue and waits until it has a leader, or reports on
// the one that is there. A declare renews the queue's lease, a passive one that
// of a local queue only.
func (s *Session) DeclareQueue(ctx context.Context, spec fsm.QueueSpec) (fsm.QueueInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, leaderWait)
	defer cancel()
	b := s.broker()
	if _, replies := fsm.ReplySuffix(spec.Name); replies || spec.Name == fsm.ReplyQueue {
		return s.declareReplies(ctx, spec.Name)
	}
	if spec.Passive {
		q, err := b.freshView(ctx).PassiveQueue(s.by(), s.conn.vhost, spec.Name)
		if err != nil {
			return fsm.QueueInfo{}, err
		}
		b.agree(ctx)
		ask := b.count
		if q.Local && b.view().Settings(q, b.config.Defaults).Expires != 0 {
			ask = s.touch // the peer renews the leases of queues that are not replicated
		}
		info, gone, err := ask(ctx, q)
		if gone {
			// Who hears that there is no queue will find none: publishes go by the view.
			err = b.awaitGone(ctx, q)
		}
		if gone && err == nil {
			err = noQueue(q)
		}
		return info, err
	}
	generated := spec.Name == ""
	if generated {
		prefix, given, err := catalog.NamePrefix(spec.Arguments)
		if err != nil {
			return fsm.QueueInfo{}, err
		}
		spec.Name, generated = prefix+randomName(), !given
	}
	for {
		q, created, err := s.declare(ctx, spec, generated)
		if err != nil {
			return fsm.QueueInfo{}, err
		}
		if created {
			return fsm.QueueInfo{Name: q.Name}, b.awaitLeader(ctx, q)
		}
		b.usedSources(q)
		info, gone, err := s.touch(ctx, q)
		if err != nil || !gone {
			return info, err
		}
		// The queue has ended; when its record is gone it is made anew.
		if err := b.awaitGone(ctx, q); err != nil {
			return fsm.QueueInfo{}, err
		}
	}
}

// randomName returns 22 characters that nobody else has.
func randomName() string {
	raw := make([]byte, 16)
	if _, err := rand.Read(raw); err != nil {
		panic(err) // the random source of the system does not fail
	}
	return base64.RawURLEncoding.EncodeToString(raw)
}

// declare finds or makes the record of a queue.
func (s *Session) declare(ctx context.Context, spec fsm.QueueSpec, generated bool) (q *catalog.Queue, created bool, err error) {
	b := s.broker()
	d := &logpb.DeclareQueue{
		Vhost: s.conn.vhost, Name: spec.Name, Durable: spec.Durable, Exclusive: spec.Exclusive,
		AutoDelete: spec.AutoDelete, Arguments: spec.Arguments,
		Local: spec.Exclusive || !spec.Durable,
	}
	if spec.Exclusive {
		d.Owner = s.conn.owner().Proto()
		s.conn.owns.Store(true)
	}
	d.Members = b.place(d)
	if q, err = b.freshView(ctx).CheckDeclareQueue(s.by(), d, generated); q != nil && err == nil {
		b.agree(ctx)
	}
	if q != nil || err != nil {
		return q, false, err
	}
	r, err := s.propose(ctx, fmt.Sprintf("declare queue '%s' in vhost '%s'", spec.Name, s.conn.vhost),
		&logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeclareQueue{DeclareQueue: d}})
	if err != nil {
		return nil, false, err
	}
	q, ok := b.view().QueueByID(fsm.QueueID(r.Queue))
	if !ok {
		return s.declare(ctx, spec, generated) // deleted in the same moment
	}
	return q, r.Changed, nil
}

// awaitLeader returns when a queue serves.
func (b *Broker) awaitLeader(ctx context.Context, q *catalog.Queue) error {
	to := b.routes.Route(q)
	for {
		leader, _, led := to.Leader()
		if leader != "" {
			return nil
		}
		if stream.IsOver(b.view(), q.ID) {
			return noQueue(q)
		}
		select {
		case <-led:
		case <-ctx.Done():
			return b.leaderless(q)
		}
	}
}

// awaitGone returns when the catalog has lost a queue that has ended.
func (b *Broker) awaitGone(ctx context.Context, q *catalog.Queue) error {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, ok := b.view().QueueByID(q.ID); !ok {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return b.leaderless(q)
		}
	}
}

// touch renews the lease of a queue and counts it. gone: it has ended.
func (s *Session) touch(ctx context.Context, q *catalog.Queue) (info fsm.QueueInfo, gone bool, err error) {
	if c := s.broker().view().Settings(q, s.broker().config.Defaults); c.Expires == 0 && c.AutoDeleteOnIdle == 0 {
		return s.broker().count(ctx, q)
	}
	k, err := s.do(ctx, q, &logpb.Command{Kind: logpb.Command_TOUCH})
	if err != nil {
		return info, false, err
	}
	r := k.Result
	if r.Code == fsm.Gone {
		return info, true, nil
	}
	return fsm.QueueInfo{Name: q.Name, Ready: r.Count, Consumers: r.Consumers}, false, k.Refused
}

// count asks the leader how a queue stands. gone: it has ended.
func (b *Broker) count(ctx context.Context, q *catalog.Queue) (info fsm.QueueInfo, gone bool, err error) {
	to := b.routes.Route(q)
	wait, cancel := context.WithTimeout(ctx, b.config.LeaderlessGrace)
	defer cancel()
	for {
		leader, _, led := to.Leader()
		if leader != "" {
			if r := b.askStats(to, leader); r.Leader {
				return fsm.QueueInfo{Name: q.Name, Ready: r.Ready, Consumers: r.Consumers}, r.State == stateGone, nil
			}
		}
		if stream.IsOver(b.view(), q.ID) {
			return fsm.QueueInfo{}, true, nil
		}
		select {
		case <-wait.Done():
			return fsm.QueueInfo{}, false, b.leaderless(q)
		case <-led:
		case <-time.After(countRetry):
		}
	}
}

// countRetry is the pause before a leader that did not answer is asked again.
const countRetry = 50 * time.Millisecond

// DeleteQueue ends a queue, if it is unused and empty where that is asked
// for, and removes its record.
func (s *Session) DeleteQueue(ctx context.Context, name string, ifUnused, ifEmpty bool) (uint64, error) {
	q, err := s.broker().freshView(ctx).CheckDeleteQueue(s.by(), s.conn.vhost, name)
	if q == nil && err == nil {
		s.broker().agree(ctx)
	}
	if q == nil || err != nil {
		return 0, err
	}
	removed := uint64(0)
	k, err := s.do(ctx, q, &logpb.Command{
		Kind: logpb.Command_DELETE, Delete: &logpb.Delete{IfUnused: ifUnused, IfEmpty: ifEmpty},
	})
	switch {
	case err != nil && (ifUnused || ifEmpty):
		return 0, err
	case err != nil:
		// Without a leader the record goes all the same; the replicas follow.
	case k.Refused != nil:
		return 0, k.Refused
	default:
		removed = k.Result.Count
	}
	err = s.broker().removeRecord(ctx, q)
	s.audit(removal(q, 0), nil, err)
	return removed, err
}

// removeRecord removes a queue from the catalog.
func (b *Broker) removeRecord(ctx context.Context, q *catalog.Queue) error {
	_, err := b.propose(ctx, fmt.Sprintf("delete queue '%s' in vhost '%s'", q.Name, q.VHost),
		removal(q, 0))
	return err
}

// PurgeQueue removes the ready messages of a queue.
func (s *Session) PurgeQueue(ctx context.Context, name string) (uint64, error) {
	q, err := s.broker().freshView(ctx).UseQueue(s.by(), catalog.Read, s.conn.vhost, name)
	if err != nil {
		return 0, err
	}
	k, err := s.do(ctx, q, &logpb.Command{Kind: logpb.Command_PURGE})
	if err != nil {
		return 0, err
	}
	return k.Result.Count, k.Refused
}

// Consume registers a consumer.
func (s *Session) Consume(ctx context.Context, spec fsm.ConsumeSpec) error {
	if spec.Queue == fsm.ReplyQueue {
		return s.consumeReplies(&spec)
	}
	b := s.broker()
	v := b.freshView(ctx)
	q, err := v.TakeFrom(s.by(), s.conn.vhost, spec.Queue)
	if err != nil {
		return err
	}
	args, err := catalog.ParseConsumeArguments(q.VHost, q.Name, spec.Arguments)
	if err == nil {
		err = v.FitsArguments("arguments of a consumer of", q.Name, spec.Arguments)
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	u := s.queue(q)
	s.addConsumer(u, spec.Number, spec.NoAck)
	k := u.stream.Request(&logpb.Command{Kind: logpb.Command_CONSUME, Consume: &logpb.Consume{
		Consumer: spec.Number, Tag: spec.Tag, Prefetch: spec.Prefetch, NoAck: spec.NoAck,
		Exclusive: spec.Exclusive, Priority: args.Priority, TimeoutPlusOne: args.Timeout.Stored(),
	}})
	s.mu.Unlock()
	if err = b.await(ctx, q, u.stream.Route(), k); err == nil {
		err = k.Refused
	}
	if err == nil {
		if err = s.stillReads(q); err != nil { // Renew may not have seen it
			s.Drop(spec.Number)
		}
	}
	if err != nil {
		s.endConsumer(spec.Number)
	}
	return err
}

func (s *Session) endConsumer(number uint64) {
	s.mu.Lock()
	s.consumerOver(number)
	s.mu.Unlock()
}

// Cancel ends a consumer. What it holds can still be settled.
func (s *Session) Cancel(ctx context.Context, number uint64) error {
	if s.cancelReplies(number) {
		return nil
	}
	s.mu.Lock()
	c := s.consumers[number]
	if c == nil || c.over {
		s.mu.Unlock()
		return nil // its queue is gone
	}
	to := c.at.stream
	k := to.Request(&logpb.Command{Kind: logpb.Command_CANCEL, Cancel: &logpb.Cancel{Consumer: number}})
	s.mu.Unlock()
	b := s.broker()
	q, known := b.view().QueueByID(to.Queue())
	if !known {
		q = &catalog.Queue{ID: to.Queue()}
	}
	err := b.await(ctx, q, to.Route(), k)
	s.endConsumer(number)
	switch {
	case err != nil:
		return err
	case known && q.AutoDelete:
		b.awaitEnd(ctx, q)
	}
	return k.Refused
}

// endWait bounds how long a consumer's cancellation waits for the end of its
// queue.
const endWait = time.Second

// awaitEnd returns when an auto-delete queue that has just lost a consumer is
// gone from the catalog, if it is to go: a client that has cancelled the last
// one may declare the name anew at once.
func (b *Broker) awaitEnd(ctx context.Context, q *catalog.Queue) {
	ctx, cancel := context.WithTimeout(ctx, endWait)
	defer cancel()
	if _, gone, err := b.count(ctx, q); gone && err == nil {
		_ = b.awaitGone(ctx, q) // too late: the name is free a moment later
	}
}

// Drop is Cancel without waiting for the answer.
func (s *Session) Drop(number uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.consumers[number]; c != nil && !c.over {
		c.at.stream.Request(&logpb.Command{Kind: logpb.Command_CANCEL, Cancel: &logpb.Cancel{Consumer: number}})
	}
}

// Get takes one message.
func (s *Session) Get(ctx context.Context, name string, noAck bool) (fsm.Message, bool, error) {
	q, err := s.broker().freshView(ctx).TakeFrom(s.by(), s.conn.vhost, name)
	if err != nil {
		return fsm.Message{}, false, err
	}
	k, err := s.tryGet(ctx, q, noAck)
	if err != nil {
		return fsm.Message{}, false, err
	}
	if k.Got == nil {
		if k.Result.Code == fsm.OK && !noAck {
			return fsm.Message{}, false, s.broker().leaderless(q) // held, but out of reach
		}
		return fsm.Message{}, false, nil
	}
	return *k.Got, true, nil
}

// getWait is for how long a get is repeated, in milliseconds.
const getWait = 10_000

// Pauses before a get is repeated: each is an entry in the queue's log. The first
// is shorter than what a tick takes, and each twice as long as the one before.
const (
	getPause     = 5 * time.Millisecond
	longGetPause = 100 * time.Millisecond
)

// tryGet asks a queue for a message until that is given, or is known not to be
// there: a queue that has much to end or to bring back does so first, piece by
// piece.
func (s *Session) tryGet(ctx context.Context, q *catalog.Queue, noAck bool) (*stream.Call, error) {
	pause := getPause
	for end := s.broker().now() + getWait; ; pause = min(2*pause, longGetPause) {
		k, err := s.do(ctx, q, &logpb.Command{Kind: logpb.Command_GET, Get: &logpb.Get{NoAck: noAck}})
		switch {
		case err != nil:
			return nil, err
		case k.Refused != nil:
			return nil, k.Refused
		case k.Result.Code != fsm.NotYet:
			return k, nil
		case s.broker().now() > end || !rest(ctx, pause):
			return nil, fsm.Refuse(fsm.Precondition, q.String()+" is ending messages that are due; ask again")
		}
		if err := s.stillReads(q); err != nil {
			return nil, err
		}
	}
}

// rest waits for a while; false: ctx has ended.
func rest(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Close removes the queues that the connection owns. It counts no more.
func (c *Connection) Close(ctx context.Context) {
	c.broker.leave(c)
	if !c.owns.Load() {
		return
	}
	_, err := c.broker.config.Catalog.Propose(ctx, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeleteOwned{
		DeleteOwned: &logpb.DeleteOwned{Owner: c.owner().Proto()},
	}})
	if err != nil {
		c.broker.slog.Warn("exclusive queues are not deleted", "connection", c.number, "error", err)
	}
}
