package broker

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/quorate/quorate/cluster/audit"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// refusals bounds how often the log speaks of logins that were refused.
type refusals struct {
	mu       sync.Mutex
	throttle *audit.Throttle
}

// say reports whether the log may speak of a refusal at an address, and of how
// many it has not.
func (r *refusals) say(remote netip.Addr) (ok bool, unlogged uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.throttle == nil {
		r.throttle = audit.NewThrottle(time.Now)
	}
	for _, l := range r.throttle.Expired() {
		unlogged += l.Count
	}
	_, ok, before := r.throttle.Allow(remote.String())
	return ok || unlogged > 0, unlogged + before
}

// refuseLogin says in the log and in the audit log why a login is refused.
// Anybody can cause that as often as they like, so it is said at a bounded rate
// for each address.
func (b *Broker) refuseLogin(ctx context.Context, user string, remote netip.Addr, reason string) error {
	if ok, unlogged := b.refusal.say(remote); ok {
		b.slog.Warn("login refused", "user", fsm.Short(user), "remote", remote, "reason", reason, "unlogged", unlogged)
	}
	from := audit.From(ctx)
	if from.Address == "" {
		from.Address = remote.String()
	}
	b.config.Audit.Write(audit.Event{
		Kind: audit.Login, Action: "login", User: fsm.Short(user), Origin: from, Outcome: audit.Refused, Reason: reason,
	})
	return errLogin
}

// propose is Broker.propose of what the session's client has asked for.
func (s *Session) propose(ctx context.Context, what string, c *logpb.CatalogCommand) (*logpb.CatalogResult, error) {
	r, err := s.broker().propose(ctx, what, c)
	s.audit(c, r, err)
	return r, err
}

// audit notes a definition that the session's client has changed, or may have.
func (s *Session) audit(c *logpb.CatalogCommand, r *logpb.CatalogResult, err error) {
	log := s.broker().config.Audit
	if log == nil || r != nil && (r.Refusal != 0 || !r.Changed) {
		return
	}
	e := audit.Event{Kind: audit.Definition, User: s.conn.user, Origin: s.origin(), Outcome: audit.OK}
	if err != nil {
		e.Outcome, e.Reason = audit.Failed, err.Error()
	}
	e.Action, e.Target = actionOf(c)
	log.Write(e)
}

// origin says where the session's client is.
func (s *Session) origin() audit.Origin {
	o := audit.Origin{Protocol: "amqp"}
	if at, ok := s.client.(located); ok {
		connection, _, client := at.Where()
		o.Connection, o.Address = connection, client.String()
	}
	return o
}

// actionOf names the method behind a command, and what it is done to.
func actionOf(c *logpb.CatalogCommand) (action string, target map[string]string) {
	switch m := c.Body.(type) {
	case *logpb.CatalogCommand_DeclareExchange:
		return "exchange.declare", map[string]string{"vhost": m.DeclareExchange.GetVhost(), "exchange": m.DeclareExchange.GetName()}
	case *logpb.CatalogCommand_DeleteExchange:
		return "exchange.delete", map[string]string{"vhost": m.DeleteExchange.GetVhost(), "exchange": m.DeleteExchange.GetName()}
	case *logpb.CatalogCommand_DeclareQueue:
		return "queue.declare", map[string]string{"vhost": m.DeclareQueue.GetVhost(), "queue": m.DeclareQueue.GetName()}
	case *logpb.CatalogCommand_DeleteQueue:
		return "queue.delete", map[string]string{"vhost": m.DeleteQueue.GetVhost(), "queue": m.DeleteQueue.GetName()}
	case *logpb.CatalogCommand_Bind:
		return ends("bind", m.Bind)
	case *logpb.CatalogCommand_Unbind:
		return ends("unbind", m.Unbind)
	}
	return "change", nil
}

// ends names the two ends of a binding.
func ends(verb string, m *logpb.Bind) (action string, target map[string]string) {
	kind := "queue"
	if m.GetToExchange() {
		kind = "exchange"
	}
	target = map[string]string{"vhost": m.GetVhost(), "source": m.GetSource(), "destination": m.GetDestination(), "routing_key": m.GetRoutingKey()}
	return kind + "." + verb, target
}
