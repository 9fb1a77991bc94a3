package session

import (
	"context"
	"crypto/sha256"
	"errors"
	"net/netip"
	"testing"

	"github.com/quorate/quorate/cluster/audit"
	"github.com/quorate/quorate/cluster/login"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// putUser gives a user a hash.
func (w *world) putUser(name string, hash []byte, algorithm string) {
	w.t.Helper()
	w.Commit(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutUser{PutUser: &logpb.PutUser{
		Name: name, PasswordHash: hash, HashAlgorithm: algorithm, Tags: []string{"management"},
	}}})
}

// The first login with an imported hash replaces it, and nothing else about the
// user.
func TestImportedHashIsReplaced(t *testing.T) {
	w := newWorld(t)
	sum := sha256.Sum256([]byte("saltright"))
	w.putUser("ann", append([]byte("salt"), sum[:]...), login.ImportedSHA256)
	from := netip.MustParseAddr("192.0.2.1")
	for _, try := range []struct {
		password  string
		ok        bool
		algorithm string
	}{{"wrong", false, login.ImportedSHA256}, {"right", true, login.HashAlgorithm}, {"right", true, login.HashAlgorithm}, {"wrong", false, login.HashAlgorithm}} {
		if err := w.sessions.Login(context.Background(), "ann", try.password, from); (err == nil) != try.ok {
			t.Errorf("%s: %v", try.password, err)
		}
		w.node.Wait()
		u, _ := w.View().User("ann")
		if u.GetHashAlgorithm() != try.algorithm || len(u.GetTags()) != 1 {
			t.Errorf("after %s: %v", try.password, u)
		}
	}
}

// Every failed login has the same answer, whether its password was checked or not.
// A key is guessed no faster than a password, its name is none of a user, and nobody is told why it is refused.
func TestLoginsByKey(t *testing.T) {
	w := newWorld(t)
	w.sessions.gate = login.New(login.Config{AtOnce: 1, FreeFailures: 1, MaxDelay: 1 << 40})
	w.putUser("ann", login.HashPassword("right"), login.HashAlgorithm)
	from, compared := netip.MustParseAddr("192.0.2.1"), 0
	ctx := audit.With(context.Background(), audit.Origin{Protocol: "amqp10"})
	by := func(name string, remote netip.Addr, right bool) error {
		return w.sessions.LoginByKey(ctx, name, remote, func() bool { compared++; return right })
	}
	for _, right := range []bool{false, false, true} {
		if err := by("ann", from, right); err != errLogin {
			t.Errorf("%v: %v", right, err)
		}
	}
	if n := w.sessions.Logins()[login.AMQP10]; compared != 2 || n != (login.Counts{Refused: 2, HeldBack: 1}) {
		t.Errorf("%d compared, %+v", compared, n)
	}
	if err := errors.Join(by("other", from, true), by("ann", netip.MustParseAddr("192.0.2.2"), true), w.sessions.Login(ctx, "ann", "right", from)); err != nil {
		t.Error(err)
	}
}

func TestLoginErrors(t *testing.T) {
	w := newWorld(t)
	w.sessions.gate = login.New(login.Config{AtOnce: 1, FreeFailures: 1, MaxDelay: 1 << 40})
	w.putUser("ann", login.HashPassword("right"), login.HashAlgorithm)
	from := netip.MustParseAddr("192.0.2.1")
	for _, password := range []string{"wrong", "wrong", "right"} {
		if err := w.sessions.Login(context.Background(), "ann", password, from); err != errLogin {
			t.Errorf("%s: %v", password, err)
		}
	}
	if n := w.sessions.Logins()[login.AMQP]; n.Refused != 2 || n.HeldBack != 1 {
		t.Errorf("%+v", n)
	}
	byHTTP := audit.With(context.Background(), audit.Origin{Protocol: "http"})
	if err := w.sessions.Login(byHTTP, "bob", "wrong", from); err != errLogin {
		t.Error(err)
	}
	by10 := audit.With(context.Background(), audit.Origin{Protocol: "amqp10"})
	if err := w.sessions.Login(by10, "eve", "wrong", from); err != errLogin {
		t.Error(err)
	}
	if n := w.sessions.Logins(); n[login.HTTP] != (login.Counts{Refused: 1}) || n[login.AMQP10] != (login.Counts{Refused: 1}) || n.Sum().Failed() != 5 {
		t.Errorf("%+v", n)
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	r := (*fsm.Refusal)(nil)
	if err := w.sessions.Login(ended, "bob", "wrong", from); !errors.As(err, &r) || r.Kind != fsm.Forced {
		t.Errorf("a login that is not looked at in time: %v", err)
	}
}
