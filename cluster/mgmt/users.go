package mgmt

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"

	"github.com/quorate/quorate/cluster/login"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm"
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
	var items []api.User
	for _, u := range r.view.Users() {
		items = append(items, r.describeUser(u))
	}
	list(w, r, items)
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
	password, err := b.text("password")
	if err != nil {
		return nil, err
	}
	hash, err := b.text("password_hash")
	if err != nil {
		return nil, err
	}
	algorithm, err := b.text("hashing_algorithm")
	if err != nil {
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
	var items []api.User
	for _, u := range r.view.Users() {
		if !some[u.GetName()] {
			items = append(items, r.describeUser(u))
		}
	}
	list(w, r, items)
}

// removeMany deletes the users that the body names. Those that are not there are fine.
func (us users) removeMany(w *responder, r *request) {
	b, ok := w.body(r)
	if !ok || w.missing(b, "users") {
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
