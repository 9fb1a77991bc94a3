package mgmt

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/http"
	"runtime"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/pattern"
)

// operations serves what operators do with nodes and leaders.
type operations struct {
	cluster   Cluster
	local     Node
	placement Placement
	resources Resources
}

func (o operations) nodes(w *responder, r *request) {
	list(w, r, o.cluster.Nodes(r.Context()))
}

// setLimit changes a limit of this node.
func (o operations) setLimit(w *responder, r *request) {
	var to api.Limit
	if w.read(r, &to) {
		w.changed(o.resources.SetLimit(r.PathValue("name"), to), false)
	}
}

// members lists the replicas of a queue.
func (o operations) members(w *responder, r *request) {
	q := w.queue(r)
	if q == nil {
		return
	}
	w.answer(http.StatusOK, o.cluster.Members(r.Context(), q))
}

// transfer makes a node the leader of a queue.
func (o operations) transfer(w *responder, r *request) {
	q := w.queue(r)
	if q == nil {
		return
	}
	var to api.Transfer
	if !w.read(r, &to) {
		return
	}
	w.changed(o.placement.TransferLeadership(r.Context(), q, to.Node), false)
}

// liftQuarantine allows a queue to lead on this node again.
func (o operations) liftQuarantine(w *responder, r *request) {
	q := w.queue(r)
	if q == nil {
		return
	}
	w.changed(o.local.LiftQuarantine(q), false)
}

// rebalanceAll spreads the leaderships of all queues.
func (o operations) rebalanceAll(w *responder, r *request) {
	_, err := o.placement.Rebalance(r.Context(), nil, nil)
	w.changed(err, false)
}

// rebalance spreads the leaderships of the queues that match patterns.
func (o operations) rebalance(w *responder, r *request) {
	var which api.Rebalance
	if !w.read(r, &which) {
		return
	}
	vhosts, err := pattern.Compile(which.VHostPattern)
	queues, queueErr := pattern.Compile(which.QueuePattern)
	if err := errors.Join(err, queueErr); err != nil {
		w.badRequest("pattern should be regular expression but is invalid: " + err.Error())
		return
	}
	done, err := o.placement.Rebalance(r.Context(), vhosts, queues)
	w.result(done, err)
}

func (o operations) drain(w *responder, r *request) {
	d, err := o.placement.Drain(r.Context())
	w.result(d, err)
}

func (o operations) revive(w *responder, r *request) {
	w.changed(o.placement.Revive(r.Context()), false)
}

// members serves the nodes that have replicas of queues.
type members struct{ members Placement }

// growTo adds members to many queues, up to a number of members.
func (ms members) growTo(ctx context.Context, _ string, which api.Selection) ([]api.MemberChange, error) {
	return ms.members.GrowTo(ctx, which.Count, which)
}

// changeOne changes one member of one queue.
func changeOne(do func(ctx context.Context, vhost, queue, node string) error) func(*responder, *request) {
	return func(w *responder, r *request) {
		var body api.ReplicaNode
		if w.read(r, &body) {
			w.changed(do(r.Context(), r.PathValue("vhost"), r.PathValue("name"), body.Node), false)
		}
	}
}

// changeMany changes members of many queues, and answers with the result for each.
func changeMany(do func(context.Context, string, api.Selection) ([]api.MemberChange, error)) func(*responder, *request) {
	return func(w *responder, r *request) {
		var which api.Selection
		if !w.read(r, &which) {
			return
		}
		changes, err := do(r.Context(), r.PathValue("node"), which)
		if err != nil {
			w.failed(err)
			return
		}
		w.answer(http.StatusOK, orEmpty(changes))
	}
}

// settings serves the cluster-wide settings.
type settings struct{ settings Settings }

func (st settings) list(w *responder, _ *request) {
	w.answer(http.StatusOK, st.settings.Settings())
}

func (st settings) put(w *responder, r *request) {
	var body api.SettingValue
	d := jsonIn(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(&body); err != nil || body.Value == nil {
		w.answer(http.StatusBadRequest, api.Failure{Error: "bad_request", Reason: `the body must be {"value": NUMBER}`})
		return
	}
	st.change(w, r, body.Value)
}

func (st settings) remove(w *responder, r *request) { st.change(w, r, nil) }

func (st settings) change(w *responder, r *request, value *int64) {
	w.changed(st.settings.PutSetting(r.Context(), r.PathValue("name"), value), false)
}

// effective answers with the settings that the node runs with.
func (b *Backend) effective(w *responder, _ *request) {
	if b.Effective == nil {
		w.notFound()
		return
	}
	w.answer(http.StatusOK, b.Effective())
}

// membership serves the nodes of the cluster and the tokens that admit new ones.
type membership struct{ membership Membership }

const tokensPath = "/api/quorate/tokens"

func (m membership) list(w *responder, _ *request) {
	w.answer(http.StatusOK, orEmpty(m.membership.Tokens()))
}

func (m membership) create(w *responder, r *request) {
	var ask api.NewJoinToken
	if !w.read(r, &ask) {
		return
	}
	r.detail = map[string]any{"ttl": ask.TTL, "node": fsm.Short(ask.Node)}
	made, err := m.membership.CreateToken(r.Context(), fsm.Millis(ask.TTL), ask.Node)
	if err != nil {
		w.failed(err)
		return
	}
	r.detail["token"] = made.ID
	w.answer(http.StatusCreated, made)
}

func (m membership) revoke(w *responder, r *request) {
	known, err := m.membership.RevokeToken(r.Context(), r.PathValue("id"))
	if err == nil && !known {
		w.notFound()
		return
	}
	w.changed(err, false)
}

func (m membership) forgetNode(w *responder, r *request) {
	w.changed(m.membership.ForgetNode(r.Context(), r.PathValue("node")), false)
}

// memory serves what the memory of a node is used for.
type memory struct {
	node    Node
	cluster Cluster
}

// get answers by Go's own accounts for the node that is asked, and by one number for others.
func (m memory) get(w *responder, r *request) {
	n := w.node(r, m.cluster)
	if n == nil {
		return
	}
	used := uint64(max(n.MemoryUsed, 0))
	use := api.MemoryUse{Strategy: "rss", OtherSystem: used, Total: api.MemoryTotal{RSS: used, Allocated: used, Runtime: used}}
	if m.node.Status().Node == n.Name {
		use = ownMemory(used)
	}
	w.answer(http.StatusOK, api.Memory{Memory: use})
}

// ownMemory is that of this process. rss is what the system counts.
func ownMemory(rss uint64) api.MemoryUse {
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return api.MemoryUse{
		OtherProc: s.StackInuse, Binary: s.HeapAlloc, OtherSystem: s.GCSys + s.OtherSys + s.MSpanSys + s.MCacheSys + s.BuckHashSys,
		AllocatedUnused: s.HeapInuse - s.HeapAlloc, ReservedUnallocated: s.HeapIdle - s.HeapReleased, Strategy: "rss",
		Total: api.MemoryTotal{RSS: rss, Allocated: s.Sys - s.HeapReleased, Runtime: s.HeapAlloc + s.StackInuse},
	}
}

// hashPassword makes a hash as RabbitMQ's definitions have: a salt of 4 bytes, and the SHA-256 of it
// and the password.
func hashPassword(w *responder, r *request) {
	var salt [4]byte
	rand.Read(salt[:])
	sum := sha256.Sum256(append(salt[:], r.PathValue("password")...))
	w.answer(http.StatusOK, map[string]string{"ok": base64.StdEncoding.EncodeToString(append(salt[:], sum[:]...))})
}
