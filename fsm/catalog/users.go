package catalog

import (
	"bytes"
	"cmp"
	"fmt"
	"strings"

	"github.com/quorate/quorate/fsm"
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

// initialize fills an empty catalog. It does nothing the second time, and
// nothing once there are vhosts or users.
//
// It performs Initialize. It checks the whole command before it changes
// anything, because its three parts cannot be undone.
func (d *draft) initialize(m *logpb.Initialize) (*logpb.CatalogResult, error) {
	if d.initialized || d.vhostCount() > 0 || len(d.Users()) > 0 {
		return &logpb.CatalogResult{}, nil
	}
	p := m.GetPermission()
	if p.GetUser() != m.GetUser().GetName() || p.GetVhost() != m.GetVhost().GetName() {
		return nil, refuse(fsm.Internal, "the first permission is not the first user's")
	}
	if err := checkName("vhost", p.GetVhost()); err != nil {
		return nil, err
	}
	if err := checkName("user", p.GetUser()); err != nil {
		return nil, err
	}
	if err := checkPatterns(p.GetConfigure(), p.GetWrite(), p.GetRead()); err != nil {
		return nil, err
	}
	d.initialized = true
	if _, err := d.putVhost(m.GetVhost()); err != nil {
		return nil, err
	}
	if _, err := d.users.put(m.GetUser()); err != nil {
		return nil, err
	}
	return d.putPermission(p)
}

// putVhost creates a vhost with its exchanges, or changes its description. It
// performs PutVhost. The vhost's contents stay if it exists. How many there may
// be is for the leader to check, see View.Fits.
func (d *draft) putVhost(m *logpb.PutVhost) (*logpb.CatalogResult, error) {
	if err := checkName("vhost", m.GetName()); err != nil {
		return nil, err
	}
	if d.FSMVersion() < redeclares {
		m.Redeclare = logpb.PutVhost_STRICT
	}
	row, exists := d.VHost(m.GetName())
	if exists && sameRow(row, m) {
		return &logpb.CatalogResult{}, nil
	}
	if exists {
		d.open(m.GetName()).row = m
		return &logpb.CatalogResult{Changed: true}, nil
	}
	vh := &vhost{row: m}
	for _, x := range predeclared {
		vh.addExchange(x)
	}
	d.own(vh)
	return &logpb.CatalogResult{Changed: true}, nil
}

// deleteVhost removes a vhost and all that is in it.
//
// It performs DeleteVhost. One that is protected is refused. Contents of the vhost go with its record; only
// queues are known elsewhere, and are removed there one by one, by id. Bindings
// do not leave a vhost, so nothing else refers to it.
func (d *draft) deleteVhost(m *logpb.DeleteVhost) (*logpb.CatalogResult, error) {
	row, ok := d.VHost(m.GetName())
	switch {
	case !ok:
		return &logpb.CatalogResult{}, nil
	case row.GetProtected():
		return nil, refuse(fsm.Precondition, "vhost '%s' is protected from deletion", m.GetName())
	}
	r := &logpb.CatalogResult{Changed: true}
	for _, q := range sorted(d.vhost(m.GetName()).queues, byAge) {
		d.queueIndex.remove(q)
		d.placements.forget(q)
		r.Deleted = append(r.Deleted, uint64(q.ID))
	}
	delete(d.opened, m.GetName())
	d.vhosts.remove(m.GetName())
	d.limits.forget(false, m.GetName())
	return r, nil
}

// deleteUser removes a user and the user's permissions. It performs DeleteUser.
// Only vhosts where the user has any permission are opened. Queues that the
// user declared stay.
func (d *draft) deleteUser(m *logpb.DeleteUser) (*logpb.CatalogResult, error) {
	if _, ok := d.User(m.GetName()); !ok {
		return &logpb.CatalogResult{}, nil
	}
	for _, row := range d.VHosts() {
		if d.vhost(row.GetName()).rights.of(m.GetName()) {
			d.open(row.GetName()).rights.forget(m.GetName())
		}
	}
	d.users.remove(m.GetName())
	d.limits.forget(true, m.GetName())
	return &logpb.CatalogResult{Changed: true}, nil
}

// putPermission creates or replaces what a user may do in a vhost. It performs
// PutPermission. User and vhost must be there.
func (d *draft) putPermission(m *logpb.PutPermission) (*logpb.CatalogResult, error) {
	if _, ok := d.User(m.GetUser()); !ok {
		return nil, refuse(fsm.NotFoundKind, "no user '%s'", m.GetUser())
	}
	if _, ok := d.VHost(m.GetVhost()); !ok {
		return nil, refuse(fsm.NotFoundKind, "no vhost '%s'", m.GetVhost())
	}
	if err := checkPatterns(m.GetConfigure(), m.GetWrite(), m.GetRead()); err != nil {
		return nil, err
	}
	if p, ok := d.Permission(m.GetUser(), m.GetVhost()); ok && sameRow(p.row(), m) {
		return &logpb.CatalogResult{}, nil
	}
	d.open(m.GetVhost()).rights.put(newPermission(m))
	return &logpb.CatalogResult{Changed: true}, nil
}

// deletePermission removes what a user may do in a vhost.
func (d *draft) deletePermission(m *logpb.DeletePermission) (*logpb.CatalogResult, error) {
	if _, ok := d.Permission(m.GetUser(), m.GetVhost()); !ok {
		return &logpb.CatalogResult{}, nil
	}
	d.open(m.GetVhost()).rights.remove(m.GetUser())
	return &logpb.CatalogResult{Changed: true}, nil
}

// putTopicPermission creates or replaces a topic permission. The exchange need
// not be there. It performs PutTopicPermission. Nor need it be a topic
// exchange.
func (d *draft) putTopicPermission(m *logpb.PutTopicPermission) (*logpb.CatalogResult, error) {
	if _, ok := d.User(m.GetUser()); !ok {
		return nil, refuse(fsm.NotFoundKind, "no user '%s'", m.GetUser())
	}
	if _, ok := d.VHost(m.GetVhost()); !ok {
		return nil, refuse(fsm.NotFoundKind, "no vhost '%s'", m.GetVhost())
	}
	if err := checkName(kindExchange, m.GetExchange()); err != nil {
		return nil, err
	}
	if err := checkPatterns(m.GetWrite(), m.GetRead()); err != nil {
		return nil, err
	}
	at := topicPlace{m.GetUser(), m.GetExchange()}
	if p := d.vhost(m.GetVhost()).rights.topic(at); p != nil && sameRow(p.row, m) {
		return &logpb.CatalogResult{}, nil
	}
	d.open(m.GetVhost()).rights.putTopic(newTopicPermission(m))
	return &logpb.CatalogResult{Changed: true}, nil
}

// deleteTopicPermission removes one topic permission of a user in a vhost, or
// all of them. It performs DeleteTopicPermission. One that is not there is
// fine.
func (d *draft) deleteTopicPermission(m *logpb.DeleteTopicPermission) (*logpb.CatalogResult, error) {
	vh := d.vhost(m.GetVhost())
	if vh == nil {
		return &logpb.CatalogResult{}, nil
	}
	gone := vh.rights.topicsOf(m.GetUser())
	if !m.GetAll() {
		at := topicPlace{m.GetUser(), m.GetExchange()}
		if gone = nil; vh.rights.topic(at) != nil {
			gone = []topicPlace{at}
		}
	}
	if len(gone) == 0 {
		return &logpb.CatalogResult{}, nil
	}
	vh = d.open(m.GetVhost())
	for _, at := range gone {
		vh.rights.removeTopic(at)
	}
	return &logpb.CatalogResult{Changed: true}, nil
}
