package catalog

import (
	"bytes"
	"cmp"
	"fmt"
	"strings"

	"github.com/quorate/quorate/fsm/route"
	"github.com/quorate/quorate/proto/logpb"
)

// users are those who can log in. What they may do is part of each vhost, see
// rights.
//
// Invariant: each row stands under its name.
//
// Rows are as the log had them, with a hash of the password, and are what a
// snapshot holds, by name. The catalog does not look into hashes.
type users struct {
	// userRows: by name
	userRows route.Map[string, *logpb.PutUser]
}

// User finds a user by name.
func (us *users) User(name string) (*logpb.PutUser, bool) { return us.userRows.Get(name) }

// Users returns the users by name.
func (us *users) Users() []*logpb.PutUser {
	return sorted(us.userRows, func(a, b *logpb.PutUser) int { return cmp.Compare(a.Name, b.Name) })
}

// put creates or replaces a user. It performs PutUser: the whole row is
// replaced, including password and tags. m belongs to the catalog from then on.
// Permissions stay as they are.
func (us *users) put(m *logpb.PutUser) (*logpb.CatalogResult, error) {
	if err := checkName("user", m.GetName()); err != nil {
		return nil, err
	}
	if row, ok := us.User(m.GetName()); ok && sameRow(row, m) {
		return &logpb.CatalogResult{}, nil
	}
	us.userRows = us.userRows.With(m.GetName(), m)
	return &logpb.CatalogResult{Changed: true}, nil
}

// replaceHash gives a user another hash of the same password, unless the user
// has another password by now, or is gone. It performs ReplaceHash. The
// comparison with the hash from before makes it safe to propose without a lock:
// a password that was changed meanwhile wins.
func (us *users) replaceHash(m *logpb.ReplaceHash) (*logpb.CatalogResult, error) {
	u, ok := us.User(m.GetName())
	if !ok || !bytes.Equal(u.GetPasswordHash(), m.GetWas()) {
		return &logpb.CatalogResult{}, nil
	}
	return us.put(&logpb.PutUser{
		Name: u.GetName(), PasswordHash: m.GetPasswordHash(), HashAlgorithm: m.GetHashAlgorithm(), Tags: u.GetTags(),
	})
}

// remove removes a user. The user's permissions and limits are the caller's,
// see deleteUser.
func (us *users) remove(name string) { us.userRows = us.userRows.Without(name) }

// save is the section of the users in a snapshot, and restore its inverse.
func (us *users) save(to *logpb.CatalogSnapshot) { to.Users = us.Users() }

func (us *users) restore(from *logpb.CatalogSnapshot) {
	for _, u := range from.GetUsers() {
		us.userRows = us.userRows.With(u.GetName(), u)
	}
}

func (us *users) describe(b *strings.Builder) {
	for _, u := range us.Users() {
		fmt.Fprintf(b, "user %s algorithm=%s tags=%v\n", u.Name, u.HashAlgorithm, u.Tags)
	}
}
