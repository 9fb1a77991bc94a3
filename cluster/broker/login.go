package broker

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/quorate/quorate/cluster/login"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// errLogin is the one answer to every failed login.
var errLogin = errors.New("login was refused")

// errBusyLogin is the answer to a login that was not looked at in time.
var errBusyLogin = fsm.Refuse(fsm.Forced, "too many logins wait, try again later")

// replaceWait bounds how long the catalog may take to replace a hash.
const replaceWait = 30 * time.Second

// Login checks a password. Users of the loopback list may come from loopback
// addresses only. A refusal says that too many logins wait; any other error is
// the one answer to all that fails.
func (b *Broker) Login(ctx context.Context, user, password string, remote netip.Addr) error {
	u, known := b.freshView(ctx).User(user)
	a := &login.Attempt{
		User: user, Password: password, Remote: remote, Hash: u.GetPasswordHash(), Algorithm: u.GetHashAlgorithm(),
		Barred: b.barred(user, remote),
	}
	good, renewed, err := b.logins.Check(ctx, a)
	switch {
	case errors.Is(err, login.ErrBusy):
		return errBusyLogin
	case err != nil:
		return b.refuseLogin(ctx, user, remote, err.Error())
	}
	if renewed != nil {
		b.replaceHash(a, renewed)
	}
	return b.admit(ctx, user, known, good, remote)
}

// replaceHash gives a user who has logged in a hash of this program's own for
// the imported one. Should that fail, the next login tries again.
func (b *Broker) replaceHash(a *login.Attempt, renewed []byte) {
	b.spawn("replace an imported hash", func() {
		open, cancel := b.whileOpen()
		defer cancel()
		ctx, cancelWait := context.WithTimeout(open, replaceWait)
		defer cancelWait()
		_, err := b.config.Catalog.Note(ctx, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_ReplaceHash{ReplaceHash: &logpb.ReplaceHash{
			Name: a.User, Was: a.Hash, PasswordHash: renewed, HashAlgorithm: login.HashAlgorithm,
		}}})
		if err != nil {
			b.slog.Warn("imported hash of a password not replaced", "user", a.User, "error", err)
			return
		}
		b.logins.Remember(renewed, a.Password)
	})
}

// LoginCertified is Login for a client that has proved by a certificate who it
// is. A password is not needed, the user is.
func (b *Broker) LoginCertified(ctx context.Context, user string, remote netip.Addr) error {
	_, known := b.freshView(ctx).User(user)
	return b.admit(ctx, user, known, true, remote)
}

// barred reports whether a user may not log in from an address.
func (b *Broker) barred(user string, remote netip.Addr) bool {
	return slices.Contains(b.config.LoopbackUsers, user) && !remote.Unmap().IsLoopback()
}

// admit decides about a login and says in the log why one is refused.
func (b *Broker) admit(ctx context.Context, user string, known, proved bool, remote netip.Addr) error {
	switch {
	case !known:
		return b.refuseLogin(ctx, user, remote, "no such user")
	case b.barred(user, remote):
		return b.refuseLogin(ctx, user, remote, "user may connect from loopback only")
	case !proved:
		return b.refuseLogin(ctx, user, remote, "wrong password")
	}
	return nil
}

// Logins says how logins with passwords have ended.
func (b *Broker) Logins() login.Counts { return b.logins.Counts() }

// HashPassword makes the hash of a new password.
func (b *Broker) HashPassword(ctx context.Context, password string) ([]byte, error) {
	return b.logins.Hash(ctx, password)
}
