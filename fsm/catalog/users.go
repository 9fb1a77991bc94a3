package catalog

import (
	"bytes"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// initialize fills an empty catalog. It does nothing the second time, and
// nothing once there are vhosts or users.
func (d *draft) initialize(m *logpb.Initialize) (*logpb.CatalogResult, error) {
	if d.initialized || d.vhosts.Len() > 0 || d.users.Len() > 0 {
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
	if _, err := d.putUser(m.GetUser()); err != nil {
		return nil, err
	}
	return d.putPermission(p)
}

// putVhost creates a vhost with its exchanges, or changes its description.
func (d *draft) putVhost(m *logpb.PutVhost) (*logpb.CatalogResult, error) {
	if err := checkName("vhost", m.GetName()); err != nil {
		return nil, err
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
	d.own(m.GetName(), vh)
	return &logpb.CatalogResult{Changed: true}, nil
}

// deleteVhost removes a vhost and all that is in it.
func (d *draft) deleteVhost(m *logpb.DeleteVhost) (*logpb.CatalogResult, error) {
	if _, ok := d.VHost(m.GetName()); !ok {
		return &logpb.CatalogResult{}, nil
	}
	r := &logpb.CatalogResult{Changed: true}
	for _, q := range d.Queues() {
		if q.VHost == m.GetName() {
			d.forgetQueue(q)
			r.Deleted = append(r.Deleted, uint64(q.ID))
		}
	}
	delete(d.opened, m.GetName())
	d.vhosts = d.vhosts.Without(m.GetName())
	d.forgetLimits(false, m.GetName())
	return r, nil
}

// putUser creates or replaces a user.
func (d *draft) putUser(m *logpb.PutUser) (*logpb.CatalogResult, error) {
	if err := checkName("user", m.GetName()); err != nil {
		return nil, err
	}
	if row, ok := d.User(m.GetName()); ok && sameRow(row, m) {
		return &logpb.CatalogResult{}, nil
	}
	d.users = d.users.With(m.GetName(), m)
	return &logpb.CatalogResult{Changed: true}, nil
}

// replaceHash gives a user another hash of the same password, unless the user
// has another password by now, or is gone.
func (d *draft) replaceHash(m *logpb.ReplaceHash) (*logpb.CatalogResult, error) {
	u, ok := d.User(m.GetName())
	if !ok || !bytes.Equal(u.GetPasswordHash(), m.GetWas()) {
		return &logpb.CatalogResult{}, nil
	}
	return d.putUser(&logpb.PutUser{
		Name: u.GetName(), PasswordHash: m.GetPasswordHash(), HashAlgorithm: m.GetHashAlgorithm(), Tags: u.GetTags(),
	})
}

// deleteUser removes a user and the user's permissions.
func (d *draft) deleteUser(m *logpb.DeleteUser) (*logpb.CatalogResult, error) {
	if _, ok := d.User(m.GetName()); !ok {
		return &logpb.CatalogResult{}, nil
	}
	for _, row := range d.VHosts() {
		if _, ok := d.Permission(m.GetName(), row.GetName()); ok {
			vh := d.open(row.GetName())
			vh.permissions = vh.permissions.Without(m.GetName())
		}
		d.forgetTopics(m.GetName(), row.GetName())
	}
	d.users = d.users.Without(m.GetName())
	d.forgetLimits(true, m.GetName())
	return &logpb.CatalogResult{Changed: true}, nil
}

// putPermission creates or replaces what a user may do in a vhost.
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
	vh := d.open(m.GetVhost())
	vh.permissions = vh.permissions.With(m.GetUser(), newPermission(m))
	return &logpb.CatalogResult{Changed: true}, nil
}

// checkPatterns refuses patterns that are too long. See ValidatePattern.
func checkPatterns(patterns ...string) error {
	for _, p := range patterns {
		if len(p) > maxPattern {
			return refuse(fsm.Precondition, "the pattern is longer than %d bytes", maxPattern)
		}
	}
	return nil
}

// deletePermission removes what a user may do in a vhost.
func (d *draft) deletePermission(m *logpb.DeletePermission) (*logpb.CatalogResult, error) {
	if _, ok := d.Permission(m.GetUser(), m.GetVhost()); !ok {
		return &logpb.CatalogResult{}, nil
	}
	vh := d.open(m.GetVhost())
	vh.permissions = vh.permissions.Without(m.GetUser())
	return &logpb.CatalogResult{Changed: true}, nil
}
