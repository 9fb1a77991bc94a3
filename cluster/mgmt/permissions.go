package mgmt

import (
	"net/http"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

func describePermission(p *catalog.Permission) api.Permission {
	return api.Permission{User: p.User, VHost: p.VHost, Configure: p.Configure, Write: p.Write, Read: p.Read}
}

// permissions serves the permissions of users in vhosts.
type permissions struct{ catalog Catalog }

// list lists all permissions, or those of the user or the vhost in
// the path.
func (ps permissions) list(w *responder, r *request) {
	user, vhost := r.PathValue("user"), r.PathValue("vhost")
	_, isUser := r.view.User(user)
	_, isVHost := r.view.VHost(vhost)
	if user != "" && !isUser || vhost != "" && !isVHost {
		w.notFound()
		return
	}
	var items []api.Permission
	for _, p := range r.view.Permissions() {
		if (user == "" || p.User == user) && (vhost == "" || p.VHost == vhost) {
			items = append(items, describePermission(p))
		}
	}
	list(w, r, items)
}

func (ps permissions) get(w *responder, r *request) {
	p, ok := r.view.Permission(r.PathValue("user"), r.PathValue("vhost"))
	if !ok {
		w.notFound()
		return
	}
	w.answer(http.StatusOK, describePermission(p))
}

func (ps permissions) put(w *responder, r *request) {
	b, ok := w.body(r)
	if !ok || w.missing(b, "configure", "write", "read") {
		return
	}
	m := &logpb.PutPermission{User: r.PathValue("user"), Vhost: r.PathValue("vhost")}
	if err := b.patterns(r.view, map[string]*string{"configure": &m.Configure, "write": &m.Write, "read": &m.Read}); err != nil {
		w.failed(err)
		return
	}
	if _, ok := r.view.VHost(m.Vhost); !ok {
		w.noVHost()
		return
	}
	_, known := r.view.Permission(m.User, m.Vhost)
	w.changed(propose(r.Context(), ps.catalog, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutPermission{PutPermission: m}}), !known)
}

// patterns reads permission patterns.
func (b body) patterns(v *catalog.View, into map[string]*string) error {
	for key, pattern := range into {
		text, err := b.text(key)
		if err == nil {
			err = v.ValidatePattern(text)
		}
		if err != nil {
			return err
		}
		*pattern = text
	}
	return nil
}

func (ps permissions) remove(w *responder, r *request) {
	m := &logpb.DeletePermission{User: r.PathValue("user"), Vhost: r.PathValue("vhost")}
	if _, ok := r.view.Permission(m.User, m.Vhost); !ok {
		w.notFound()
		return
	}
	w.changed(propose(r.Context(), ps.catalog, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeletePermission{DeletePermission: m}}), false)
}
