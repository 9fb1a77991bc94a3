package mgmt

import (
	"context"
	"net/http"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// Membership is what the API needs of the node to change where replicas are.
// Errors that are *fsm.Refusal are the caller's fault.
type Membership interface {
	// AddMember gives a queue a replica on a node, DeleteMember removes it.
	AddMember(ctx context.Context, vhost, queue, node string) error
	DeleteMember(ctx context.Context, vhost, queue, node string) error
	// Grow and Shrink do so for many queues, GrowTo up to a number of members.
	Grow(ctx context.Context, node string, s api.Selection) ([]api.MemberChange, error)
	Shrink(ctx context.Context, node string, s api.Selection) ([]api.MemberChange, error)
	GrowTo(ctx context.Context, count int, s api.Selection) ([]api.MemberChange, error)
	// ForgetNode removes a node that has stopped for good.
	ForgetNode(ctx context.Context, node string) error
}

// membership are the resources of where replicas are.
func (s *Server) membership() []resource {
	return []resource{
		{"/api/queues/quorum/{vhost}/{name}/replicas/add", []endpoint{post(administrator, s.changeMember(s.node.AddMember))}},
		{"/api/queues/quorum/{vhost}/{name}/replicas/delete", []endpoint{remove(administrator, s.changeMember(s.node.DeleteMember))}},
		{"/api/queues/quorum/replicas/on/{node}/grow", []endpoint{post(administrator, s.changeMembers(s.node.Grow))}},
		{"/api/queues/quorum/replicas/on/{node}/shrink", []endpoint{remove(administrator, s.changeMembers(s.node.Shrink))}},
		{"/api/queues/quorum/replicas/grow-to-count", []endpoint{post(administrator, s.changeMembers(
			func(ctx context.Context, _ string, which api.Selection) ([]api.MemberChange, error) {
				return s.node.GrowTo(ctx, which.Count, which)
			}))}},
		{"/api/nodes/{node}", []endpoint{remove(administrator, func(w http.ResponseWriter, r *request) {
			s.changed(w, s.node.ForgetNode(r.Context(), r.PathValue("node")), false)
		})}},
	}
}

// changeMember changes one member of one queue.
func (s *Server) changeMember(do func(ctx context.Context, vhost, queue, node string) error) func(http.ResponseWriter, *request) {
	return func(w http.ResponseWriter, r *request) {
		var body api.ReplicaNode
		if s.read(w, r, &body) {
			s.changed(w, do(r.Context(), r.PathValue("vhost"), r.PathValue("name"), body.Node), false)
		}
	}
}

// changeMembers changes members of many queues, and answers how each went.
func (s *Server) changeMembers(do func(context.Context, string, api.Selection) ([]api.MemberChange, error)) func(http.ResponseWriter, *request) {
	return func(w http.ResponseWriter, r *request) {
		var which api.Selection
		if !s.read(w, r, &which) {
			return
		}
		changes, err := do(r.Context(), r.PathValue("node"), which)
		if err != nil {
			s.failed(w, err)
			return
		}
		s.answer(w, http.StatusOK, orEmpty(changes))
	}
}
