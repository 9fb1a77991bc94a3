package catalog

import (
	"fmt"
	"slices"
	"strings"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// LockSecretSize is the length of the secret of lock tokens.
const LockSecretSize = 32

// lockKey is the secret by which nodes make lock tokens and know them again. It
// is chosen once, by a node, and kept for ever: whoever has it can settle any
// delivery. It is in the log and in snapshots, like the hashes of passwords, and in no
// text, listing or export.
//
// Invariant: LockSecretSize bytes, or none yet. It is never changed.
type lockKey struct{ lockSecret []byte }

// LockSecret returns the secret of lock tokens; nil: there is none yet. Nobody
// may change it.
func (k *lockKey) LockSecret() []byte { return k.lockSecret }

// put performs PutLockKey. Of several nodes that choose one the first wins.
func (k *lockKey) put(m *logpb.PutLockKey) (*logpb.CatalogResult, error) {
	switch {
	case len(m.GetSecret()) != LockSecretSize:
		return nil, refuse(fsm.Internal, "the secret of lock tokens has %d bytes", LockSecretSize)
	case k.lockSecret != nil:
		return &logpb.CatalogResult{}, nil
	}
	k.lockSecret = slices.Clone(m.GetSecret())
	return &logpb.CatalogResult{Changed: true}, nil
}

func (k *lockKey) save(to *logpb.CatalogSnapshot) { to.LockSecret = k.lockSecret }

func (k *lockKey) restore(from *logpb.CatalogSnapshot) {
	if len(from.GetLockSecret()) > 0 {
		k.lockSecret = from.GetLockSecret()
	}
}

// describe says only that there is one.
func (k *lockKey) describe(b *strings.Builder) {
	if k.lockSecret != nil {
		b.WriteString("lock-key\n")
	}
}

func (k *lockKey) check() error {
	if n := len(k.lockSecret); n != 0 && n != LockSecretSize {
		return fmt.Errorf("the secret of lock tokens has %d bytes", n)
	}
	return nil
}
