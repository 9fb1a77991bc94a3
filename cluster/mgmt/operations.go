package mgmt

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"regexp"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

func (s *Server) nodes(w http.ResponseWriter, r *request) {
	s.answer(w, http.StatusOK, orEmpty(s.node.Nodes(r.Context())))
}

// setLimit changes a limit of this node.
func (s *Server) setLimit(w http.ResponseWriter, r *request) {
	var to api.Limit
	if s.read(w, r, &to) {
		s.changed(w, s.node.SetLimit(r.PathValue("name"), to), false)
	}
}

// members lists the replicas of a queue.
func (s *Server) members(w http.ResponseWriter, r *request) {
	q, ok := r.view.Queue(r.PathValue("vhost"), r.PathValue("name"))
	if !ok || !r.sees(q.VHost) {
		s.notFound(w)
		return
	}
	s.answer(w, http.StatusOK, s.node.Members(r.Context(), q))
}

// transfer makes a node the leader of a queue.
func (s *Server) transfer(w http.ResponseWriter, r *request) {
	q, ok := r.view.Queue(r.PathValue("vhost"), r.PathValue("name"))
	if !ok {
		s.notFound(w)
		return
	}
	var to api.Transfer
	if !s.read(w, r, &to) {
		return
	}
	s.changed(w, s.node.TransferLeadership(r.Context(), q, to.Node), false)
}

// liftQuarantine lets a queue lead on this node again.
func (s *Server) liftQuarantine(w http.ResponseWriter, r *request) {
	q, ok := r.view.Queue(r.PathValue("vhost"), r.PathValue("name"))
	if !ok {
		s.notFound(w)
		return
	}
	s.changed(w, s.node.LiftQuarantine(q), false)
}

// rebalanceAll spreads the leaderships of all queues.
func (s *Server) rebalanceAll(w http.ResponseWriter, r *request) {
	_, err := s.node.Rebalance(r.Context(), nil, nil)
	s.changed(w, err, false)
}

// rebalance spreads the leaderships of the queues that patterns choose.
func (s *Server) rebalance(w http.ResponseWriter, r *request) {
	var which api.Rebalance
	if !s.read(w, r, &which) {
		return
	}
	vhosts, err := regexp.Compile(which.VHostPattern)
	queues, queueErr := regexp.Compile(which.QueuePattern)
	if err := errors.Join(err, queueErr); err != nil {
		s.badRequest(w, "pattern should be regular expression but is invalid: "+err.Error())
		return
	}
	done, err := s.node.Rebalance(r.Context(), vhosts, queues)
	if err != nil {
		s.failed(w, err)
		return
	}
	s.answer(w, http.StatusOK, done)
}

func (s *Server) drain(w http.ResponseWriter, r *request) {
	d, err := s.node.Drain(r.Context())
	if err != nil {
		s.failed(w, err)
		return
	}
	s.answer(w, http.StatusOK, d)
}

func (s *Server) revive(w http.ResponseWriter, r *request) {
	s.changed(w, s.node.Revive(r.Context()), false)
}

// read decodes the request's body, which may be empty, or answers the request.
func (s *Server) read(w http.ResponseWriter, r *request, to any) bool {
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil && err != io.EOF {
		s.badRequest(w, "not_json")
		return false
	}
	return true
}
