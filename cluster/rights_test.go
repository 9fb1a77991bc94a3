package cluster

import (
	"context"
	"testing"

	"github.com/quorate/quorate/cluster/session"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// renewal notes that clients are checked.
type renewal struct {
	Clients
	renewed chan struct{}
}

func (r renewal) SetAlarm(string) {}

func (r renewal) Renew() {
	select {
	case r.renewed <- struct{}{}:
	default:
	}
}

// mustChange commits commands at a node.
func (c *nodes) mustChange(node string, commands ...*logpb.CatalogCommand) {
	c.t.Helper()
	results, err := c.all[node].Propose(deadline(c.t), commands...)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, r := range results {
		if err := catalog.Refused(r); err != nil {
			c.t.Fatal(err)
		}
	}
}

// TestRightsReachAllNodes: whatever takes a right away at one node has the
// clients of every node looked at, and those of a user who is gone find out even
// if there is another user of that name.
func TestRightsReachAllNodes(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	checks := map[string]renewal{}
	for name, n := range c.all {
		checks[name] = renewal{renewed: make(chan struct{}, 1)}
		n.SetClients(checks[name])
	}
	user := &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutUser{PutUser: &logpb.PutUser{Name: "ann"}}}
	grant := func(vhost string) *logpb.CatalogCommand {
		return &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutPermission{PutPermission: &logpb.PutPermission{
			User: "ann", Vhost: vhost, Configure: ".*", Write: ".*", Read: ".*",
		}}}
	}
	c.mustChange("n1", user, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutVhost{PutVhost: &logpb.PutVhost{Name: "v"}}}, grant("/"), grant("v"))
	enter := func(vhost string) (all []*session.Connection) {
		for _, n := range c.all {
			conn, err := n.Sessions().Enter(context.Background(), "ann", vhost)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { conn.Close(context.Background()) })
			all = append(all, conn)
		}
		return all
	}
	looked := func() {
		t.Helper()
		limit := deadline(t)
		for node, r := range checks {
			select {
			case <-r.renewed:
			case <-limit.Done():
				t.Fatal("nobody checks the clients of ", node)
			}
		}
	}
	looked()
	c.mustChange("n3", &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutTopicPermission{PutTopicPermission: &logpb.PutTopicPermission{
		User: "ann", Vhost: "/", Exchange: "amq.topic", Write: "a", Read: ".*",
	}}})
	looked()
	for _, step := range []struct {
		what, vhost, want string
		gone              *logpb.CatalogCommand
		back              []*logpb.CatalogCommand
	}{
		{
			"permission", "/", "access to vhost '/' refused for user 'ann'",
			&logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeletePermission{DeletePermission: &logpb.DeletePermission{User: "ann", Vhost: "/"}}}, nil,
		},
		{
			"vhost", "v", "vhost 'v' is down",
			&logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeleteVhost{DeleteVhost: &logpb.DeleteVhost{Name: "v"}}}, nil,
		},
		{
			"user", "/", "user 'ann' was deleted",
			&logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeleteUser{DeleteUser: &logpb.DeleteUser{Name: "ann"}}},
			[]*logpb.CatalogCommand{user, grant("/")},
		},
	} {
		if step.what == "user" {
			c.mustChange("n2", grant("/"))
			looked()
		}
		all := enter(step.vhost)
		c.mustChange("n2", step.gone)
		looked()
		if step.back != nil {
			c.mustChange("n3", step.back...)
		}
		for _, conn := range all {
			if err := conn.Renew(); err == nil || err.Error() != step.want {
				t.Errorf("%s is gone: %v, want %s", step.what, err, step.want)
			}
		}
	}
}
