package mgmt

import (
	"context"
	"encoding/base64"
	"net/http"

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

func (s *Server) listUsers(w http.ResponseWriter, r *request) {
	var items []api.User
	for _, u := range r.view.Users() {
		items = append(items, r.describeUser(u))
	}
	list(s, w, r, items)
}

func (s *Server) getUser(w http.ResponseWriter, r *request) {
	u, ok := r.view.User(r.PathValue("user"))
	if !ok {
		s.notFound(w)
		return
	}
	s.answer(w, http.StatusOK, r.describeUser(u))
}

// putUser makes or replaces a user. Without a password and without a hash the
// user cannot log in.
func (s *Server) putUser(w http.ResponseWriter, r *request) {
	b, ok := s.body(w, r)
	if !ok {
		return
	}
	if _, given := b["tags"]; !given {
		s.badRequest(w, "tags_not_present")
		return
	}
	m, err := s.userFrom(r.Context(), b)
	if err != nil {
		s.failed(w, err)
		return
	}
	m.Name = r.PathValue("user")
	_, known := r.view.User(m.Name)
	s.changed(w, s.propose(r.Context(), &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutUser{PutUser: m}}), !known)
}

func (s *Server) userFrom(ctx context.Context, b body) (*logpb.PutUser, error) {
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
		return nil, fsm.Refuse(fsm.Precondition, "password and password_hash exclude each other")
	case !login.ValidPassword(password):
		return nil, fsm.Refuse(fsm.Precondition, "password holds a zero octet")
	case password != "":
		m.PasswordHash, err = s.node.HashPassword(ctx, password)
	case hash != "":
		if algorithm == "" {
			algorithm = login.ImportedSHA256
		}
		m.HashAlgorithm = algorithm
		if m.PasswordHash, err = base64.StdEncoding.DecodeString(hash); err != nil || !login.ValidHash(m.PasswordHash, algorithm) {
			return nil, fsm.Refuse(fsm.Precondition, "password_hash is not the base64 of a hash made with "+algorithm)
		}
	}
	return m, err
}

func (s *Server) deleteUser(w http.ResponseWriter, r *request) {
	name := r.PathValue("user")
	if _, ok := r.view.User(name); !ok {
		s.notFound(w)
		return
	}
	m := &logpb.DeleteUser{Name: name}
	s.changed(w, s.propose(r.Context(), &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeleteUser{DeleteUser: m}}), false)
}

func describePermission(p *catalog.Permission) api.Permission {
	return api.Permission{User: p.User, VHost: p.VHost, Configure: p.Configure, Write: p.Write, Read: p.Read}
}

// listPermissions lists all permissions, or those of the user or the vhost in
// the path.
func (s *Server) listPermissions(w http.ResponseWriter, r *request) {
	user, vhost := r.PathValue("user"), r.PathValue("vhost")
	_, isUser := r.view.User(user)
	_, isVHost := r.view.VHost(vhost)
	if user != "" && !isUser || vhost != "" && !isVHost {
		s.notFound(w)
		return
	}
	var items []api.Permission
	for _, p := range r.view.Permissions() {
		if (user == "" || p.User == user) && (vhost == "" || p.VHost == vhost) {
			items = append(items, describePermission(p))
		}
	}
	list(s, w, r, items)
}

func (s *Server) getPermission(w http.ResponseWriter, r *request) {
	p, ok := r.view.Permission(r.PathValue("user"), r.PathValue("vhost"))
	if !ok {
		s.notFound(w)
		return
	}
	s.answer(w, http.StatusOK, describePermission(p))
}

func (s *Server) putPermission(w http.ResponseWriter, r *request) {
	b, ok := s.body(w, r)
	if !ok || s.missing(w, b, "configure", "write", "read") {
		return
	}
	m := &logpb.PutPermission{User: r.PathValue("user"), Vhost: r.PathValue("vhost")}
	if err := b.patterns(map[string]*string{"configure": &m.Configure, "write": &m.Write, "read": &m.Read}); err != nil {
		s.failed(w, err)
		return
	}
	if _, ok := r.view.VHost(m.Vhost); !ok {
		s.noVHost(w)
		return
	}
	_, known := r.view.Permission(m.User, m.Vhost)
	s.changed(w, s.propose(r.Context(), &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutPermission{PutPermission: m}}), !known)
}

// patterns reads permission patterns.
func (b body) patterns(into map[string]*string) error {
	for key, pattern := range into {
		text, err := b.text(key)
		if err == nil {
			err = catalog.ValidatePattern(text)
		}
		if err != nil {
			return err
		}
		*pattern = text
	}
	return nil
}

func (s *Server) removePermission(w http.ResponseWriter, r *request) {
	m := &logpb.DeletePermission{User: r.PathValue("user"), Vhost: r.PathValue("vhost")}
	if _, ok := r.view.Permission(m.User, m.Vhost); !ok {
		s.notFound(w)
		return
	}
	s.changed(w, s.propose(r.Context(), &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeletePermission{DeletePermission: m}}), false)
}
