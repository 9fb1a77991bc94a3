package session

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/quorate/quorate/cluster/audit"
	"github.com/quorate/quorate/cluster/login"
	"github.com/quorate/quorate/cluster/self"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// errLogin is the one answer to every failed login.
var errLogin = errors.New("login was refused")

// errBusyLogin is the answer to a login that could not be checked in time.
var errBusyLogin = fsm.Refuse(fsm.Forced, "too many logins are waiting, try again later")

// replaceWait bounds how long the catalog may take to replace a hash.
const replaceWait = 30 * time.Second

// Authenticator authenticates clients. It records the reason for each refusal in the log and in the
// audit log.
type Authenticator struct {
	node     *self.Node
	gate     *login.Gate
	loopback []string   // users who may log in from loopback addresses only
	audit    *audit.Log // nil: nothing is audited
	refusals refusals
}

// Login checks a password. Users of the loopback list may log in from loopback addresses only. A
// refusal says that too many logins wait; any other failure gives the same error.
func (a *Authenticator) Login(ctx context.Context, user, password string, remote netip.Addr) error {
	u, known := a.node.FreshView(ctx).User(user)
	try := &login.Attempt{
		Protocol: protocolOf(ctx), User: user, Password: password, Remote: remote, Hash: u.GetPasswordHash(), Algorithm: u.GetHashAlgorithm(),
		Barred: a.barred(user, remote),
	}
	good, renewed, err := a.gate.Check(ctx, try)
	if err != nil {
		return a.unchecked(ctx, user, remote, err)
	}
	if renewed != nil {
		a.replaceHash(try, renewed)
	}
	return a.admit(ctx, user, known, good, remote)
}

func protocolOf(ctx context.Context) login.Protocol {
	switch audit.From(ctx).Protocol {
	case login.AMQP10.String():
		return login.AMQP10
	case login.HTTP.String():
		return login.HTTP
	}
	return login.AMQP
}

// LoginByKey is Login for a client that shows a key which has a name and belongs to no user. Guessing is slowed down as for passwords.
func (a *Authenticator) LoginByKey(ctx context.Context, name string, remote netip.Addr, same func() bool) error {
	good, err := a.gate.Compare(ctx, protocolOf(ctx), name, remote, same)
	switch {
	case err != nil:
		return a.unchecked(ctx, name, remote, err)
	case !good:
		return a.refuseLogin(ctx, name, remote, "wrong key, or none of that name")
	}
	return nil
}

// unchecked is the answer to a login that the gate has not checked.
func (a *Authenticator) unchecked(ctx context.Context, user string, remote netip.Addr, err error) error {
	if errors.Is(err, login.ErrBusy) {
		return errBusyLogin
	}
	return a.refuseLogin(ctx, user, remote, err.Error())
}

// replaceHash replaces the imported hash of a user who has logged in by one of this program. If
// that fails, the next login tries again.
func (a *Authenticator) replaceHash(try *login.Attempt, renewed []byte) {
	a.node.Spawn("replace an imported hash", func() {
		ctx, cancel := context.WithTimeout(a.node.Life(), replaceWait)
		defer cancel()
		_, err := a.node.Catalog.Note(ctx, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_ReplaceHash{ReplaceHash: &logpb.ReplaceHash{
			Name: try.User, Was: try.Hash, PasswordHash: renewed, HashAlgorithm: login.HashAlgorithm,
		}}})
		if err != nil {
			a.node.Logger.Warn("imported hash of a password not replaced", "user", try.User, "error", err)
			return
		}
		a.gate.Remember(renewed, try.Password)
	})
}

// LoginKnown is Login for a client that has proved its identity by a certificate, or is anonymous. No
// password is needed, but the user must exist.
func (a *Authenticator) LoginKnown(ctx context.Context, user string, remote netip.Addr) error {
	_, known := a.node.FreshView(ctx).User(user)
	return a.admit(ctx, user, known, true, remote)
}

// barred reports whether a user may not log in from an address.
func (a *Authenticator) barred(user string, remote netip.Addr) bool {
	return slices.Contains(a.loopback, user) && !remote.Unmap().IsLoopback()
}

// admit decides on a login, and logs the reason if it is refused.
func (a *Authenticator) admit(ctx context.Context, user string, known, proved bool, remote netip.Addr) error {
	switch {
	case !known:
		return a.refuseLogin(ctx, user, remote, "no such user")
	case a.barred(user, remote):
		return a.refuseLogin(ctx, user, remote, "user may only connect over loopback")
	case !proved:
		return a.refuseLogin(ctx, user, remote, "wrong password")
	}
	return nil
}

// Logins counts the outcomes of logins with passwords.
func (a *Authenticator) Logins() login.Tally { return a.gate.Counts() }

// HashPassword makes the hash of a new password.
func (a *Authenticator) HashPassword(ctx context.Context, password string) ([]byte, error) {
	return a.gate.Hash(ctx, password)
}

// refusals limits how often refused logins are logged.
type refusals struct {
	mu       sync.Mutex
	throttle *audit.Throttle
}

// say reports whether a refusal at an address may be logged, and how many have not been.
func (r *refusals) say(remote netip.Addr) (ok bool, unlogged uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.throttle == nil {
		r.throttle = audit.NewThrottle(time.Now)
	}
	for _, l := range r.throttle.Expired() {
		unlogged += l.Count
	}
	_, ok, before := r.throttle.Allow(remote.String())
	return ok || unlogged > 0, unlogged + before
}

// refuseLogin logs and audits why a login is refused. Anybody can cause refusals as often as they
// like, so the rate is bounded for each address.
func (a *Authenticator) refuseLogin(ctx context.Context, user string, remote netip.Addr, reason string) error {
	if ok, unlogged := a.refusals.say(remote); ok {
		a.node.Logger.Warn("login refused", "user", fsm.Short(user), "remote", remote, "reason", reason, "unlogged", unlogged)
	}
	from := audit.From(ctx)
	if from.Address == "" {
		from.Address = remote.String()
	}
	a.audit.Write(audit.Event{
		Kind: audit.Login, Action: "login", User: fsm.Short(user), Origin: from, Outcome: audit.Refused, Reason: reason,
	})
	return errLogin
}
