package broker

import (
	"context"

	"github.com/quorate/quorate/cluster/audit"
	"github.com/quorate/quorate/proto/logpb"
)

// propose is definitions.propose of what the session's client has asked for.
func (x *definer) propose(ctx context.Context, what string, c *logpb.CatalogCommand) (*logpb.CatalogResult, error) {
	r, err := x.definitions.propose(ctx, what, c)
	x.audit(c, r, err)
	return r, err
}

// audit notes a definition that the session's client has changed, or may have.
func (x *definer) audit(c *logpb.CatalogCommand, r *logpb.CatalogResult, err error) {
	log := x.definitions.audit
	if log == nil || r != nil && (r.Refusal != 0 || !r.Changed) {
		return
	}
	e := audit.Event{Kind: audit.Definition, User: x.conn.user, Origin: x.origin(), Outcome: audit.OK}
	if err != nil {
		e.Outcome, e.Reason = audit.Failed, err.Error()
	}
	e.Action, e.Target = actionOf(c)
	log.Write(e)
}

// origin says where the session's client is.
func (x *definer) origin() audit.Origin {
	o := audit.Origin{Protocol: "amqp"}
	if at, ok := x.calls.client.(located); ok {
		connection, _, client := at.Where()
		o.Connection, o.Address = connection, client.String()
	}
	return o
}

// actionOf names the method behind a command, and what it is done to.
func actionOf(c *logpb.CatalogCommand) (action string, object map[string]string) {
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
func ends(verb string, m *logpb.Bind) (action string, object map[string]string) {
	kind := "queue"
	if m.GetToExchange() {
		kind = "exchange"
	}
	object = map[string]string{"vhost": m.GetVhost(), "source": m.GetSource(), "destination": m.GetDestination(), "routing_key": m.GetRoutingKey()}
	return kind + "." + verb, object
}
