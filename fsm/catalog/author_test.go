package catalog

import (
	"strings"
	"testing"

	"github.com/quorate/quorate/proto/logpb"
)

// TestCovers: what is said to cover does, for names that both patterns match or
// only one; and the ways people write such patterns are understood.
func TestCovers(t *testing.T) {
	names := []string{"", "mine", "mine.a", "mines", "yours", "a mine", "MINE", "mine\nx", "amq.default", "x.y"}
	patterns := []string{"", ".*", "^.*", "^", "^mine", "^mine.*", "^mine$", "^mine\\.", "^(mine)", "mine", "^mine|yours", "(?i)^mine", "(?m)^mine", "^mi{,3}ne", "^mi{ 1 }ne", "^mine*", "^(?=mine)", "^mine(?!s)", "^(m)ine\\1", "^mine.+", "^m", "[", "^mi.e", "^x\\.y", "^mine(?s:.*)"}
	for _, outer := range patterns {
		for _, inner := range patterns {
			if !covers(outer, inner) {
				continue
			}
			o, i := newNames(outer, dialectOwn), newPolicyNames(inner, dialectOwn)
			for _, name := range names {
				if i.match(name) && !o.match(name) {
					t.Errorf("%q is said to cover %q, and does not match %q", outer, inner, name)
				}
			}
		}
	}
	if covers("^mx", "^m{ 1 }x") {
		t.Error("braces with spaces, which RE2 takes for letters, are covered")
	}
	for _, c := range [][2]string{{".*", "anything"}, {"^mine", "^mine"}, {"^mine", "^mine\\."}, {"^mine", "^mine.*x$"}, {"^mine", "^mine(?!s)"}, {"^mine.*", "^mines"}, {"^mine\\.", "^mine\\.a$"}} {
		if !covers(c[0], c[1]) {
			t.Errorf("%q does not cover %q", c[0], c[1])
		}
	}
}

// TestStoresAreHidden: a user without any right on an exchange is told of the
// queue of its delayed messages what they are told of one that is not there,
// whatever they may do with names.
func TestStoresAreHidden(t *testing.T) {
	c, by := &Catalog{}, Client{User: "ann"}
	mustApply(t, c, "node n1 a", "initialize / guest", "user ann", "exchange / secret x-delayed-message x-delayed-type=S:direct")
	bind := func(q string) *logpb.Bind {
		return &logpb.Bind{Vhost: "/", Source: "amq.direct", Destination: q, RoutingKey: "k"}
	}
	tries := map[string]func(v *View, q string) error{
		"consume": func(v *View, q string) error {
			_, err := v.TakeFrom(by, "/", q)
			return err
		},
		"passive": func(v *View, q string) error {
			_, err := v.PassiveQueue(by, "/", q)
			return err
		},
		"delete": func(v *View, q string) error {
			_, err := v.CheckDeleteQueue(by, "/", q)
			return err
		},
		"declare": func(v *View, q string) error {
			_, err := v.CheckDeclareQueue(by, &logpb.DeclareQueue{Vhost: "/", Name: q, Durable: true}, false)
			return err
		},
		"bind": func(v *View, q string) error {
			_, err := v.CheckBind(by, bind(q))
			return err
		},
		"unbind": func(v *View, q string) error {
			_, err := v.CheckUnbind(by, bind(q))
			return err
		},
	}
	for _, p := range []struct {
		rights string
		hidden bool
	}{{"^none$", true}, {"^amq", true}, {"^(amq|secret$)", false}, {".*", false}} {
		mustApply(t, c, "permission ann / "+strings.Repeat(p.rights+" ", 3))
		for name, try := range tries {
			there, missing := try(c.View(), "amq.delayed-secret"), try(c.View(), "amq.delayed-others")
			same := strings.ReplaceAll(errorText(there), "secret", "others") == errorText(missing)
			if same != p.hidden && !(name == "passive" && !p.hidden) {
				t.Errorf("%s with %q: %q, of one that is not there %q", name, p.rights, errorText(there), errorText(missing))
			}
		}
	}
}

func errorText(err error) string {
	if err == nil {
		return "nothing"
	}
	return err.Error()
}
