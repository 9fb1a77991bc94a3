package mgmt

import (
	"net/http"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/proto/logpb"
)

// topicPermissions lists the topic permissions of the user, the vhost and the exchange in the path;
// what the path leaves out is not filtered by.
func (r *request) topicPermissions() (items []api.TopicPermission) {
	user, vhost, exchange := r.PathValue("user"), r.PathValue("vhost"), r.PathValue("exchange")
	for _, p := range r.view.TopicPermissions() {
		if (user == "" || p.User == user) && (vhost == "" || p.VHost == vhost) && (exchange == "" || p.Exchange == exchange) {
			items = append(items, api.TopicPermission{User: p.User, VHost: p.VHost, Exchange: p.Exchange, Write: p.Write, Read: p.Read})
		}
	}
	return items
}

// topicPermissions serves the permissions of users at topic exchanges.
type topicPermissions struct{ catalog Catalog }

// list lists all topic permissions, or those of the user or
// the vhost in the path.
func (t topicPermissions) list(w *responder, r *request) {
	user, vhost := r.PathValue("user"), r.PathValue("vhost")
	_, isUser := r.view.User(user)
	_, isVHost := r.view.VHost(vhost)
	if user != "" && !isUser || vhost != "" && !isVHost {
		w.notFound()
		return
	}
	list(w, r, r.topicPermissions())
}

// get answers with the permissions of one user in one vhost, which must exist.
func (t topicPermissions) get(w *responder, r *request) {
	items := r.topicPermissions()
	switch {
	case len(items) == 0:
		w.notFound()
	case r.PathValue("exchange") != "":
		w.answer(http.StatusOK, items[0])
	default:
		list(w, r, items)
	}
}

func (t topicPermissions) put(w *responder, r *request) {
	b, ok := w.body(r)
	if !ok || w.missing(b, "exchange", "write", "read") {
		return
	}
	m := &logpb.PutTopicPermission{User: r.PathValue("user"), Vhost: r.PathValue("vhost")}
	err := b.patterns(r.view, map[string]*string{"write": &m.Write, "read": &m.Read})
	if err == nil {
		m.Exchange, err = b.text("exchange")
	}
	if err != nil {
		w.failed(err)
		return
	}
	if _, ok := r.view.VHost(m.Vhost); !ok {
		w.noVHost()
		return
	}
	r.SetPathValue("exchange", m.Exchange)
	known := len(r.topicPermissions()) > 0
	w.changed(propose(r.Context(), t.catalog, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutTopicPermission{PutTopicPermission: m}}), !known)
}

// remove removes the permission for the exchange in the path, or all of a user in a vhost.
func (t topicPermissions) remove(w *responder, r *request) {
	if len(r.topicPermissions()) == 0 {
		w.notFound()
		return
	}
	exchange := r.PathValue("exchange")
	m := &logpb.DeleteTopicPermission{User: r.PathValue("user"), Vhost: r.PathValue("vhost"), Exchange: exchange, All: exchange == ""}
	w.changed(propose(r.Context(), t.catalog, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeleteTopicPermission{DeleteTopicPermission: m}}), false)
}
