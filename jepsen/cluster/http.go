package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// httpTimeout bounds one call to a node's HTTP API.
const httpTimeout = 5 * time.Second

// Replica is a node's report about its replica of a queue.
type Replica struct {
	Vhost          string `json:"vhost"`
	Name           string `json:"name"`
	QueueID        uint64 `json:"queue_id"`
	Group          uint64 `json:"group"`
	Node           string `json:"node"`
	Leader         bool   `json:"leader"`
	Term           uint64 `json:"term"` // of the raft group
	AppliedIndex   uint64 `json:"applied_index"`
	StateHash      string `json:"state_hash"`
	Ready          uint64 `json:"ready"`
	Unacknowledged uint64 `json:"unacknowledged"`
	Consumers      uint64 `json:"consumers"`
}

// Replicas asks a node about all its queue replicas.
func (n *Node) Replicas(ctx context.Context) ([]Replica, error) {
	var all []Replica
	return all, n.Call(ctx, http.MethodGet, "/api/quorate/replicas", nil, &all)
}

// ReplicasOf asks a node about its replica of a queue, in any vhost. No command is
// sent to the queue: a command would expire what is due in it.
func (n *Node) ReplicasOf(ctx context.Context, queue string) ([]Replica, error) {
	var all []Replica
	return all, n.Call(ctx, http.MethodGet, "/api/quorate/replicas?name="+url.QueryEscape(queue), nil, &all)
}

// Ready asks a node whether it serves clients.
func (n *Node) Ready(ctx context.Context) error {
	return n.Call(ctx, http.MethodGet, "/api/health/checks/ready-to-serve-clients", nil, nil)
}

// metricsOffset is the difference between the ports of a node's metrics listener and
// of its API.
const metricsOffset = 20

// Metrics is the address of the node's metrics listener.
func (n *Node) Metrics() (string, error) {
	host, port, err := net.SplitHostPort(n.HTTP)
	if err != nil {
		return "", err
	}
	number, err := strconv.Atoi(port)
	return net.JoinHostPort(host, strconv.Itoa(number+metricsOffset)), err
}

// Metric sums up the values of a node's metric whose labels contain all the words.
func (n *Node) Metric(ctx context.Context, name string, words ...string) (sum float64, err error) {
	address, err := n.Metrics()
	if err != nil {
		return 0, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	found := false
	for line := range strings.Lines(string(page)) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		rest, ok := strings.CutPrefix(series, name)
		if !ok || rest != "" && rest[0] != '{' || slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(rest, w) }) {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, err
		}
		found, sum = true, sum+v
	}
	if !found {
		return 0, fmt.Errorf("node %d has no metric %s %v", n.Number, name, words)
	}
	return sum, nil
}

// Voters returns how many replicas of a queue vote, according to a node.
func (n *Node) Voters(ctx context.Context, queue string) (voters int, err error) {
	var members []struct{ Membership string }
	err = n.Call(ctx, http.MethodGet, "/api/queues/quorum/%2F/"+url.PathEscape(queue)+"/status", nil, &members)
	for _, m := range members {
		if m.Membership == "voter" {
			voters++
		}
	}
	return voters, err
}

// barrier makes a node announce its commit index to its followers.
func (n *Node) barrier(ctx context.Context) error {
	return n.Call(ctx, http.MethodPost, "/api/quorate/settle", nil, nil)
}

// Do makes one call as guest, with in as its JSON body if it is not nil; a []byte is
// sent unchanged.
func (n *Node) Do(ctx context.Context, method, path string, in any) (status int, body []byte, err error) {
	if _, bounded := ctx.Deadline(); !bounded || path != drainPath {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, httpTimeout)
		defer cancel()
	}
	var content io.Reader
	switch in := in.(type) {
	case nil:
	case []byte:
		content = bytes.NewReader(in)
	default:
		text, err := json.Marshal(in)
		if err != nil {
			return 0, nil, err
		}
		content = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+n.HTTP+path, content)
	if err != nil {
		return 0, nil, err
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	req.SetBasicAuth("guest", "guest")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	if body, err = io.ReadAll(resp.Body); err != nil {
		return 0, nil, fmt.Errorf("node %d: %s %s: %w", n.Number, method, path, err)
	}
	return resp.StatusCode, body, nil
}

// Call makes one HTTP call that must succeed, and decodes the answer into out if out
// is not nil.
func (n *Node) Call(ctx context.Context, method, path string, in, out any) error {
	status, body, err := n.Do(ctx, method, path, in)
	if err != nil {
		return err
	}
	if status/100 != 2 {
		return fmt.Errorf("node %d: %s %s: %d: %.200s", n.Number, method, path, status, body)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(body, out); err != nil {
		return fmt.Errorf("node %d: %s %s: %w", n.Number, method, path, err)
	}
	return nil
}

// ErrNoLeader means that no node that answers leads the queue.
var ErrNoLeader = errors.New("no leader")

// Leader finds the node that leads a queue of the vhost "/". During a change two nodes
// may claim to; it returns the one with the highest applied index.
func (c *Cluster) Leader(ctx context.Context, queue string) (*Node, error) {
	var found *Node
	var applied uint64
	var errs []error
	for _, n := range c.Nodes {
		all, err := n.Replicas(ctx)
		errs = append(errs, err)
		for _, r := range all {
			if r.Name == queue && r.Vhost == "/" && r.Leader && (found == nil || r.AppliedIndex > applied) {
				found, applied = n, r.AppliedIndex
			}
		}
	}
	if found == nil {
		return nil, fmt.Errorf("queue %s: %w", queue, errors.Join(append(errs, ErrNoLeader)...))
	}
	return found, nil
}

// Snapshot asks every node about its replicas, after all leaders were made to bring
// their followers up to date.
func (c *Cluster) Snapshot(ctx context.Context) ([]Replica, error) {
	var all []Replica
	for _, n := range c.Nodes {
		if err := n.barrier(ctx); err != nil {
			return nil, err
		}
	}
	for _, n := range c.Nodes {
		replicas, err := n.Replicas(ctx)
		if err != nil {
			return nil, err
		}
		all = append(all, replicas...)
	}
	return all, nil
}

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
	Parked         int            `json:"messages_parked"`
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

// ErrNoNumbers means that no leader of a queue has said what is in it.
var ErrNoNumbers = errors.New("no leader says what is in the queue")

// Queue asks about a queue of the vhost "/". The answer has no numbers if no leader has given them, which are not 0 for that.
func (n *Node) Queue(ctx context.Context, name string) (q Queue, err error) {
	err = n.Call(ctx, http.MethodGet, "/api/queues/%2F/"+url.PathEscape(name), nil, &q)
	if err == nil && q.Leader == "" {
		err = ErrNoNumbers
	}
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
