package mgmt

import (
	"cmp"
	"net/http"
	"slices"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// closedBy is what a client is told if no reason is given.
const closedBy = "Closed via management plugin"

// connections lists those that a request is about and its user may see: of
// all vhosts, one vhost or one user; all of them, or with less than
// monitoring the user's own.
func (s *Server) connections(r *request) (all []api.Connection) {
	name, vhost, user := r.PathValue("name"), r.PathValue("vhost"), r.PathValue("user")
	for _, c := range s.node.Connections(r.Context()) {
		if (name == "" || c.Name == name) && (vhost == "" || c.VHost == vhost) && (user == "" || c.User == user) &&
			(r.has(monitoring) || c.User == r.user.GetName()) {
			all = append(all, c)
		}
	}
	return all
}

func (s *Server) listConnections(w http.ResponseWriter, r *request) {
	if vhost := r.PathValue("vhost"); vhost != "" && !r.sees(vhost) {
		s.notFound(w)
		return
	}
	list(s, w, r, s.connections(r))
}

func (s *Server) getConnection(w http.ResponseWriter, r *request) {
	if found := s.connections(r); len(found) == 1 {
		s.answer(w, http.StatusOK, found[0])
		return
	}
	s.notFound(w)
}

// closeConnections closes one connection, or all of a user: the caller's own,
// others' take an administrator.
func (s *Server) closeConnections(w http.ResponseWriter, r *request) {
	me, of := r.user.GetName(), r.PathValue("user")
	found := s.connections(r)
	if len(found) == 0 && of == "" {
		s.notFound(w)
		return
	}
	others := of != "" && of != me || slices.ContainsFunc(found, func(c api.Connection) bool { return c.User != me })
	if others && !r.has(administrator) {
		s.unauthorized(w, "not_authorised", levels[administrator].reason)
		return
	}
	for _, c := range found {
		if _, err := s.node.CloseConnection(r.Context(), c, cmp.Or(r.Header.Get("X-Reason"), closedBy)); err != nil {
			s.failed(w, err)
			return
		}
	}
	w.WriteHeader(http.StatusNoContent)
}
