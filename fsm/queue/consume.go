package queue

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// consume registers a consumer of s, or changes an existing one.
//
// Refusals, in this order: NoSession; Invalid for number 0 and for one that was
// cancelled and is still known; InUse for exclusive consumption of a queue with
// a single active consumer; Forwards for a new one of a queue that forwards; Crowded;
// TooMany; InUse if another consumer excludes this one. None of them changes
// anything.
//
// A Consume of a known number changes the consumer: its deliveries, its number
// of the next one and its age stay; with another priority or least TTL it joins the
// end of that ring.
func (cs *consumers) consume(s *session, cmd *logpb.Consume, eff *fsm.Effects) fsm.Result {
	if s == nil {
		return fsm.Result{Code: fsm.NoSession}
	}
	c := s.consumer(cmd.GetConsumer())
	if cmd.GetConsumer() == 0 || c != nil && c.cancelled {
		return fsm.Result{Code: fsm.Invalid}
	}
	if cmd.Exclusive && cs.settings.SingleActive {
		return fsm.Result{Code: fsm.InUse}
	}
	if c == nil && cs.settings.forwards() {
		return fsm.Result{Code: fsm.Forwards}
	}
	if c == nil && cs.crowded() {
		return fsm.Result{Code: fsm.Crowded}
	}
	if cs.services.tooMany(c, duration(cmd.MinTtl)) {
		return fsm.Result{Code: fsm.TooMany}
	}
	if cmd.Exclusive || cs.excludes(c) {
		if !cs.replaceable(c) {
			return fsm.Result{Code: fsm.InUse}
		}
		cs.revokeAllBut(c, eff)
	}
	if c == nil {
		c = cs.register(s, cmd.Consumer)
	}
	cs.update(c, cmd)
	return fsm.Result{}
}

// cancel ends the service of a consumer. What it holds stays with it. Its
// deliveries can still be settled, and still time out. Gets cannot be
// cancelled.
func (cs *consumers) cancel(s *session, cmd *logpb.Cancel) fsm.Result {
	if s == nil {
		return fsm.Result{Code: fsm.NoSession}
	}
	c := s.consumer(cmd.GetConsumer())
	if c == nil || c.isGets() || c.cancelled {
		return fsm.Result{Code: fsm.NotFound}
	}
	cs.retire(c)
	cs.removeIfDone(c)
	return fsm.Result{}
}

// replaceable reports whether all consumers but c may be revoked for an
// exclusive one: their nodes have been suspected for too long. Gets and
// cancelled consumers, which have no level, exclude nobody. O(consumers).
func (cs *consumers) replaceable(c *consumer) bool {
	for _, o := range cs.all {
		cs.scratch.steps++
		if o != c && o.level != nil && !o.session.life.over && !cs.sessions.isOverdue(o.session) {
			return false
		}
	}
	return true
}

// revokeAllBut cancels all consumers but c, which must be replaceable. They are
// notified when their node is heard from.
//
// c is nil for a consumer that is about to be registered. What they held has
// gone back before: that is what replaceable means.
func (cs *consumers) revokeAllBut(c *consumer, eff *fsm.Effects) {
	var revoked []*consumer
	for _, o := range cs.all {
		cs.scratch.steps++
		if o == c || o.level == nil || o.session.life.over {
			continue
		}
		cs.retire(o)
		o.revoked = true
		eff.Cancelled = append(eff.Cancelled, o.id)
		revoked = append(revoked, o)
	}
	cs.removeFinished(revoked...)
}

// update applies a Consume to c, which is new or not cancelled. Ensures:
// cs.exclusive is c or nil. Nobody else can have been exclusive here.
func (cs *consumers) update(c *consumer, cmd *logpb.Consume) {
	if c.level != nil && (c.priority != cmd.Priority || c.least != duration(cmd.MinTtl)) {
		cs.leave(c)
	}
	cs.short.drop(c)
	c.tag, c.quota, c.priority = cmd.Tag, quota{prefetch: cmd.Prefetch, shared: cmd.Shared}, cmd.Priority
	c.lockLength, c.lockMax, c.lockAuto = duration(cmd.Lock), duration(cmd.MaxLock), duration(cmd.LockAutoRenew)
	c.lockHead, c.lockGrace, c.least = cmd.LockHead, duration(cmd.LockDetachGrace), duration(cmd.MinTtl)
	c.noAck, c.exclusive, c.ownTimeout = cmd.NoAck, cmd.Exclusive, fsm.OptionalFrom[fsm.Millis](cmd.TimeoutPlusOne)
	if cs.exclusive = nil; c.exclusive {
		cs.exclusive = c
	}
	if c.level == nil {
		cs.join(c)
	}
	cs.groups.update(c, cmd.MaxGroups, cmd.GroupId)
	cs.refresh(c)
}

// excludes reports whether another consumer than c is exclusive. c is nil for a
// consumer that does not exist yet.
func (cs *consumers) excludes(c *consumer) bool { return cs.exclusive != nil && cs.exclusive != c }

// nodeDown ends all sessions of a node up to a boot number, permanently.
// bringBack takes them apart. A lower boot than one declared before changes
// nothing. O(lives of the node).
func (cs *consumers) nodeDown(cmd *logpb.NodeDown) fsm.Result {
	node, boot := fsm.NodeID(cmd.GetNode()), cmd.GetBoot()
	if node == 0 || boot == 0 {
		return fsm.Result{Code: fsm.Invalid}
	}
	if cs.sessions.declareDown(node, boot) {
		cs.livesEnded()
	}
	return fsm.Result{}
}
