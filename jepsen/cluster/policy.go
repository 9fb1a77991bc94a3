package cluster

import (
	"context"
	"net/http"
	"net/url"
)

// Policy is a policy of the vhost "/", in the form of the HTTP API.
type Policy struct {
	Name       string         `json:"-"`
	Operator   bool           `json:"-"`
	Pattern    string         `json:"pattern"`
	ApplyTo    string         `json:"apply-to,omitempty"`
	Priority   int            `json:"priority"`
	Definition map[string]any `json:"definition"`
}

// Path returns the policy's path in the HTTP API.
func (p *Policy) Path() string {
	if p.Operator {
		return "/api/operator-policies/%2F/" + url.PathEscape(p.Name)
	}
	return "/api/policies/%2F/" + url.PathEscape(p.Name)
}

// SetPolicy sets a policy.
func (n *Node) SetPolicy(ctx context.Context, p Policy) error {
	return n.Call(ctx, http.MethodPut, p.Path(), p, nil)
}

// ClearPolicy removes a policy.
func (n *Node) ClearPolicy(ctx context.Context, p Policy) error {
	return n.Call(ctx, http.MethodDelete, p.Path(), nil, nil)
}

// Queue is the HTTP API's description of a queue.
type Queue struct {
	Name           string         `json:"name"`
	Arguments      map[string]any `json:"arguments"`
	Policy         string         `json:"policy"`
	OperatorPolicy string         `json:"operator_policy"`
	Effective      map[string]any `json:"effective_policy_definition"`
	Messages       int            `json:"messages"`
	Ready          int            `json:"messages_ready"`
	Unacknowledged int            `json:"messages_unacknowledged"`
	Scheduled      int            `json:"messages_scheduled"`
	Delayed        int            `json:"messages_delayed"`
	Bytes          int            `json:"message_bytes"`
	Leader         string         `json:"leader"`
	DeadLetters    int            `json:"messages_dlx"`
	DeadWaiting    int            `json:"messages_dlx_waiting"`
	DeadConfirmed  int            `json:"messages_dead_lettered_confirmed_total"`
	DeadDropped    int            `json:"dead_letters_dropped_total"`
	DeadRefused    int            `json:"dead_letters_refused_total"`
	Forwarding     int            `json:"messages_forwarding"`
	Forwarded      int            `json:"messages_forwarded_total"`
	// Deaths by reason and strategy.
	Deaths map[string]map[string]int `json:"deaths"`
}

// Queue asks about a queue of the vhost "/".
func (n *Node) Queue(ctx context.Context, name string) (q Queue, err error) {
	err = n.Call(ctx, http.MethodGet, "/api/queues/%2F/"+url.PathEscape(name), nil, &q)
	return q, err
}

// Totals are the HTTP API's totals over queues.
type Totals struct {
	Messages    int `json:"messages"`
	DeadLetters int `json:"messages_dlx"`
	DeadWaiting int `json:"messages_dlx_waiting"`
}

// Totals returns the totals over all queues.
func (n *Node) Totals(ctx context.Context) (Totals, error) {
	var o struct {
		Totals Totals `json:"queue_totals"`
	}
	err := n.Call(ctx, http.MethodGet, "/api/overview", nil, &o)
	return o.Totals, err
}

// SetUser creates or changes a user.
func (n *Node) SetUser(ctx context.Context, name, password, tags string) error {
	in := map[string]string{"password": password, "tags": tags}
	return n.Call(ctx, http.MethodPut, "/api/users/"+url.PathEscape(name), in, nil)
}

// SetPermissions sets what a user may do in the vhost "/".
func (n *Node) SetPermissions(ctx context.Context, user, configure, write, read string) error {
	in := map[string]string{"configure": configure, "write": write, "read": read}
	return n.Call(ctx, http.MethodPut, "/api/permissions/%2F/"+url.PathEscape(user), in, nil)
}

// PutSetting sets a cluster setting.
func (n *Node) PutSetting(ctx context.Context, name string, value int64) error {
	return n.Call(ctx, http.MethodPut, "/api/quorate/settings/"+name, map[string]int64{"value": value}, nil)
}
