package catalog

import (
	"bytes"
	"strings"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// The first secret stays, also across a snapshot, and no text shows it.
func TestLockSecret(t *testing.T) {
	c := &Catalog{}
	put := func(secret []byte) *logpb.CatalogResult {
		return c.Apply(c.View().Index()+1, &logpb.CatalogEntry{Version: 1, Commands: []*logpb.CatalogCommand{
			{Body: &logpb.CatalogCommand_PutLockKey{PutLockKey: &logpb.PutLockKey{Secret: secret}}},
		}})[0]
	}
	first, second := bytes.Repeat([]byte("s"), LockSecretSize), bytes.Repeat([]byte("t"), LockSecretSize)
	if r := put(first[1:]); fsm.Kind(r.GetRefusal()) != fsm.Internal || c.View().LockSecret() != nil {
		t.Errorf("a short secret: %v", r)
	}
	if r := put(first); !r.GetChanged() {
		t.Errorf("the first: %v", r)
	}
	if r := put(second); r.GetChanged() || r.GetRefusal() != 0 {
		t.Errorf("the second: %v", r)
	}
	restored, err := Restore(c.Snapshot())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []*Catalog{c, restored} {
		if !bytes.Equal(c.View().LockSecret(), first) || c.Check() != nil {
			t.Errorf("it is %q, %v", c.View().LockSecret(), c.Check())
		}
		if text := c.String(); strings.Contains(text, "sss") || strings.Contains(text, "7373") || !strings.Contains(text, "lock-key\n") {
			t.Errorf("the text is %s", text)
		}
	}
}
