package mgmt

import (
	"cmp"
	"net/http"
	"slices"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// closedBy is the default reason for closing a connection.
const closedBy = "Closed via management plugin"

// connections serves the client connections.
type connections struct{ all Connections }

// matching lists the requested connections that the user may see: of all vhosts, one vhost or one
// user; all of them, or only the user's own without the monitoring tag.
func (cs connections) matching(r *request) (all []api.Connection) {
	return cs.named(r, r.PathValue("name"))
}

// named is matching with the name of a connection; empty: of all.
func (cs connections) named(r *request, name string) (all []api.Connection) {
	vhost, user := r.PathValue("vhost"), r.PathValue("user")
	for _, c := range cs.all.Connections(r.Context()) {
		if (name == "" || c.Name == name) && (vhost == "" || c.VHost == vhost) && (user == "" || c.User == user) &&
			r.seesClient(c.User) {
			all = append(all, c)
		}
	}
	return all
}

func (cs connections) list(w *responder, r *request) {
	if vhost := r.PathValue("vhost"); vhost != "" && !r.sees(vhost) {
		w.notFound()
		return
	}
	list(w, r, cs.matching(r))
}

func (cs connections) get(w *responder, r *request) {
	if found := cs.matching(r); len(found) == 1 {
		w.answer(http.StatusOK, found[0])
		return
	}
	w.notFound()
}

// closeAll closes one connection, or all of a user: the caller's own, or anyone's for an
// administrator.
func (cs connections) closeAll(w *responder, r *request) {
	me, of := r.user.GetName(), r.PathValue("user")
	found := cs.matching(r)
	if len(found) == 0 && of == "" {
		w.notFound()
		return
	}
	others := of != "" && of != me || slices.ContainsFunc(found, func(c api.Connection) bool { return c.User != me })
	if others && !r.has(administrator) {
		w.unauthorized("not_authorised", levels[administrator].reason)
		return
	}
	for _, c := range found {
		if _, err := cs.all.CloseConnection(r.Context(), c, cmp.Or(r.Header.Get("X-Reason"), closedBy)); err != nil {
			w.failed(err)
			return
		}
	}
	w.WriteHeader(http.StatusNoContent)
}
