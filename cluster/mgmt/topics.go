package mgmt

import (
	"net/http"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/proto/logpb"
)

// topicPermissions lists those of the user, the vhost and the exchange in the
// path; what is not in it is not asked for.
func (r *request) topicPermissions() (items []api.TopicPermission) {
	user, vhost, exchange := r.PathValue("user"), r.PathValue("vhost"), r.PathValue("exchange")
	for _, p := range r.view.TopicPermissions() {
		if (user == "" || p.User == user) && (vhost == "" || p.VHost == vhost) && (exchange == "" || p.Exchange == exchange) {
			items = append(items, api.TopicPermission{User: p.User, VHost: p.VHost, Exchange: p.Exchange, Write: p.Write, Read: p.Read})
		}
	}
	return items
}

// listTopicPermissions lists all topic permissions, or those of the user or
// the vhost in the path.
func (s *Server) listTopicPermissions(w http.ResponseWriter, r *request) {
	user, vhost := r.PathValue("user"), r.PathValue("vhost")
	_, isUser := r.view.User(user)
	_, isVHost := r.view.VHost(vhost)
	if user != "" && !isUser || vhost != "" && !isVHost {
		s.notFound(w)
		return
	}
	list(s, w, r, r.topicPermissions())
}

// getTopicPermissions answers those of one user in one vhost, which must be.
func (s *Server) getTopicPermissions(w http.ResponseWriter, r *request) {
	items := r.topicPermissions()
	switch {
	case len(items) == 0:
		s.notFound(w)
	case r.PathValue("exchange") != "":
		s.answer(w, http.StatusOK, items[0])
	default:
		list(s, w, r, items)
	}
}

func (s *Server) putTopicPermission(w http.ResponseWriter, r *request) {
	b, ok := s.body(w, r)
	if !ok || s.missing(w, b, "exchange", "write", "read") {
		return
	}
	m := &logpb.PutTopicPermission{User: r.PathValue("user"), Vhost: r.PathValue("vhost")}
	err := b.patterns(map[string]*string{"write": &m.Write, "read": &m.Read})
	if err == nil {
		m.Exchange, err = b.text("exchange")
	}
	if err != nil {
		s.failed(w, err)
		return
	}
	if _, ok := r.view.VHost(m.Vhost); !ok {
		s.noVHost(w)
		return
	}
	r.SetPathValue("exchange", m.Exchange)
	known := len(r.topicPermissions()) > 0
	s.changed(w, s.propose(r.Context(), &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutTopicPermission{PutTopicPermission: m}}), !known)
}

// removeTopicPermission removes the one of the exchange in the path, or all of
// a user in a vhost.
func (s *Server) removeTopicPermission(w http.ResponseWriter, r *request) {
	if len(r.topicPermissions()) == 0 {
		s.notFound(w)
		return
	}
	exchange := r.PathValue("exchange")
	m := &logpb.DeleteTopicPermission{User: r.PathValue("user"), Vhost: r.PathValue("vhost"), Exchange: exchange, All: exchange == ""}
	s.changed(w, s.propose(r.Context(), &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeleteTopicPermission{DeleteTopicPermission: m}}), false)
}
