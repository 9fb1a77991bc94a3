package mgmt

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"

	"github.com/quorate/quorate/cluster/login"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

func (r *request) describeUser(u *logpb.PutUser) api.User {
	_, limits := limitsOf(r.view, true)
	return api.User{
		Name: u.GetName(), PasswordHash: base64.StdEncoding.EncodeToString(u.GetPasswordHash()),
		HashingAlgorithm: u.GetHashAlgorithm(), Tags: orEmpty(u.GetTags()), Limits: orNone(limits[u.GetName()]),
	}
}

// orNone returns limits that JSON shows as an object.
func orNone(limits map[string]int64) map[string]int64 {
	if limits == nil {
		return map[string]int64{}
	}
	return limits
}

// users serves the users who may log in.
type users struct {
	catalog Catalog
	logins  Logins
}

func (us users) list(w *responder, r *request) {
	list(w, r, described(r.view.Users(), r.describeUser))
}

func (us users) get(w *responder, r *request) {
	u, ok := r.view.User(r.PathValue("user"))
	if !ok {
		w.notFound()
		return
	}
	w.answer(http.StatusOK, r.describeUser(u))
}

// put creates or replaces a user. Without a password and a hash the user cannot log in.
func (us users) put(w *responder, r *request) {
	b, ok := w.body(r)
	if !ok {
		return
	}
	if _, given := b["tags"]; !given {
		w.badRequest("tags_not_present")
		return
	}
	m, err := us.userFrom(r.Context(), b)
	if err != nil {
		w.failed(err)
		return
	}
	m.Name = r.PathValue("user")
	_, known := r.view.User(m.Name)
	w.changed(propose(r.Context(), us.catalog, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutUser{PutUser: m}}), !known)
}

func (us users) userFrom(ctx context.Context, b body) (*logpb.PutUser, error) {
	tags, err := b.words("tags")
	if err != nil {
		return nil, err
	}
	var password, hash, algorithm string
	if err := b.texts(map[string]*string{"password": &password, "password_hash": &hash, "hashing_algorithm": &algorithm}); err != nil {
		return nil, err
	}
	m := &logpb.PutUser{Tags: tags, HashAlgorithm: login.HashAlgorithm}
	switch {
	case password != "" && hash != "":
		return nil, fsm.Refuse(fsm.Precondition, "password and password_hash cannot be combined")
	case !login.ValidPassword(password):
		return nil, fsm.Refuse(fsm.Precondition, "password contains a zero byte")
	case password != "":
		m.PasswordHash, err = us.logins.HashPassword(ctx, password)
	case hash != "":
		if algorithm == "" {
			algorithm = login.ImportedSHA256
		}
		if !login.KnownAlgorithm(algorithm) {
			return nil, fsm.Refuse(fsm.Precondition, "hashing_algorithm "+algorithm+" is not supported")
		}
		m.HashAlgorithm = algorithm
		if m.PasswordHash, err = base64.StdEncoding.DecodeString(hash); err != nil || !login.ValidHash(m.PasswordHash, algorithm) {
			return nil, fsm.Refuse(fsm.Precondition, "password_hash is not a base64-encoded hash made with "+algorithm)
		}
	}
	return m, err
}

func (us users) remove(w *responder, r *request) {
	name := r.PathValue("user")
	if _, ok := r.view.User(name); !ok {
		w.notFound()
		return
	}
	m := &logpb.DeleteUser{Name: name}
	w.changed(propose(r.Context(), us.catalog, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeleteUser{DeleteUser: m}}), false)
}

// withoutPermissions lists the users who may not use any vhost.
func (us users) withoutPermissions(w *responder, r *request) {
	some := map[string]bool{}
	for _, p := range r.view.Permissions() {
		some[p.User] = true
	}
	without := slices.DeleteFunc(slices.Clone(r.view.Users()), func(u *logpb.PutUser) bool { return some[u.GetName()] })
	list(w, r, described(without, r.describeUser))
}

// removeMany deletes the users that the body names. Those that are not there are fine.
func (us users) removeMany(w *responder, r *request) {
	b, ok := w.body(r, "users")
	if !ok {
		return
	}
	names, ok := b["users"].([]any)
	var commands []*logpb.CatalogCommand
	for _, n := range names {
		name, isText := n.(string)
		ok = ok && isText
		commands = append(commands, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeleteUser{DeleteUser: &logpb.DeleteUser{Name: name}}})
	}
	switch {
	case !ok:
		w.badRequest("users should be a list of names")
	case len(commands) > importBatch:
		w.badRequest(fmt.Sprintf("at most %d users can be deleted at a time", importBatch))
	case len(commands) == 0:
		w.WriteHeader(http.StatusNoContent)
	default:
		w.changed(propose(r.Context(), us.catalog, commands...), false)
	}
}

func describePermission(p *catalog.Permission) api.Permission {
	return api.Permission{User: p.User, VHost: p.VHost, Configure: p.Configure, Write: p.Write, Read: p.Read}
}

// permissions serves the permissions of users in vhosts.
type permissions struct{ catalog Catalog }

// list lists all permissions, or those of the user or the vhost in
// the path.
func (ps permissions) list(w *responder, r *request) {
	if w.exist(r) {
		list(w, r, r.permissions())
	}
}

// exist answers the request if there is no such user as the path names, or no such vhost.
func (w *responder) exist(r *request) bool {
	user, vhost := r.PathValue("user"), r.PathValue("vhost")
	_, isUser := r.view.User(user)
	_, isVHost := r.view.VHost(vhost)
	if user != "" && !isUser || vhost != "" && !isVHost {
		w.notFound()
		return false
	}
	return true
}

// concerns reports whether something is about the user and the vhost in the path; what the path leaves out is not filtered
// by.
func (r *request) concerns(user, vhost string) bool {
	inPath := func(key, name string) bool { only := r.PathValue(key); return only == "" || name == only }
	return inPath("user", user) && inPath("vhost", vhost)
}

// permissions lists the permissions of the user and the vhost in the path.
func (r *request) permissions() (items []api.Permission) {
	for _, p := range r.view.Permissions() {
		if r.concerns(p.User, p.VHost) {
			items = append(items, describePermission(p))
		}
	}
	return items
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
	b, ok := w.body(r, "configure", "write", "read")
	if !ok {
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

// topicPermissions lists the topic permissions of the user, the vhost and the exchange in the path.
func (r *request) topicPermissions() (items []api.TopicPermission) {
	exchange := r.PathValue("exchange")
	for _, p := range r.view.TopicPermissions() {
		if r.concerns(p.User, p.VHost) && (exchange == "" || p.Exchange == exchange) {
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
	if w.exist(r) {
		list(w, r, r.topicPermissions())
	}
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
	b, ok := w.body(r, "exchange", "write", "read")
	if !ok {
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
